"""Load a dataset's splits into parquet: the columns that are needed, labels as ids, nothing dropped unseen.

Rows stream through a scratch file in batches, so memory is bounded by a batch and 8 bytes a row. csv, json lines and
parquet of equal content give equal bytes. Rows of validation and test are never dropped but by `limit`; rows of train
only by `dedupe` and `limit`, both counted, and texts that splits share are counted in any case.
Fails with DataError naming file and row (missing text, label outside the set, bad row), ConfigError for a setting.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from tasks.artifact import Meta, Source
from tasks.config import NOT_KEYED, StageConfig
from tasks.errors import ConfigError, DataError
from tasks.memo import stamp
from tasks.resolve import Resolver
from tasks.stage import Workdir, stage
from tasks.text.columns import Columns, choose_columns
from tasks.text.labels import LabelSet, label_set
from tasks.text.readers import Rows, open_file
from tasks.text.scratch import ReadSplit, read_split, write_split
from tasks.text.selection import all_rows, any_of, limited, made_splits, repeated, shared_rows, within
from tasks.text.sources import SPLITS, Wanted, resolve_source

if TYPE_CHECKING:
    from tasks.text.selection import Hashes, Mask

Split = Literal["train", "validation", "test"]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class DataConfig(StageConfig):
    """source: a folder with one file per split, a glob, a file, a URL, a hub name, or `builtin:stdlib`; name: the hub
    dataset's configuration, or the built-in corpus's view (`packages`, `questions`); revision: of a hub name;
    format: when file names don't tell; splits: ours -> a split's name or file at the source.

    text: the column or columns to classify; label: a column, or a rule such as `rating >= 4`; labels: names by id, when
    the data does not tell them; columns: further ones to keep, ours -> theirs (all, when nothing is named).

    split: fractions of train that make missing splits; limit: rows a split, a seeded sample; dedupe: drop rows of train
    whose text repeats an earlier one (whatever its label: the first stays) or stands in another split."""

    source: Annotated[str, NOT_KEYED]
    name: Annotated[str | None, NOT_KEYED] = None
    revision: Annotated[str | None, NOT_KEYED] = None
    format: Annotated[Literal["parquet", "csv", "tsv", "jsonl", "arrow", "txt"] | None, NOT_KEYED] = None
    splits: Annotated[dict[Split, str], NOT_KEYED] = Field(default_factory=dict)
    text: str | tuple[str, ...] | None = None
    label: str | None = None
    labels: tuple[str, ...] | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    split: dict[Literal["validation", "test"], Fraction] = Field(default_factory=dict)
    split_seed: NonNegativeInt = 0
    limit: PositiveInt | dict[Split, PositiveInt] | None = None
    shuffle_seed: NonNegativeInt = 0
    dedupe: bool = False

    @field_validator("format", mode="before")
    @classmethod
    def _common_names(cls, value: Any) -> Any:
        return (
            {"json": "jsonl", "text": "txt", "ndjson": "jsonl"}.get(value, value) if isinstance(value, str) else value
        )

    @model_validator(mode="after")
    def _fits_together(self) -> DataConfig:
        if sum(self.split.values()) >= 1:
            raise ValueError("the fractions of `split` leave nothing to train on: their sum must be below 1")
        if self.labels is not None and (len(set(self.labels)) != len(self.labels) or len(self.labels) < 2):
            raise ValueError("`labels` needs at least two names, each once")
        if self.labels is not None and self.label is None:
            raise ValueError("`labels` names what `label` holds: set `label` too")
        return self


def data_source(config: DataConfig, resolver: Resolver) -> Source:
    """`data.source`, pinned to exact bytes; local files and the corpus without the network. ConfigError, DataError."""
    if config.source.startswith("builtin:"):
        from tasks.corpus import corpus_source

        return corpus_source(config.source, config.name, resolver)
    wanted = Wanted(config.format, {str(ours): theirs for ours, theirs in config.splits.items()})
    return resolve_source(config.source, config.name, config.revision, wanted, resolver)


@stage(kind="rows")
def load_data(config: DataConfig, source: Source, out: Workdir) -> Meta:
    """source -> `<split>.parquet` with the kept columns and, where there is a label, `label: int64`.

    meta: splits {name: rows}, columns, text (the text columns), labels (names by id, or null), dropped {reason: rows},
    leakage {"train/test": rows of the first whose text stands in the second}."""
    columns, read = _read(config, source, out)
    _unchanged(source)
    labels = _label_set(config, columns, read)
    parts = _parts(config, read)
    keep, dropped, leakage = _drop(config, parts)
    _report(config, dropped, leakage, out)
    rows = {name: int(mask.sum()) for name, mask in keep.items()}
    for name, part in parts.items():
        if rows[name] == 0:
            raise DataError(
                f"the split {name} is empty after splitting and dropping", "check data.split and data.dedupe"
            )
        write_split(part.read.path, within(part.mask, keep[name]), labels, out.path / f"{name}.parquet")
    return {
        "splits": rows,
        "columns": [*(ours for ours, _ in columns.kept), *(["label"] if labels else [])],
        "text": list(columns.text),
        "labels": labels.names if labels else None,
        "dropped": dropped,
        "leakage": leakage,
        "metrics": {f"{name}_rows": count for name, count in rows.items()},
    }


class Part(NamedTuple):
    """A split to be: the rows of `read` where `mask`."""

    read: ReadSplit
    mask: Mask

    @property
    def hashes(self) -> Hashes:
        return self.read.hashes[self.mask]


def open_source(source: Source) -> dict[str, list[Rows]]:
    """The splits' rows, opened but not read: of files, of a hub dataset, of the built-in corpus."""
    if "builtin" in source.location:
        from tasks.corpus import corpus_splits

        return {split: [rows] for split, rows in corpus_splits(source.location["view"]).items()}
    if "hub" in source.location:
        from tasks.text.hub import hub_splits

        return {split: [rows] for split, rows in hub_splits(source.location).items()}
    opened: dict[str, list[Rows]] = {}
    for file in source.location["files"]:
        opened.setdefault(file["split"], []).append(open_file(Path(file["path"]), file["format"], file["name"]))
    return opened


