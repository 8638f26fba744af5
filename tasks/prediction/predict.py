"""Predict rows with the model in a folder, in order, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.format.conversation import Row
from trnflow.tasks.data.format.row_format import RowFormat, read_row_format
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.export.targets import TARGETS
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.prediction.prompts import Named, Parts, Shape, shape_of
from trnflow.tasks.sources.model_sizes import check_folder

if TYPE_CHECKING:
    from trnflow.tasks.prediction.classification import Classifier

Predict = Callable[[Iterable[Named]], Iterator[Meta]]

WINDOW = 256
"""Rows that are classified together, like lengths first."""


class Model(NamedTuple):
    """A trained model in a folder, whose weights are not loaded yet. rows: the content of `trnflow.json`."""

    folder: Path
    rows: RowFormat
    shape: Shape
    exported: bool


def open_model(folder: Path, kind: str, meta: Meta, code: Source | None = None) -> Model:
    """Open a model's folder without loading its weights. kind, meta: of its artifact; code: see `shape_of`.

    Raises ConfigError or MissingDependency for an export that can't predict here, ModelError without `trnflow.json`, and
    for sizes in config.json that its weights do not hold.
    """
    exported = kind == "exported"
    if exported:
        TARGETS[meta["target"]].check_runner()
        if not kind_of(meta["task"]).per_row:
            raise ConfigError(
                "the export of a language model computes logits of fixed shapes and can't generate",
                "leave --export out: the consolidated model generates",
            )
    else:
        check_folder(folder)
    rows = read_row_format(folder)
    return Model(folder, rows, shape_of(rows, folder, code), exported)


def predictions(model: Model, rows: Iterable[Named], max_new_tokens: int) -> Iterator[Meta]:
    """Yield each row's prediction, in order; the weights are loaded at the first."""
    yield from predictor(model, max_new_tokens)(rows)


def predictor(model: Model, max_new_tokens: int, seconds: float | None = None) -> Predict:
    """Load the weights; return a function from rows to predictions, in order.

    seconds: after which a generated text ends where it is; None: never.

    A prediction is {text} and the `Kind`'s answer of a text classifier, {prompt, generated, tokens, ended} of a language
    model; `cut` counts tokens left out. An empty text gets None for an answer, and a `remark`. The function raises
    DataError for a row that can't become a text.
    """
    shape, kind = model.shape, kind_of(model.rows.task)
    if kind.per_row:
        from trnflow.tasks.prediction.classification import Classifier, RewardModel

        of_task = partial(RewardModel, shape=shape) if kind.pairs else Classifier
        classifier = of_task(model.folder, model.rows, exported=model.exported)
        return lambda rows: _classified(model, classifier, iter(rows))
    from trnflow.tasks.prediction.generation import Generator

    generator = Generator(model.folder, shape.templates, shape.framed, max_new_tokens, seconds)
    return lambda rows: (generator.predict(shape.of_row(row, where), where) for where, row in rows)


def _classified(model: Model, classifier: Classifier, rows: Iterator[Named]) -> Iterator[Meta]:
    while window := list(islice(rows, WINDOW)):
        texts = model.shape.of_rows(window)
        empty = [_is_empty(model, row, parts) for (_, row), parts in zip(window, texts, strict=True)]
        answers = iter(
            classifier.predict([parts for parts, is_empty in zip(texts, empty, strict=True) if not is_empty])
        )
        for parts, is_empty in zip(texts, empty, strict=True):
            yield classifier.no_answer(parts) if is_empty else next(answers)


def _is_empty(model: Model, row: Row, parts: Parts) -> bool:
    """Return whether the model would judge no text, but what a template or a separator puts around none."""
    if not any(part["text"].strip() for part in parts):
        return True
    # a reward model judges an empty answer, too; what a function of the user's makes of nothing is a text
    columns = [] if model.rows.own or kind_of(model.rows.task).pairs else model.shape.columns
    return bool(columns) and all(isinstance(row[name], str) and not row[name].strip() for name in columns)
