"""Turn rows into the text that the model reads: text and label, or parts, of which some are trained on.

Rows without an answer or text are dropped and counted. Raises ConfigError for a missing column or a wrong template,
DataError for a row that can't be formatted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.config import keyed_params
from trnflow.tasks.data.format.config import FormatConfig, is_chat, is_framed
from trnflow.tasks.data.format.conversation import Row
from trnflow.tasks.data.format.first_rows import first_rows
from trnflow.tasks.data.format.marked_answers import refuse_alike
from trnflow.tasks.data.format.own_rows import HOOK
from trnflow.tasks.data.format.row_columns import chat_columns, taught_columns
from trnflow.tasks.data.format.row_counts import BAD, DropCounts, report
from trnflow.tasks.data.format.row_makers import (
    Maker,
    chat_document,
    chat_templates_of,
    maker_from,
    maker_of,
    unread_columns,
)
from trnflow.tasks.data.format.source_rows import write_source_rows
from trnflow.tasks.data.format.templates import Limit, no_limit
from trnflow.tasks.data.format.text_prefixes import lacking_prefixes
from trnflow.tasks.data.format.unlike_splits import unlike_splits
from trnflow.tasks.data.limited_process import call_limited, call_own
from trnflow.tasks.data.proof import prove
from trnflow.tasks.data.tables import label_type, read_rows, rows_of, spare_pandas, write_rows, written_name
from trnflow.tasks.data.texts import HELD_OUT, NEGATIVE, PAIR, TOKEN, in_order
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.preference import CHOSEN, REJECTED
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.kinds.unpaired_preference import DESIRABLE, UNDESIRABLE
from trnflow.tasks.sources.model_source import tokenizer_folder
from trnflow.tasks.stage import Keyed, Known, Part, PartResult, Parts, Workdir, read_json, stage, write_json

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.metadata import RowColumns, RowsMeta, TextsMeta
    from trnflow.tasks.system.arrays import Int32s

BATCH = 4096
PART, OWN_PART = 8 * BATCH, 2 * BATCH
"""Rows of a part; of one that calls own code, which takes longer: few rows, too, are made on all cores."""

SHOWN = 100
"""Characters of a row that can't be formatted, in its error."""

LABELS = "labels.json"
"""The file that parts share: names of the model's outputs, or null."""

SOURCE_ROW = "source_row"
"""The column of a part's examples with the row from which each was made."""


def _inputs(config: FormatConfig, inputs: Keyed) -> Meta:
    """Return what is keyed: the rows and, for conversations, the tokenizer with its chat template."""
    rows, model = inputs["rows"], inputs["model"]
    assert isinstance(rows, Artifact) and isinstance(model, Source)
    pooling = _filled(config, model).pooling
    return {
        "rows": rows.digest,
        **({"tokenizer": model.identity["tokenizer"]} if is_chat(config, rows.meta) else {}),
        **({"pooling": pooling} if pooling != config.pooling else {}),
    }


def _filled(config: FormatConfig, model: Source) -> FormatConfig:
    """Return the settings with what they leave to the model's folder. Raises ConfigError."""
    filled: FormatConfig = FORMATS[config.task].filled(config, model.identity.get("sentence"))
    return filled


def foresee(config: FormatConfig, known: Known) -> Meta:
    """Return task, labels and splits as far as they are known."""
    rows, kind = known.of("rows"), FORMATS[config.task]
    labels = rows.get("labels") if kind.one_class else kind.foreseen(config) if kind.reads_targets else None
    return {"task": kind.name, "labels": labels, **({"splits": rows["splits"]} if "splits" in rows else {})}


def needs(config: FormatConfig, known: Known) -> Iterator[str]:
    """Raise ConfigError for a column that the rows lack, or a tokenizer without chat template."""
    rows, model = known.of("rows"), known.sources["model"]
    at = model.location["tokenizer"]
    framed = is_framed(config, rows) and (not at or "folder" in at)
    chat = chat_document(config, tokenizer_folder(model)) if framed else None
    if "columns" in rows:
        FORMATS[config.task].check_rows(config, rows)
        maker_of(config, cast("RowsMeta", rows), chat, no_limit)
    sentence = model.identity.get("sentence")
    yield from FORMATS[config.task].unused(FORMATS[config.task].filled(config, sentence), sentence)


