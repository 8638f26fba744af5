"""`trnflow preview`: the first rows of a recipe as the model will read them, what is trained on in colour."""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser, Namespace, _SubParsersAction
from pathlib import Path
from typing import TextIO

from flows import report, settings
from flows.commands import emit_json
from flows.run import Options, execute, open_store
from tasks.artifact import Input
from tasks.text.preview import Row, preview

OPEN, CLOSE = "⟦", "⟧"


def add_commands(sub: _SubParsersAction[ArgumentParser], recipe: ArgumentParser) -> None:
    """Make the parser know `preview`."""
    parser = sub.add_parser("preview", parents=[recipe], help="the first rows as the model reads them")
    parser.add_argument("rows", nargs="?", type=int, default=3, metavar="N", help="how many (3)")
    parser.add_argument("--split", default="train", help="train, validation or test")
    parser.set_defaults(command=show_rows)


def show_rows(options: Namespace) -> int:
    recipe = settings.load(options.recipe, options.overrides)
    store = open_store(recipe)
    store.prepare()
    progress = report.Progress()
    try:
        result = execute(recipe, store, Options(until="tokenize_text"), listeners=(progress,))
    finally:
        progress.close()
    if result.error is not None:
        raise result.error
    artifact = result.outcomes[-1].artifact
    assert artifact is not None
    with tempfile.TemporaryDirectory(dir=store.home) as folder:
        tokens = Input(store.checkout(artifact, Path(folder) / "tokens"), artifact.kind, artifact.meta, artifact.digest)
        rows = preview(tokens, options.split, options.rows)
    if options.json:
        emit_json({"schema": 1, "split": options.split, "rows": [_json(row) for row in rows]})
    else:
        print_rows(rows, sys.stdout)
    return 0


def print_rows(rows: list[Row], stream: TextIO) -> None:
    """On a terminal what is trained on is green, elsewhere it stands in ⟦brackets⟧."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True)
    for row in rows:
        what = f"label {row.label}" if row.label is not None else f"{row.supervised} trained on"
        console.print(Text(f"row {row.number}: {row.tokens} tokens, {what}", style="bold"))
        text = Text()
        for span in row.spans:
            if console.is_terminal:
                text.append(span.text, style="green" if span.train else "")
            else:
                text.append(f"{OPEN}{span.text}{CLOSE}" if span.train else span.text)
        console.print(text, end="\n\n")


def _json(row: Row) -> dict[str, object]:
    return {**row._asdict(), "spans": [span._asdict() for span in row.spans]}
