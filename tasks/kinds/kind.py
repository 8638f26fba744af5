"""What stages ask of a task: a subclass of `Kind` in a module of its own answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

Row = dict[str, Any]

IGNORED = -100
"""The target of a position that has none."""


class Metric(NamedTuple):
    """A metric that is a function of sums over rows, so that resamples of the rows are fast.

    columns: outputs -> float64 [rows, k]; of_sums: sums of the columns, [..., k], and the number of rows, [...] or an int ->
    values [...]; hub, may_promote, is_default: as in `trnflow.tasks.evaluation.scores.Score`.
    """

    name: str
    columns: Callable[[Any], Any]
    of_sums: Callable[[Any, Any], Any]
    less_is_better: bool = False
    hub: str | None = None
    may_promote: bool = False
    is_default: bool = False


class Kind:
    """A task. Its class attributes and methods are all that stages know of it."""

    name: str
    """In the metadata of artifacts."""
    formats: tuple[str, ...] = ()
    """The values of `format.task` that make its rows, if the name is none."""
    per_row = True
    """Whether a row is a text with targets, alone in its chunk; else parts of texts, of which the next token is learnt."""
    per_position = False
    """Whether each position has a target, int32, IGNORED for none; else the row."""
    one_class = False
    """Whether the target is one class of several."""
    reads_targets = False
    """Whether targets are read from `format.target`; of rows they are float32 [rows, outputs], NaN for none."""
    settings: tuple[str, ...] = ()
    """The settings of `format` that few tasks have, and this one reads."""
    auto_class = "AutoModelForSequenceClassification"
    """The class of transformers that loads its models."""
    pipeline = "text-classification"
    """transformers' and the hub's name of what its models do."""
    opener = ""
    """The call that opens a model's folder, where transformers' pipeline alone would not give the answers."""
    adapter = "SEQ_CLS"
    """peft's name of the task."""
    problem_type: str | None = None
    """transformers' name of the loss, in config.json."""
    pairs = False
    """Whether a row is two texts of a language model, of which the first is preferred."""
    rewards: Any = None
    """Of pairs: the named tuple of what a model says of them."""
    marked = False
    """Whether the second text of a pair is the first one's prompt with another row's answer, and the first is marked."""
    queries = False
    """Whether rows with the same first text belong together."""
    takes_made_rows = False
    """Whether `labels_of` also gets the rows of splits that were made of train's: one of few rows may be alone in its label."""
    looks_at_targets = False
    """Whether `remarks` has anything to say."""
    apart = False
    """Whether a row's texts are read apart, each in special tokens of its own, and the loss is one of the whole batch."""
    decides = False
    """Whether `decide` chooses something."""
    metrics: tuple[Metric, ...] = ()
    plots: Mapping[str, str] = {}
    """{file that `draw` writes: what it shows}."""
    answers: Mapping[str, str] = {}
    """{column of a prediction: its type}: string, long, boolean, list (of texts), numbers, map (text to number), entities."""

    @property
    def target_type(self) -> str:
        return "float32" if self.reads_targets and not self.per_position else "int32"

    def target_shape(self, rows: int, length: int, outputs: int) -> tuple[int, ...]:
        """Return the shape of the targets of rows of `length` tokens. outputs: of the model's head."""
        if self.per_position:
            return (rows, length)
        return (rows, outputs) if self.reads_targets else (rows,)

    def columns(self, settings: Any) -> tuple[str, ...]:
        """Return the columns that hold targets. settings: the section `format`."""
        return ()

    def check_settings(self, settings: Any) -> None:
        """Raise ValueError for settings that are not the task's."""

    def check_rows(self, settings: Any, meta: Any) -> None:
        """Raise ConfigError or DataError if rows can't be of this task. meta: of load_data."""

    def foreseen(self, settings: Any) -> list[str]:
        """Return the names of the model's outputs as far as settings tell them."""
        return [*(settings.labels or ())]

    def labels_of(self, settings: Any, train: Callable[[], Iterable[Row]], nested: Iterable[str]) -> list[str] | None:
        """Return the names of the model's outputs. train: yields the rows of train, with the columns of targets alone."""
        return None

    def fixed(self, settings: Meta, labels: list[str] | None) -> Meta:
        """Return the section `format` with the labels of a model, for rows without a split train that would name them."""
        return settings

    def target_of(self, settings: Any, labels: list[str], nested: Iterable[str]) -> Callable[[Row, str], Any]:
        """Return the function from a row and its name in errors to its target. Raises DataError."""
        raise NotImplementedError

    def example_of(
        self, settings: Any, labels: list[str], nested: Iterable[str], texts: Callable[[Row, str], Row] | None
    ) -> Callable[[Row, str], Row | None]:
        """Return the function from a row and its name in errors to its text and target, None for a row without.

        texts: Makes {"text", of a pair "text_pair"} of a row; None if the recipe names no text. Raises DataError, ConfigError.
        """
        target = self.target_of(settings, labels, nested)
        if texts is None:
            raise ConfigError(f"format.task: {settings.task} needs to know the text", "set data.text")
        return lambda row, where: self.example({**texts(row, where), "label": target(row, where)})

    def example(self, example: Row) -> Row:
        """Return an example (texts and `label`) as it is kept: with what the task reads of its texts."""
        return example

    def remarks_on_names(self, labels: Sequence[str]) -> Iterator[str]:
        """Yield what users should know of the names of the model's outputs."""
        yield from ()

    def remarks(self, targets: Any, train: Any) -> Iterator[str]:
        """Yield what users should know of a split. targets, train (those of train, or None): float32 [rows, ...]."""
        yield from ()

    def first_outputs(self, means: Callable[[], Any], rows: int) -> Any:
        """Return the logits, float64 [outputs], that a new head begins with. means: of rows' targets, or shares of tags."""
        return None

    def first_spread(self, deviations: Callable[[], Any]) -> Any:
        """Return by what, float64 [outputs], a new head's first weights are multiplied. deviations: of the targets."""
        return None

    def shown(self, target: Any, labels: list[str]) -> str:
        """Return a row's target as text."""
        return labels[int(target)]

    def filled(self, settings: Any, sentence: Meta | None) -> Any:
        """Return the section `format` with what it leaves to the model's folder. sentence: of `sentence_files`."""
        return settings

    def unused(self, settings: Any, sentence: Meta | None) -> Iterator[str]:
        """Yield what of the model's folder is not used. sentence: of `sentence_files`."""
        yield from ()

    def head(self, settings: Meta) -> Meta:
        """Return what `logits_of` needs. settings: recorded ones of `format`. "texts" is the number of texts of a row."""
        return {}

    def logits_of(self, output: Any, segment_ids: Tensor, head: Meta) -> Tensor:
        """Return the logits [rows, ...] in the output of transformers' model. segment_ids: int [rows, length]."""
        logits: Tensor = output.logits
        return logits

    def values_of(self, logits: Tensor) -> Tensor:
        """Return what a user sees of logits [rows, outputs]: probabilities, or numbers."""
        return logits.softmax(-1)

    def agree(self, first: Tensor, second: Tensor) -> Tensor:
        """Return whether two models' logits mean the same prediction: bool [rows]."""
        return first.argmax(-1) == second.argmax(-1)

    def decide(self, outputs: Any) -> Meta:
        """Return what is chosen on validation and kept in the model's folder. outputs: `Outputs` of the validation split."""
        return {}

    def said_of(self, decision: Meta) -> str:
        """Return what users of other programs must know of a decision; "" if nothing."""
        return ""

    def decided(self, values: Any, decision: Meta) -> Any:
        """Return decisions for an array, of the same shape. values: `decided` of `Outputs` before anything is chosen."""
        return values

    def answer(self, values: list[float], labels: list[str], decision: Meta) -> Meta:
        """Return a row's prediction for `trnflow predict`. values: of `values_of`."""
        raise NotImplementedError

    def answer_in(
        self, text: str, places: Sequence[tuple[int, int] | None], values: Any, labels: list[str], settings: Meta
    ) -> Meta:
        """Return the prediction for a text of a task with targets by position.

        places: First character and end of each token, None of a special token; values: [position][output]; settings: the
        section `format`.
        """
        raise NotImplementedError

    def line(self, answer: Meta) -> str:
        """Return a prediction as the words before its text in a terminal."""
        raise NotImplementedError

    def table(self, outputs: Any, labels: list[str]) -> list[Meta]:
        """Return the report's figures of each output: {"label": its name, figure: value}."""
        return []

    def row_answers(self, outputs: Any, labels: list[str]) -> dict[str, list[Any]]:
        """Return the columns of predictions.parquet: what was expected and predicted for each row."""
        raise NotImplementedError

    def nearest(self, outputs: Any) -> Iterator[tuple[int, int, list[tuple[float, int, int]]]]:
        """Yield rows for the report's retrievals: (row, place of its positive, nearest texts as (cosine, row, text))."""
        yield from ()

    def draw(self, outputs: Any, labels: list[str], folder: Path, plots: Any) -> None:
        """Write the files of `plots` (the attribute) by functions of the module `trnflow.tasks.evaluation.plots`."""

    def measures(self, settings: Any) -> tuple[str, ...]:
        """Return the metrics that rows of the section `format` give, the default of `promote.metric` first."""
        return tuple(metric.name for metric in sorted(self.metrics, key=lambda metric: not metric.is_default))

    def companions(self, head: Meta, numbers: int, longest: int) -> dict[str, Any]:
        """Return {file: JSON document} of a model's folder that other programs read. numbers: the model's hidden size."""
        return {}