def _read(config: DataConfig, source: Source, out: Workdir) -> tuple[Columns, dict[str, ReadSplit]]:
    """Every split in scratch, under the columns that the first one fixes."""
    opened = open_source(source)
    for split, files in opened.items():
        if not any(rows.schema.names for rows in files):
            raise DataError(
                f"the split {split} is empty: {files[0].name} holds no rows", "give it rows, or leave it out"
            )
    columns = choose_columns(next(iter(opened.values()))[0], config.text, config.label, config.columns)
    out.scratch.mkdir(parents=True, exist_ok=True)
    return columns, {split: read_split(split, files, columns, out) for split, files in opened.items()}


def _unchanged(source: Source) -> None:
    """DataError when a file changed after its digest was taken: what was read is not what the key says."""
    for file in source.location.get("files", ()):
        if "stamp" in file and stamp(file["path"]) != file["stamp"]:
            raise DataError(f"{file['name']} changed while the run was reading it", "run again")


def _label_set(config: DataConfig, columns: Columns, read: dict[str, ReadSplit]) -> LabelSet | None:
    """The set that train (or the recipe) fixes; every split's labels are in it."""
    if columns.label is None:
        return None
    if columns.rule and config.labels and len(config.labels) != 2:
        raise ConfigError(
            f"data.labels: a rule makes two labels, not {len(config.labels)}", "name the false, then the true"
        )
    labels = label_set(read["train"].seen, config.labels, columns.classes, columns.rule)
    for rows in read.values():
        labels.check(rows.seen)
    return labels


def _parts(config: DataConfig, read: dict[str, ReadSplit]) -> dict[str, Part]:
    """The source's splits and, where it lacks them, those that `split` makes from train."""
    fractions = {str(name): part for name, part in config.split.items() if name not in read}
    masks = made_splits(read["train"].hashes, fractions, config.split_seed)
    made = {name: Part(read["train"], mask) for name, mask in masks.items()}
    whole = {name: Part(rows, all_rows(rows.hashes)) for name, rows in read.items() if name != "train"}
    parts = {**made, **whole}
    return {name: parts[name] for name in SPLITS if name in parts}


def _drop(config: DataConfig, parts: dict[str, Part]) -> tuple[dict[str, Mask], Meta, Meta]:
    """(masks of what stays, dropped {reason: rows}, leakage {"train/test": rows})."""
    hashes = {name: part.hashes for name, part in parts.items()}
    shared = shared_rows(hashes)
    leakage = {f"{a}/{b}": int(mask.sum()) for (a, b), mask in shared.items()}
    keep = {name: all_rows(values) for name, values in hashes.items()}
    dropped: Meta = {}
    if config.dedupe:
        twice = repeated(hashes["train"])
        leaked = any_of([mask for (a, _), mask in shared.items() if a == "train"], twice) & ~twice
        keep["train"] = ~(twice | leaked)
        dropped = {"duplicate": int(twice.sum()), "leaked": int(leaked.sum())}
    given = config.limit
    limits = {name: given.get(name) if isinstance(given, dict) else given for name in SPLITS}  # type: ignore[call-overload]
    before = sum(int(mask.sum()) for mask in keep.values())
    for name, mask in keep.items():
        if (most := limits.get(name)) is not None:
            keep[name] = limited(mask, most, config.shuffle_seed, name)
    dropped["limit"] = before - sum(int(mask.sum()) for mask in keep.values())
    return keep, {reason: count for reason, count in dropped.items() if count}, leakage


def _report(config: DataConfig, dropped: Meta, leakage: Meta, out: Workdir) -> None:
    shared = {pair: count for pair, count in leakage.items() if count}
    if shared and not config.dedupe:
        told = ", ".join(f"{count} of {pair.replace('/', ' also in ')}" for pair, count in shared.items())
        out.warn(f"texts shared by splits: {told}; data.dedupe=true drops those of train")
    if dropped:
        out.info("rows dropped: " + ", ".join(f"{count} {reason}" for reason, count in dropped.items()))
