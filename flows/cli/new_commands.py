"""`trnflow new DATA`: look at data, and write a recipe for it; `trnflow new config.yml` translates another program's config."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from trnflow.flows.authoring.choose import choose
from trnflow.flows.authoring.draft import Draft, Question, overrides_in
from trnflow.flows.authoring.given_model import given_model
from trnflow.flows.authoring.look import Looked, look
from trnflow.flows.authoring.own_code import code_of
from trnflow.flows.authoring.write import (
    PREFECT_FILE,
    column_json,
    complete,
    deployment_text,
    exists,
    given_origins,
    given_settings,
    has_hub,
    name_of,
    recipe_text,
    report,
    test_rows,
    write_recipe,
)
from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import emit, say
from trnflow.flows.recipes.files import Origins
from trnflow.flows.recipes.recipe import load
from trnflow.flows.recipes.schema import Tree
from trnflow.flows.runner.work_folders import open_home
from trnflow.tasks.data.load.config import SourceConfig
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.sources.resolver import Resolver


def add_commands(sub: Any, common: ArgumentParser) -> None:
    parser = add_command(sub, "new", new, common, "look at a file of yours and write a recipe for it")
    parser.epilog = (
        "Settings answer its questions and go into the recipe: `trnflow new tickets.csv data.label=team "
        "train.epochs=1`."
    )
    parser.add_argument(
        "data",
        help="a file, a folder with a file for each split, a URL, a name on the hub, or a config of axolotl or LLaMA-Factory",
    )
    parser.add_argument(
        "--code",
        action="store_true",
        help="also write formats.py and metrics.py, your own functions of a row and of predictions, and their tests",
    )
    parser.add_argument(
        "--deploy", metavar="CRON", help='also write prefect.yaml, which retrains by a schedule such as "0 3 * * *"'
    )


def new(options: Namespace) -> int:
    """Write NAME.yaml, with --code your functions and their tests, with --deploy prefect.yaml, into the working folder; say what
    was taken for what.

    Raises Question (exit code 2) for what the data leaves open, unless a terminal can be asked.
    """
    if options.data.lower().endswith((".yaml", ".yml")):
        return _translate(options)
    given = given_settings(options.overrides)
    name = name_of(options.data, given)
    file, deployment = Path(f"{name}.yaml"), Path(PREFECT_FILE)
    for path in (file, *([deployment] if options.deploy else [])):
        if os.path.lexists(path):
            raise exists(path)
    if options.deploy:
        from trnflow.flows.services.deploy import check_cron

        check_cron(options.deploy)
    resolver = Resolver(open_home())
    looked = look(_source(options.data, given), resolver)
    draft = _choose(looked, given, options)
    hub, model = has_hub(draft.base, given, resolver), given_model(given, resolver)
    complete(draft, looked, options.data, given, hub=hub, model=model)
    functions = code_of(draft) if options.code else {}
    text = recipe_text(draft, looked, name, hub=hub)
    written = _write(file, text, functions, options.deploy, given_origins(options.overrides))
    note = _promise(file, test_rows(draft, looked), resolver.memo) if options.deploy else ""
    _print(options, draft, looked, written, hub, note)
    return 0


def _write(file: Path, text: str, functions: dict[Path, str], cron: str | None, origins: Origins) -> list[str]:
    """Create the recipe, functions and deployment, and return the files. Raises ConfigError for one that is in the way."""
    for path in functions:
        if os.path.lexists(path):
            raise exists(path)
    for path, code in functions.items():
        path.write_text(code, encoding="utf-8")
    try:
        write_recipe(file, text, origins)
    except TrnflowError:
        for path in functions:
            path.unlink()
        raise
    if cron:
        with Path(PREFECT_FILE).open("x", encoding="utf-8") as stream:
            stream.write(deployment_text(str(file), cron))
    return [str(file), *map(str, functions), *([PREFECT_FILE] if cron else [])]


def _translate(options: Namespace) -> int:
    """Write a recipe from another program's config; say what became of each of its keys."""
    from trnflow.flows.translation import write

    if options.code:
        raise ConfigError("--code is for data, and a config is translated as it is", "leave --code out")
    t = write.translated(Path(options.data), options.overrides)
    file = Path(f"{t.name}.yaml")
    for path in (file, *([Path(PREFECT_FILE)] if options.deploy else [])):
        if os.path.lexists(path):
            raise exists(path)
    if options.deploy:
        from trnflow.flows.services.deploy import check_cron

        check_cron(options.deploy)
    origins = {**t.origins, **given_origins(options.overrides)}
    written = _write(file, write.recipe_text(t), t.functions, options.deploy, origins)
    document = {
        "written": written,
        "program": t.program,
        "keys": [
            {"key": key, "value": entry.value, "outcome": entry.outcome, "text": entry.text}
            for key, entry in t.entries.items()
        ],
        "settings": t.settings,
        "notes": t.notes,
    }
    then = f"`trnflow preview {file}` shows rows as the model reads them; `trnflow plan {file}` says what would run"
    emit(options, document, *write.table(t), f"wrote {' and '.join(written)}: {then}")
    return 0