def split_rows(
    config: FormatConfig, rows: Input[RowsMeta], model: Source, out: Workdir, code: Source | None = None
) -> list[Part]:
    """Return the parts, in the order of splits and rows. Raises ConfigError before any row is read, CodeError for a
    function of the user's that gives the same row other texts."""
    chat = chat_document(config, tokenizer_folder(model)) if is_framed(config, rows.meta) else None
    FORMATS[config.task].check_rows(config, rows.meta)
    maker_of(config, rows.meta, chat, no_limit)
    if config.task == "chat":
        _tell_unread(config, rows.meta, chat, out)
    labels = _labels(config, rows)
    write_json(out.path / LABELS, labels)
    if code:
        given = _arguments(config, rows, {"split": "train", "chat": chat, "labels": labels}, code, out.scratch)
        prove(code, first_rows, given, out)
    size = OWN_PART if code else PART
    return [
        _part(config, chat, labels, rows, split, first, min(size, count - first))
        for split in in_order(rows.meta["splits"])
        for count in (rows.meta["splits"][split],)
        for first in range(0, count, size)
    ]


def _labels(config: FormatConfig, rows: Input[RowsMeta]) -> list[str] | None:
    """Return the names of the model's outputs. Raises DataError for a target of train that is none."""
    kind = FORMATS[config.task]
    if kind.one_class:
        return rows.meta["labels"]
    known = {"train", *(rows.meta.get("made", ()) if kind.takes_made_rows else ())}
    files = [rows.path / f"{split}.parquet" for split in in_order(rows.meta["splits"]) if split in known]
    read = partial(_columns, files, kind.columns(config))
    return kind.labels_of(config, read, rows.meta.get("nested", ()))


def _columns(files: list[Path], columns: tuple[str, ...]) -> Iterator[Row]:
    import pyarrow.parquet as pq

    names = [name for column in columns for name in (column, written_name(column))]
    for file in files:
        for batch in pq.ParquetFile(file, pre_buffer=False).iter_batches(BATCH, columns=names):
            yield from rows_of(batch)


def _part(
    config: FormatConfig,
    chat: Meta | None,
    labels: list[str] | None,
    rows: Input[RowsMeta],
    split: str,
    first: int,
    count: int,
) -> Part:
    arguments = {"split": split, "first": first, "count": count, "chat": chat, "labels": labels}
    identity = {"params": {**keyed_params(config), **arguments}, "inputs": {"rows": rows.digest}}
    return Part(identity, arguments)


def _arguments(config: FormatConfig, rows: Input[RowsMeta], part: Meta, code: Source | None, folder: Path) -> Meta:
    """Return what the process that makes examples is told."""
    return {
        "config": config.model_dump(mode="json"),
        "file": str(rows.path / f"{part['split']}.parquet"),
        "meta": {**rows.meta, "labels": part["labels"]},
        "classes": rows.meta["labels"],
        "part": part,
        "code": vars(code) if code else None,
        "hook": HOOK,
        "imports": ["pyarrow.parquet"],
        "to": str(folder / "texts.arrow"),
    }


def format_rows(
    config: FormatConfig, rows: Input[RowsMeta], part: Meta, out: Workdir, code: Source | None = None
) -> Meta:
    """Make the examples of {split, first, count, chat, labels}. Writes `texts.arrow`; returns DropCounts as JSON."""
    arguments = _arguments(config, rows, part, code, out.path)
    if code:
        return call_own("trnflow.tasks.format_prompts:render_rows", arguments)
    # in a process of its own: a template that never ends stops the run
    if part["chat"] or config.prompt_template or config.response_template:
        return call_limited("trnflow.tasks.format_prompts:render_rows", arguments)
    return render_rows(arguments, no_limit)


