"""report.json of an evaluation, each entry named once. Read by type checkers alone: no key counts this module."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from trnflow.tasks.artifact import Meta
from trnflow.tasks.metadata import Task


class LostRows(TypedDict):
    """Numbers of rows. truncated: cut to `tokenize.max_length`; too_long: left out for their length; unsupervised: left out
    without a supervised token."""

    rows: int
    truncated: int
    too_long: int
    unsupervised: int


class NamedRow(TypedDict):
    """The numbers of a row, from 1. row: in format_prompts' file; file_row: in the user's file, where it is known."""

    row: int
    file: NotRequired[str]
    file_row: NotRequired[int]


class WrongRow(NamedRow):
    """A wrong prediction. text: its beginning; columns: the others of the user's file."""

    label: str
    predicted: str
    loss: float
    text: str
    probability: NotRequired[float]
    columns: NotRequired[dict[str, str]]


class ConfusedPair(TypedDict):
    """Rows of one class that were predicted as another. share: of the rows of the true class; rows: the first ones."""

    label: str
    predicted: str
    count: int
    share: float
    rows: list[NamedRow]


class Neighbour(TypedDict):
    cosine: float
    text: str


class Retrieval(TypedDict):
    """The texts nearest to an anchor. row: from 1; place: of the anchor's own positive, 1 for the nearest."""

    row: int
    asked: str
    positive: str
    place: int
    found: list[Neighbour]


class Generation(TypedDict):
    """A line of generations.jsonl. row: from 1, None for a prompt of the recipe; tokens, ended: of the greedy text; before:
    by the model before training."""

    row: int | None
    prompt: str
    generated: str
    tokens: int
    ended: bool
    sampled: str
    answer: str | None
    before: NotRequired[str]
    before_ended: NotRequired[bool]
    before_sampled: NotRequired[str]


class ExportCheck(TypedDict):
    """compared: rows or tokens; rows: of a language model, those that hold them; note: why nothing was compared."""

    target: str
    note: NotRequired[str]
    compared: NotRequired[int]
    rows: NotRequired[int]


class HarnessRow(TypedDict):
    """A metric of a task of lm-evaluation-harness. documents: that were read; filter: "none" for plain answers."""

    task: str
    version: str | float | None
    filter: str
    shots: int | None
    documents: int | None
    metric: str
    value: float
    stderr: float | None
    higher_is_better: bool | None


class HarnessReport(TypedDict):
    version: str
    rows: list[HarnessRow]


class BaselineReport(TypedDict):
    """name: `baseline`, or `before` of the model before training; rows: of train that it learnt from; left_out: why there is
    none, and nothing else."""

    name: str
    left_out: NotRequired[str]
    method: NotRequired[str]
    rows: NotRequired[int]
    metrics: NotRequired[dict[str, float]]


class TaskReport(TypedDict):
    """What a task measures. intervals: {metric: its ends, "confidence", "resamples"}; classes: figures of each output; cut,
    answered: numbers of rows; own: names of the user's metrics; curves: of training, as its
    metadata has them."""

    metrics: dict[str, float]
    intervals: Meta
    majority: NotRequired[dict[str, float]]
    classes: NotRequired[list[Meta]]
    confusion: NotRequired[list[list[int]]]
    confused: NotRequired[list[ConfusedPair]]
    calibration: NotRequired[list[Meta]]
    worst: NotRequired[list[WrongRow]]
    retrieved: NotRequired[list[Retrieval]]
    generations: NotRequired[list[Generation]]
    tokens: NotRequired[int]
    bytes: NotRequired[int]
    cut: NotRequired[int]
    answered: NotRequired[int]
    own: NotRequired[list[str]]
    harness: NotRequired[HarnessReport]
    baselines: NotRequired[list[BaselineReport]]
    curves: NotRequired[list[dict[str, float]]]


class Report(TaskReport):
    """The whole. asked: `evaluate.split`; data: by split."""

    task: Task
    split: str
    asked: str
    rows: int
    data: dict[str, LostRows]
    max_length: int | None
    export: ExportCheck
    notes: list[str]
