"""Predict rows with the model in a folder, in order, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.row_format import RowFormat, read_row_format
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.prediction.prompts import Shape, shape_of

if TYPE_CHECKING:
    from trnflow.tasks.prediction.classification import Classifier

Row = dict[str, Any]
Named = tuple[str, Row]
"""A row's name in errors, and the row."""

Predict = Callable[[Iterable[Named]], Iterator[Meta]]

WINDOW = 256
"""Rows that are classified together, the short ones apart from the long ones."""


class Model(NamedTuple):
    """A trained model in a folder, whose weights are not loaded yet.

    folder: the model's files; rows: the content of `trnflow.json`, the settings by which rows became the model's
    inputs in training; shape: how a row to predict becomes the text that the model reads; exported: whether the folder
    holds a StableHLO export instead of PyTorch weights."""

    folder: Path
    rows: RowFormat
    shape: Shape
    exported: bool


def open_model(folder: Path, kind: str, meta: Meta) -> Model:
    """Open a model's folder without loading its weights. kind, meta: the kind ("exported" for an export) and the
    metadata of the model's artifact, which `consolidate` or `export_neuron` made.

    Raises ConfigError for an export that can't predict here, ModelError for a model without `trnflow.json`."""
    exported = kind == "exported"
    if exported and meta["target"] != "stablehlo":
        raise ConfigError("a Neuron export runs on Neuron only", "leave --export out, or set export.target=stablehlo")
    if exported and meta["task"] != "classification":
        raise ConfigError(
            "the export of a language model computes logits of fixed shapes and can't generate",
            "leave --export out: the consolidated model generates",
        )
    rows = read_row_format(folder)
    return Model(folder, rows, shape_of(rows, folder), exported)


def predictions(model: Model, rows: Iterable[Named], max_new_tokens: int) -> Iterator[Meta]:
    """Load the model's weights and yield the prediction of each row, in the order of the rows.

    A classifier's prediction is {text: the text that the model read; label: the most probable class; probabilities:
    {class: probability}}. A language model's is {prompt: the text given to the model; generated: the text that the
    model added; tokens: how many tokens were generated; ended: whether the model ended the text itself, by an end
    token}. Where a text had too many tokens for the model, `cut` is the number of tokens left out.

    model: from `open_model`; rows: pairs (the row's name in errors, the row); max_new_tokens: the most tokens of a
    generated text."""
    yield from predictor(model, max_new_tokens)(rows)


def predictor(model: Model, max_new_tokens: int) -> Predict:
    """Load the weights of a model, and return a function from rows to their predictions, in the order of the rows.

    The function takes pairs (the row's name in errors, the row) and yields one prediction for each row, with the keys
    that `predictions` describes: {text, label, probabilities} of a classifier, {prompt, generated, tokens, ended} of a
    language model; with `cut` where the text was too long. It raises DataError, with the row's name, for a row that
    can't become a text, such as one that lacks a column.

    model: from `open_model`; max_new_tokens: the most tokens of a generated text."""
    if model.rows.task == "classification":
        from trnflow.tasks.prediction.classification import Classifier

        classifier = Classifier(model.folder, model.rows.max_length, exported=model.exported)
        return lambda rows: _classified(model, classifier, iter(rows))
    from trnflow.tasks.prediction.generation import Generator

    shape = model.shape
    generator = Generator(model.folder, shape.templates, shape.framed, max_new_tokens)
    return lambda rows: (generator.predict(shape.of_row(row, where), where) for where, row in rows)


def _classified(model: Model, classifier: Classifier, rows: Iterator[Named]) -> Iterator[Meta]:
    while window := list(islice(rows, WINDOW)):
        texts = ["".join(part["text"] for part in model.shape.of_row(row, where)) for where, row in window]
        yield from classifier.predict(texts)
