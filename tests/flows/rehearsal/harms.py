"""What planted faults do to a run that ends well all the same: its model is worth nothing, or its figures are of other rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from tests.flows.rehearsal.faults import WORDS
from trnflow.flows.runner.run import Result
from trnflow.tasks.artifact import Meta
from trnflow.tasks.stage import read_json
from trnflow.tasks.store import Store


class Ended(NamedTuple):
    """A run that ended well.

    Attributes:
        metas: {stage: metadata of its artifact}.
        report: report.json.
        texts: Those that were evaluated, as the model reads them.
        saved: Checkpoints that training saved.
    """

    metas: dict[str, Meta]
    report: Meta
    texts: list[str]
    saved: float

    def labels(self, **wanted: float) -> set[str]:
        """Return the classes of the report with these values."""
        classes = self.report["classes"]
        return {one["label"] for one in classes if all(one[name] == value for name, value in wanted.items())}


def ended(result: Result, store: Store, folder: Path) -> Ended:
    """Read what a run made; the files are linked into `folder`."""
    made = {step.name: step.artifact for step in result.steps if step.artifact is not None}
    evaluation = store.link_files(made["evaluate_model"], folder / "evaluation")
    texts = pq.read_table(evaluation / "predictions.parquet")["text"].to_pylist()
    metas = {name: artifact.meta for name, artifact in made.items()}
    saved = next(step.figures.get("checkpoints", 0) for step in result.steps if step.name == "train")
    return Ended(metas, read_json(evaluation / "report.json"), texts, saved)


def _guesses(run: Ended) -> bool:
    """The classes are so many that the model is wrong about most."""
    return run.report["metrics"]["accuracy"] < 0.5


def _reads_none_of(*patterns: str) -> Callable[[Ended], bool]:
    return lambda run: (
        bool(run.texts) and not any(re.search(pattern, text) for pattern in patterns for text in run.texts)
    )


def _lost_rows(run: Ended) -> bool:
    texts, tokens = run.metas["format_prompts"]["dropped"], run.metas["tokenize_text"]
    return sum(texts.values()) + sum(tokens["unsupervised"].values()) > 0


def _cut_rows(run: Ended) -> bool:
    return sum(run.metas["tokenize_text"]["overlong"].values()) > 0


def _leaks(run: Ended) -> bool:
    """Figures are of rows that the model was trained on."""
    return run.metas["load_data"]["leakage"]["train/test"] > 0


def _blank_answers(run: Ended) -> bool:
    """The model is taught to answer nothing."""
    return any(re.search(r"assistant\n\s*<\|im_end", text) for text in run.texts)


def _forgets(run: Ended) -> bool:
    """The second question stands without the first."""
    return any("And after" in text and "What is number" not in text for text in run.texts)


FIRST_QUESTION = _reads_none_of("What is number")

HARMS: dict[str, Callable[[Ended], bool]] = {
    "scores of 0 to 100": _guesses,
    "an id as the class": _guesses,
    "years as classes": _guesses,
    "a class of one row": lambda run: "c" in run.labels(support=0),
    "two classes of one row": lambda run: {"c", "d"} <= run.labels(support=0),
    "a test label of which train has no row": lambda run: "c" in run.labels(support=1, recall=0.0),
    "identifiers as the text": _reads_none_of(*WORDS),
    "numbers as the text": _reads_none_of(*WORDS),
    "an input that nothing reads": _reads_none_of("about"),
    "tools under another name": _reads_none_of(r"\bf\d"),
    "rows of train in test": _leaks,
    "a test file that repeats some of train": _leaks,
    "some empty answers": _lost_rows,
    "chats without an answer": _lost_rows,
    "some blank answers in chats": _blank_answers,
    "blank answers in chats": _blank_answers,
    "a template without the user's turns": FIRST_QUESTION,
    "a template of the last question alone": _forgets,
    "a template that cuts questions": FIRST_QUESTION,
    "rows that are too long": _cut_rows,
    "a text cut to its first words": _cut_rows,
    "S3 that denies writing checkpoints": lambda run: not run.saved,  # stopped, it would begin anew
}
"""{name of a fault: whether a run that ended well shows its harm}"""
