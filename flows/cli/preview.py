"""`trnflow preview RECIPE`: print the first rows as the model reads them."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from typing import TextIO

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.display.progress import Progress
from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.runner.context import new_run_id, open_context
from trnflow.flows.runner.run import settle
from trnflow.flows.runner.work_folders import workplace
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.data.format.preview import Row, preview
from trnflow.tasks.events import EventLog
from trnflow.tasks.events.retention import PREVIEW
from trnflow.tasks.system.terminal import one_line, printable

OPEN, CLOSE = "⟦", "⟧"


def add_commands(sub: _SubParsersAction[ArgumentParser], recipe: ArgumentParser) -> None:
    parser = add_command(sub, "preview", show_rows, recipe, "print the first rows as the model reads them")
    parser.add_argument("rows", nargs="?", type=int, default=3, metavar="N", help="the number of rows (3)")
    parser.add_argument("--split", default="train", help="train, validation or test")


def show_rows(options: Namespace) -> int:
    """Print the first rows of a split, decoded from their tokens. Data stages run if they are not cached."""
    context = open_context(options.recipe, options.overrides)
    store = context.store
    with Progress() as progress:
        run = context.for_run(EventLog(progress), run=new_run_id() + PREVIEW, kind="preview")
        artifact = settle(finetune(context.recipe), run, until=ROLES["tokens"]).artifact(ROLES["tokens"])
    with workplace(store.home, "preview") as work:
        folder = store.link_files(artifact, work / "tokens")
        tokens: Input = Input(folder, artifact.kind, artifact.meta, artifact.digest)
        rows = preview(tokens, options.split, options.rows)
    if options.json:
        # printed without hiding secrets: rows are the user's data, not settings
        document = {"schema": 1, "split": options.split, "rows": [_json(row) for row in rows]}
        sys.stdout.write(f"{json.dumps(document)}\n")
    else:
        print_rows(rows, sys.stdout)
    return 0


def print_rows(rows: list[Row], stream: TextIO) -> None:
    """Write number, tokens, label and text of each row; supervised text is green, or in ⟦brackets⟧."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True)
    for row in rows:
        what = f"label {one_line(row.label)}" if row.label is not None else f"{row.supervised} trained on"
        console.print(Text(f"row {row.number}: {row.tokens} tokens, {what}", style="bold"))
        text = Text()
        for span in row.spans:
            if console.is_terminal:
                text.append(printable(span.text), style="green" if span.train else "")
            else:
                shown = printable(span.text)
                text.append(f"{OPEN}{shown}{CLOSE}" if span.train else shown)
        console.print(text, end="\n\n")


def _json(row: Row) -> Meta:
    return {**row._asdict(), "spans": [span._asdict() for span in row.spans]}
