"""`trnflow predict MODEL [TEXT ...]`: print a model's predictions for texts or rows, or serve a page to try
it."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trnflow.flows.cli.arguments import add_command, add_model, number
from trnflow.flows.cli.model.serve import SECONDS, check_installed, in_time, serve
from trnflow.flows.cli.output import say, tell
from trnflow.flows.display.progress import Progress
from trnflow.flows.finetune import ROLES
from trnflow.flows.models import NEW_TOKENS, FoundModel, find_model
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.conversation import Row
from trnflow.tasks.data.limited_process import keep_servers
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events import EventLog
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.prediction.carried import CUT, REMARK, ROW, answer_types, carried_columns
from trnflow.tasks.prediction.outputs import goes_to_stdout, json_text, new_rows, output_format
from trnflow.tasks.prediction.predict import Model, Predict, open_model, predictions, predictor
from trnflow.tasks.prediction.prompts import Named
from trnflow.tasks.prediction.row_files import RowFile
from trnflow.tasks.prediction.separate_process import Bounds, PredictingProcess
from trnflow.tasks.system.model_process import predicting_environ
from trnflow.tasks.system.terminal import one_line, printable

TEXTS_SHOWN = 60
"""The most characters of a text that are printed beside its label."""


def add_commands(sub: Any, store: ArgumentParser) -> None:
    parser = add_command(sub, "predict", predict, store, "predict texts or the rows of a file with a trained model")
    parser.epilog = "Text after -- is never read as an option or a setting: `trnflow predict demo -- train.epochs=3`."
    add_model(parser)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text to classify, a question, or a user's turn")
    parser.add_argument("--file", type=Path, help="rows: json lines, csv or parquet, with the columns of training")
    parser.add_argument(
        "--out",
        type=Path,
        help="write the predictions here, in the order of the rows: .csv, .parquet, or json lines (.jsonl, no ending, -)",
    )
    parser.add_argument(
        "--columns",
        action="append",
        metavar="NAME,...",
        help="columns of the rows that the predictions carry, such as an id; default: those that the model does not read",
    )
    parser.add_argument("--export", action="store_true", help="predict with the exported model (classifiers only)")
    parser.add_argument(
        "--max-new-tokens",
        type=number(int, 1, 1 << 24),
        default=NEW_TOKENS,
        metavar="N",
        help="the most tokens of an answer (%(default)s)",
    )
    parser.add_argument("--serve", action="store_true", help="open a page at 127.0.0.1 to try the model (extra: serve)")
    parser.add_argument(
        "--port", type=number(int, 1, 65535), metavar="N", help="the port of --serve; default: a free one from 7860"
    )


def predict(options: Namespace) -> int:
    """Print a prediction for each text or row; with --out write them to a file; with --serve serve a page."""
    _check(options)
    export, weights = ROLES["export"], ROLES["model"]
    want = (export, weights) if options.export else (weights, export)
    named = find_model(options.recipe, options.overrides, root=options.store, want=want)
    if not options.json:
        say(*(f"note: {note}" for note in named.notes))
    os.environ.update(predicting_environ())  # read by libraries when they are imported
    keep_servers()  # a model may write for longer than a template's process waits
    with named.folder() as folder:
        model = open_model(folder, named.artifact.kind, named.artifact.meta)
        if options.serve:
            return _serve(options, named, model)
        given = _given(options, model)
        results = _counted(predictions(model, given.rows, options.max_new_tokens), given.total)
        if given.kept is not None:
            results = ({**kept, **result} for result, kept in zip(results, given.kept, strict=True))
        if options.out:
            _write(options, named, model, results, given.types)
        else:
            _print(options, named, model, results)
    return 0


def _check(options: Namespace) -> None:
    """Raise ConfigError for arguments that don't go together, MissingDependency for --serve without its packages."""
    if options.serve:
        if options.texts or options.file or options.out or options.columns:
            raise ConfigError("--serve reads its texts from the page", "leave texts, --file, --out and --columns away")
        check_installed()
    elif options.port is not None:
        raise ConfigError("--port is the port of --serve", "add --serve")
    elif bool(options.texts) == bool(options.file):
        both = "a text or --file, not both" if options.texts else "a text, or rows by --file"
        raise ConfigError(f"predict needs {both}", "give one; a text that looks like a setting goes after --")
    elif options.columns and not options.file:
        raise ConfigError("--columns names columns of the rows in --file", "give rows by --file")
    if options.out and options.json and goes_to_stdout(options.out):
        raise ConfigError("--out and --json both write to standard output", "leave one out")
    if options.out:
        output_format(options.out)


class Given(NamedTuple):
    """The rows to predict.

    Attributes:
        kept: What the prediction of each row carries; None: nothing.
        types: {column in `kept`: its type in Arrow}.
    """

    rows: Iterable[Named]
    total: int
    kept: Iterable[Row] | None
    types: dict[str, Any]