@stage(kind="texts", role="texts", inputs=_inputs, split=split_rows, part=format_rows, foresee=foresee, needs=needs)
def format_prompts(
    config: FormatConfig, rows: Input[RowsMeta], model: Source, parts: Parts, out: Workdir, code: Source | None = None
) -> TextsMeta:
    """Write each split's examples, `<split>.parquet`, and `<split>.source_row.npy` where they are not the rows one for
    one.

    Columns: `text: string`, perhaps `text_pair: string` and `negative: string`, and `label: int64` or `list<float>`; or
    `parts: list<struct<text, train, ends_prompt>>`, of a chat also `held_out`, and `plain` or `token`, of pairs also `rejected`
    of the same type, of marked answers `label: int64`.

    Returns metadata:
        task: The name of the `Kind`.
        labels: Names by id, or null.
        splits: {split: examples}.
        dropped: {reason: rows}.
        framed: Whether a chat template wrote the special tokens.
        templates: In which a spelled special token counts.
        rows: settings, text, columns, nested; with `make` also `own`, the code that made the texts.
        unread: Columns and fields of messages that nothing reads.
    """
    recorded, kind = keyed_params(_filled(config, model)), FORMATS[config.task]
    labels = read_json(parts.shared / LABELS)
    for remark in kind.remarks_on_names(labels or ()):
        out.warn(remark)
    counts = {split: _gathered(split, config, rows, parts, out, code) for split in in_order(rows.meta["splits"])}
    targets = {split: _targets(out.path / f"{split}.parquet") for split in counts if kind.looks_at_targets}
    for split, some in targets.items():
        for remark in kind.remarks(some, targets.get("train")):
            out.warn(f"{split}: {remark}")
    if kind.per_row:
        files = {split: out.path / f"{split}.parquet" for split in counts}
        for remark in unlike_splits(files, " and ".join(rows.meta["text"]) or "the text", config.text_pair):
            out.warn(remark)
    for remark in lacking_prefixes(model, out.path / "train.parquet") if kind.apart and "train" in counts else ():
        out.warn(remark)
    if kind.marked and "train" in counts:
        refuse_alike(*(counts["train"].rows(name) for name in (DESIRABLE, UNDESIRABLE)))
    dropped, metrics = report(counts, out, f"{config.make} leaves out" if config.make else "without an answer")
    meta: TextsMeta = {
        "task": kind.name,
        "labels": labels,
        "splits": {split: tally.written for split, tally in counts.items()},
        "framed": is_framed(config, rows.meta),
        "templates": [text for text in (config.prompt_template, config.response_template) if text],
        "rows": {
            "settings": recorded,
            "text": rows.meta["text"],
            "columns": rows.meta["columns"],
            "nested": rows.meta.get("nested", []),
        },
        "dropped": dropped,
    }
    if head := kind.head(recorded):
        meta["head"] = head
    if code:
        meta["rows"]["own"] = code.identity["code"]
    if unread := [*unread_columns(config, rows.meta), *_unread_fields(config, counts)]:
        meta["unread"] = unread
    if metrics:
        meta["metrics"] = metrics
    return meta


def _unread_fields(config: FormatConfig, counts: dict[str, DropCounts]) -> list[str]:
    """Return the fields of messages that the chat template does not read, with the column's name before them."""
    total = DropCounts()
    for tally in counts.values():
        total.add(tally.meta())
    column = config.messages if config.task == "chat" else CHOSEN
    return [f"{column}.{name}" for name in total.unread]


def _targets(file: Path) -> Any:
    """Return a split's targets, float32 [rows, ...]."""
    import numpy as np
    import pyarrow.parquet as pq

    column = pq.read_table(file, columns=["label"]).column("label").combine_chunks()
    return np.asarray(column.flatten()).reshape(len(column), -1)


def _gathered(
    split: str, config: FormatConfig, rows: Input[RowsMeta], parts: Parts, out: Workdir, code: Source | None
) -> DropCounts:
    """Write one split and return its counts. Raises DataError when no row is left."""
    tally, count = DropCounts(), rows.meta["splits"][split]
    sources: list[Int32s] = []
    tables = _tables(split, config, rows, parts, tally, sources, out, code)
    write_rows(tables, _schema(config, rows.meta), out.path / f"{split}.parquet", lambda done: None)
    write_source_rows(out.path, split, sources, count)
    if tally.written == 0:
        bad = f" ({tally.rows(BAD)} can't be rendered; the first: {tally.noted[BAD][1]})" if tally.rows(BAD) else ""
        raise DataError(
            f"the split {split} is empty: none of its {count} rows has {'a text' if code else 'an answer'}{bad}",
            "repair the rows or the template" if bad else f"check {config.make or 'format' + chr(39) + 's columns'}",
        )
    return tally


def _schema(config: FormatConfig, meta: RowColumns) -> pa.Schema:
    import pyarrow as pa

    kind = FORMATS[config.task]
    if kind.per_row:
        texts = ["text", *([PAIR] if config.text_pair else ()), *([NEGATIVE] if config.negative else ())]
        return pa.schema([*((name, pa.string()) for name in texts), ("label", label_type(kind))])
    more = [("plain", pa.bool_())] if is_framed(config, meta) else []
    if is_chat(config, meta):
        more = [(HELD_OUT, pa.bool_()), *(more or [(TOKEN, pa.string())])]
    elif config.task == "instruction" and config.history in [*taught_columns(config, meta["columns"])]:
        more = [(TOKEN, pa.string())]
    names = ["parts", REJECTED] if kind.pairs and not kind.marked else ["parts"]
    parts = pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_()), ("ends_prompt", pa.bool_()), *more]))
    return pa.schema([*((name, parts) for name in names), *([("label", pa.int64())] if kind.marked else [])])


