"""Write functions of the user's and their tests, for `trnflow new --code`: one that makes texts, and a metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from trnflow.flows.authoring.draft import Draft
from trnflow.tasks.artifact import Meta

FORMATS, METRICS = "formats", "metrics"
OTHERS = ("label", "answer", "response", "tools", "documents")
"""What columns are taken for that the function does not write."""
WHOLE = ("token_classification", "preference", "unpaired_preference")
"""Tasks whose rows are more than one text, so that no function writes them."""


class Example(NamedTuple):
    """A metric of a task. values: of predictions, of which it is `result`."""

    name: str
    what: str
    less_is_better: bool
    body: str
    values: dict[str, str]
    result: float


LANGUAGE = Example(
    "highest_loss", "The loss of the row that is predicted worst, in nats a token.", True,
    "float((p.nll / p.tokens.clip(min=1)).max())", {"nll": "[2.0, 6.0]", "tokens": "[2, 3]"}, 2.0,
)  # fmt: skip
SHARE = Example(
    "share_right", "The share of predictions that are right.", False,
    "float((p.expected == p.predicted).mean())", {"expected": "[0, 1, 1, 0]", "predicted": "[0, 1, 0, 0]"}, 0.75,
)  # fmt: skip
EXAMPLES = {
    **dict.fromkeys(("instruction", "chat", "text"), LANGUAGE),
    "regression": Example(
        "largest_error", "The error of the row that is predicted worst.", True,
        "float(abs(p.expected - p.predicted).max())", {"expected": "[[1.0], [2.0]]", "predicted": "[[1.5], [2.0]]"}, 0.5,
    ),
    "reranker": SHARE._replace(
        body="float(((p.expected[:, 0] >= 0.5) == (p.predicted[:, 0] >= 0.5)).mean())",
        values={"expected": "[[0.0], [1.0], [1.0], [0.0]]", "predicted": "[[0.1], [0.9], [0.2], [0.3]]"},
    ),
    "embedding": Example(
        "mean_cosine", "The mean cosine of the first two texts of a row.", False,
        "float(p.predicted.mean())", {"expected": "[[1.0], [0.0]]", "predicted": "[[0.75], [0.25]]"}, 0.5,
    ),
    "preference": SHARE._replace(
        what="The share of pairs whose chosen answer has the higher reward.",
        body="float((p.probabilities[:, 0] > p.probabilities[:, 1]).mean())",
        values={"probabilities": "[[0.5, 0.1], [0.2, -0.4], [0.3, 0.9], [1.0, 0.8]]"},
    ),
    "unpaired_preference": SHARE._replace(
        what="The share of answers whose reward is on the side of 0 of their mark.",
        body="float(((p.probabilities[:, 0] > 0) | (p.probabilities[:, 1] < 0)).mean())",
        values={"probabilities": "[[0.5, np.nan], [np.nan, -0.4], [-0.3, np.nan], [np.nan, -0.8]]"},
    ),
    "token_classification": SHARE._replace(
        body="float((p.expected == p.predicted)[p.expected != -100].mean())",
        values={"expected": "[[0, 1, -100], [1, 0, -100]]", "predicted": "[[0, 1, 0], [0, 0, 0]]"},
    ),
}  # fmt: skip
"""{value of `format.task`: metric}; of other tasks SHARE."""


def code_of(draft: Draft) -> dict[Path, str]:
    """Let the recipe name functions, and return {file: text} of them and of their tests."""
    form, files = draft.settings["format"], dict[Path, str]()
    if "words" not in form and "text_pair" not in form and form["task"] not in WHOLE:
        form.pop("prompt_template", None)
        form["make"] = f"{FORMATS}:make"
        draft.why["format.make"] = f"in {FORMATS}.py; test_{FORMATS}.py tests it"
        files |= _format(draft)
    example = EXAMPLES.get(form["task"], SHARE)
    metric = {"function": f"{METRICS}:{example.name}", "less_is_better": example.less_is_better}
    draft.settings.setdefault("evaluate", {}).setdefault("metrics", []).append(metric)
    draft.why["evaluate.metrics"] = f"in {METRICS}.py; test_{METRICS}.py tests it"
    return files | _metric(example)


def _format(draft: Draft) -> dict[Path, str]:
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
    return {Path(f"{FORMATS}.py"): code, Path(f"test_{FORMATS}.py"): test}


def _metric(example: Example) -> dict[Path, str]:
    code = f'''"""What a trained model is judged by: an edit here scores the kept predictions again."""


def {example.name}(p) -> float:
    """{example.what} p: the predictions of all rows (docs/own_code.md)."""
    return {example.body}
'''
    values = ", ".join(f"{name}=np.array({value})" for name, value in example.values.items())
    test = f"""from types import SimpleNamespace

import numpy as np
from metrics import {example.name}


def test_{example.name}():
    predictions = SimpleNamespace({values})
    assert {example.name}(predictions) == {example.result}
"""
    return {Path(f"{METRICS}.py"): code, Path(f"test_{METRICS}.py"): test}
