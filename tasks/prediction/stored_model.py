"""The model that MLflow loads of a champion: its weights stay in the store, and it answers as `trnflow predict`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PythonModel
from pandas import DataFrame

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.conversation import Row
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.prediction.predict import Predict, open_model, predictor
from trnflow.tasks.store import Store
from trnflow.tasks.store.location import VARIABLE
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.model_process import EAGER, ENVIRON
from trnflow.tasks.system.redaction import MASK


class StoredModel(PythonModel):  # type: ignore[misc]
    """A pyfunc model whose configuration names a `store`, the digest of an `artifact` and `max_new_tokens`."""

    _predict: Predict

    def load_context(self, context: Any) -> None:
        """Load the weights. Raises MlflowException with the cause and the fix."""
        config = context.model_config
        # read by libraries when they are imported
        for name, value in {**EAGER, **ENVIRON, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}.items():
            os.environ.setdefault(name, value)
        try:
            self._predict = _load(config["store"], config["artifact"], int(config["max_new_tokens"]))
        except TrnflowError as error:
            raise MlflowException(str(error)) from error

    def predict(self, context: Any, model_input: DataFrame, params: Meta | None = None) -> list[Meta]:
        """Return the predictions of a data frame's rows as `trnflow predict --json` gives them."""
        rows = ((f"row {number}", row) for number, row in enumerate(_rows_of(model_input), 1))
        try:
            return list(self._predict(rows))
        except TrnflowError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error


def _load(root: str, artifact: str, max_new_tokens: int) -> Predict:
    """Load a model of the store at `root`, else of the one that TRNFLOW_STORE names. Raises TrnflowError."""
    store = _open_store(root)
    stored = store.artifact(artifact)
    with tempfile.TemporaryDirectory() as folder:
        links = store.link_files(stored, Path(folder) / "model")
        return predictor(open_model(links, stored.kind, stored.meta), max_new_tokens)


def _open_store(root: str) -> Store:
    roots = [named for named in (root, os.environ.get(VARIABLE, "")) if named and MASK not in named]
    for named in roots:
        store = Store(named, home_folder())
        if store.is_made():
            return store
    raise ConfigError(f"there is no store at {root}", f"set {VARIABLE} to the store that holds the model")


def _rows_of(frame: DataFrame) -> list[Row]:
    """Return the rows of a data frame; what is missing in a row is None."""

    def value(cell: Any) -> Any:
        return None if isinstance(cell, float) and cell != cell else cell

    return [{name: value(cell) for name, cell in row.items()} for row in frame.to_dict("records")]