def _promise(file: Path, rows: int, memo: Memo) -> str:
    """Return what gain wins on the test rows that the first retrain freezes, if they are few, else ""."""
    from trnflow.flows.champions.budget import promise

    expected = promise(load(str(file)), rows, memo)
    return f"the first retrain freezes about {rows} test rows: {expected.text}" if rows and expected.is_few else ""


def _source(data: str, given: Tree) -> SourceConfig:
    """Return the settings by which the data is read. Raises ConfigError for a wrong one."""
    from pydantic import ValidationError

    named = {name: given.get("data", {})[name] for name in SOURCE_SETTINGS if name in given.get("data", {})}
    try:
        return SourceConfig(source=data, **named)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ConfigError(
            f"data.{'.'.join(map(str, problem['loc']))}: {problem['msg']}", "`trnflow settings data` says what it takes"
        ) from error


SOURCE_SETTINGS = ("name", "revision", "format", "splits")
"""The settings of `data` that decide which rows are looked at."""


def _choose(looked: Looked, given: Tree, options: Namespace) -> Draft:
    """Choose, and put questions to a terminal; their answers become settings."""
    while True:
        try:
            return choose(looked, given)
        except Question as question:
            if options.json or not sys.stdin.isatty():
                raise
            answer = _ask(question)
            for section, settings in given_settings(answer).items():
                given.setdefault(section, {}).update(settings)


def _ask(question: Question) -> list[str]:
    """Ask for one of the choices by its number; return its settings."""
    choices = list(question.choices)
    say(question.message)
    for number, choice in enumerate(choices, 1):
        say(f"  {number}  {choice} ({question.choices[choice]})")
    while True:
        sys.stderr.write(f"1 to {len(choices)}: ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:
            raise question
        if answer.strip().isdecimal() and 0 < int(answer) <= len(choices):
            return overrides_in(choices[int(answer) - 1])


def _print(options: Namespace, draft: Draft, looked: Looked, written: list[str], hub: bool, note: str) -> None:
    lines = report(draft, looked)
    document = {
        "written": written,
        "task": draft.settings["format"]["task"],
        "taken": [{"as": role, **column_json(column)} for role, column in draft.taken],
        "columns": [column_json(column) for column in looked.columns.values()],
        "rows": looked.rows,
        "whole": looked.is_whole,
        "extends": draft.base,
        "from_scratch": not hub,
        "settings": draft.settings,
        "notes": [note] if note else [],
    }
    then = f"`trnflow run {written[0]}` trains; `trnflow preview {written[0]}` shows rows as the model reads them"
    if options.deploy:
        then += "; `trnflow deploy` registers the schedule"
    lines += [f"note: {note}"] if note else []
    emit(options, document, *lines, f"wrote {' and '.join(written)}: {then}")
