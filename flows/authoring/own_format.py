"""Write a function of the user's that makes the texts, and its test, for `trnflow new --code`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnflow.flows.authoring.choose import Draft
from trnflow.tasks.artifact import Meta

CODE, TEST = Path("formats.py"), Path("test_formats.py")
NAME = "formats:make"
OTHERS = ("label", "answer", "response", "tools", "documents")
"""What columns are taken for that the function does not write."""


def name_make(draft: Draft) -> None:
    """Let the recipe name the function, in place of a prompt's template."""
    form = draft.settings["format"]
    form.pop("prompt_template", None)
    form["make"] = NAME
    draft.why["format.make"] = f"in {CODE}; {TEST} tests it"


def code_and_test(draft: Draft) -> dict[Path, str]:
    """Return {file: text} of a function that reads the draft's columns, and of its test."""
    columns = [column.name for role, column in draft.taken if role not in OTHERS]
    row: Meta = {name: f"{name} 1" for name in columns}
    body, returns = 'return "\\n".join(row[name] for name in COLUMNS if row[name])', "str | None"
    made: Any = "\n".join(row.values())
    if draft.settings["format"]["task"] == "chat":
        row = {columns[0]: [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
        body, returns, made = 'return {"messages": row[COLUMNS[0]]}', "dict | None", {"messages": row[columns[0]]}
    code = f'''"""What the model reads of a row: an edit here runs `format_prompts` and what follows again."""

COLUMNS = {tuple(columns)!r}


def make(row: dict) -> {returns}:
    """Return the model's input; None leaves the row out."""
    {body}
'''
    test = f"""from formats import make


def test_make():
    assert make({row!r}) == {made!r}
"""
    return {CODE: code, TEST: test}