def _given(options: Namespace, model: Model) -> Given:
    if not options.file:
        texts = [(f"text {number}", model.shape.of_text(text)) for number, text in enumerate(options.texts, 1)]
        return Given(texts, len(texts), None, {})
    file = RowFile(options.file, model.shape.columns, model.shape.optional)
    for name, near in file.misspelt.items():
        say(f"note: {file.name} has no column {name}, which the model reads where there is one: is {near} it?")
    chosen = None if options.columns is None else _columns_in(options.columns, file.schema.names)
    if chosen and (of_bytes := [name for name in chosen if name in file.bytes]):
        raise ConfigError(f"the column {of_bytes[0]} holds bytes, which no prediction carries", "leave it out")
    there = [name for name in file.schema.names if name not in file.bytes]
    carried, left_out = carried_columns(model.rows, there, chosen)
    whys = [f"{name} (a prediction's own name)" for name in left_out]
    whys += [f"{name} (bytes)" for name in file.bytes if chosen is None]
    if whys:
        say(f"note: the predictions do not carry {', '.join(whys)}")
    types = {name: file.schema.field(name).type for name in carried}
    return Given(file, file.count, file.values(carried) if carried else None, types)


def _columns_in(given: list[str], there: list[str]) -> list[str]:
    """Return the columns that `--columns` names, between commas; a name may hold a comma if it stands alone."""
    parts = [[text] if text in there else text.split(",") for text in given]
    return [name for names in parts for name in map(str.strip, names) if name]


def _serve(options: Namespace, named: FoundModel, model: Model) -> int:
    """Serve the model's page until Ctrl-C; print its address when it answers. Return exit code 0."""

    def show(url: str) -> None:
        if options.json:
            _emit({**_about(named, model), "url": url})
        else:
            tell(f"{options.recipe} at {url} (Ctrl-C ends it)")
        sys.stdout.flush()

    serve(model, _in_time(options, named, model), options.recipe, options.port, show)
    return 0


def _in_time(options: Namespace, named: FoundModel, model: Model) -> Predict:
    """Load the model; return a function that predicts within SECONDS a row."""
    most = options.max_new_tokens
    if not kind_of(model.rows.task).per_row:
        return predictor(model, most, SECONDS)  # ends between two tokens
    kind, meta = named.artifact.kind, named.artifact.meta
    return in_time(lambda seconds: PredictingProcess(model.folder, kind, meta, most, Bounds(seconds=seconds)), SECONDS)


def _counted(results: Iterator[Meta], total: int) -> Iterator[Meta]:
    """Show progress on stderr, and say at the end how many texts were too long, or empty."""
    cut = empty = 0
    with Progress() as progress:
        log = EventLog(progress)
        progress.begin(log.state.begin("predict"))
        count = partial(log.write, "progress", stage="predict", total=total, unit="rows", values={})
        # a batch's rows come at once: without the time before the first, the rest would seem to take none
        count(done=0)
        for done, result in enumerate(results, 1):
            cut, empty = cut + (CUT in result), empty + (REMARK in result)
            count(done=done)
            yield result
    if cut:
        say(f"note: {cut} of {total} texts are too long for the model and were cut (`cut`: tokens left out)")
    if empty:
        say(f"note: {empty} of {total} texts are empty and were not judged (`remark`)")


def _write(options: Namespace, named: FoundModel, model: Model, results: Iterator[Meta], types: dict[str, Any]) -> None:
    """Write the predictions to --out, each with the number of its row."""
    count = 0
    with new_rows(options.out, options.file, {ROW: "long", **types, **answer_types(model.rows)}) as append:
        for count, result in enumerate(results, 1):
            append({ROW: count, **result})
    if options.json:
        _emit({**_about(named, model), "out": str(options.out), "rows": count})
    elif not goes_to_stdout(options.out):
        tell(f"{count} predictions in {options.out}")


def _print(options: Namespace, named: FoundModel, model: Model, results: Iterator[Meta]) -> None:
    if options.json:
        _emit({**_about(named, model), "results": list(results)})
        return
    for result in results:
        sys.stdout.write(f"{printable(_shown(result, kind_of(model.rows.task)))}\n")


def _about(named: FoundModel, model: Model) -> Meta:
    return {"schema": 1, "model": named.artifact.digest, "task": model.rows.task, "champion": named.champion}


def _emit(document: Meta) -> None:
    """Print a JSON document as it is: texts are the user's and the model's, not settings with secrets."""
    sys.stdout.write(f"{json_text(document, ascii=True)}\n")


def _shown(result: Meta, kind: Kind) -> str:
    """A prediction as text: `0.98  label  text`, or the prompt and what was generated."""
    if "text" in result:
        text = " ".join(result["text"].split())
        short = text if len(text) <= TEXTS_SHOWN else f"{text[: TEXTS_SHOWN - 1]}…"
        return one_line(f"{result.get(REMARK) or kind.line(result)}  {short}")
    return f"{result['prompt']}{result['generated']}\n"