def _tables(
    split: str,
    config: FormatConfig,
    rows: Input[RowsMeta],
    parts: Parts,
    tally: DropCounts,
    sources: list[Int32s],
    out: Workdir,
    code: Source | None,
) -> Iterator[pa.Table]:
    """Yield a split's examples, and append their rows to `sources`."""
    import numpy as np
    import pyarrow as pa

    count = rows.meta["splits"][split]
    for part in parts.of(split=split):
        if BAD in part.meta["noted"] and not tally.rows(BAD):
            tally.note(BAD, _why_bad(config, rows, part, out, code), rows=0)
        tally.add(part.meta)
        with pa.OSFile(str(part.folder / "texts.arrow")) as file:  # not memory-mapped: the folder is removed early
            table = pa.ipc.open_file(file).read_all()
        sources.append(np.array(table.column(SOURCE_ROW)))  # a copy: a view would keep the texts in memory
        yield table.drop_columns([SOURCE_ROW])
        out.progress(part.arguments["first"] + part.arguments["count"], count, f"{split} rows")


def _why_bad(config: FormatConfig, rows: Input[RowsMeta], part: PartResult, out: Workdir, code: Source | None) -> str:
    """Return the error's message of a part's first bad row."""
    # The row is rendered again: an error's text is in no key, so it must not be in the part's metadata either.
    number = int(part.meta["noted"][BAD][1])
    strict = config.model_copy(update={"bad_rows": "error"})
    out.scratch.mkdir(parents=True, exist_ok=True)
    try:
        again = {**part.arguments, "first": number, "count": 1}
        format_rows(strict, rows, again, Workdir(out.scratch, out.scratch, out.emit), code)
    except DataError as error:
        return error.message
    return f"split {part.arguments['split']} row {number + 1}"


def render_rows(arguments: Meta, limit: Limit) -> Meta:
    """Make a part's examples in this process; return DropCounts as JSON.

    arguments: as `format_rows` makes them. limit: the context in which a row is rendered.
    """
    import pyarrow as pa

    config, part = FormatConfig.model_validate(arguments["config"]), arguments["part"]
    if not arguments["code"] or arguments["code"]["identity"]["env"].keys() <= {"python"}:
        spare_pandas()
    texts, make = _schema(config, arguments["meta"]), maker_from(arguments, limit)
    schema = texts.append(pa.field(SOURCE_ROW, pa.int32()))
    table, tally = read_rows(Path(arguments["file"]), part["first"], part["count"]), DropCounts()
    with pa.OSFile(arguments["to"], "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in table.to_batches(BATCH):
            rows_out: list[Row] = []
            numbers: list[int] = []
            for row in rows_of(batch):
                number = part["first"] + tally.read
                examples = _examples(config, make, row, part["split"], number, tally)
                rows_out += examples
                numbers += [number] * len(examples)
            columns = [*pa.Table.from_pylist(rows_out, texts).columns, pa.array(numbers, pa.int32())]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return tally.meta()


def _examples(config: FormatConfig, make: Maker, row: Row, split: str, number: int, tally: DropCounts) -> list[Row]:
    """Return a row's examples and count them. Raises DataError unless `bad_rows` is "drop"."""
    tally.read += 1
    where = f"split {split} row {number + 1}"
    try:
        examples = make(row, where)
    except DataError as error:
        if config.bad_rows == "error":
            # the number is of the rows that load_data kept: the text finds the row in the user's file
            message = f"{error.message} (the row begins with {_beginning(row)})"
            raise DataError(message, f"{error.fix}; format.bad_rows=drop leaves such rows out") from error
        tally.note(BAD, str(number))
        return []
    tally.count(examples, where)
    return examples.examples


def _beginning(row: Row) -> str:
    text = next((value for value in row.values() if isinstance(value, str) and value.strip()), "no text")
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")


def _tell_unread(config: FormatConfig, meta: RowsMeta, chat: Meta | None, out: Workdir) -> None:
    """Warn if the rows have tools or documents that the chat template does not read; say which day it takes for today."""
    read = {name for template in chat_templates_of(config, chat).values() for name in template.names} if chat else set()
    columns = chat_columns(config, meta["columns"])
    for variable, column in (("tools", columns.tools), ("documents", columns.documents)):
        if column in meta["columns"] and variable not in read:
            out.warn(f"the rows have a column {column}, and the chat template does not write {variable}")
    if "strftime_now" in read:
        out.info(f"the chat template writes a date: {config.date} in training (format.date), in use that of the day")
