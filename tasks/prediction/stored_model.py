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
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.prediction.separate_process import Bounds, PredictingProcess
from trnflow.tasks.store import Store
from trnflow.tasks.store.location import VARIABLE
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import MASK
from trnflow.tasks.tracking.registry import REQUEST


class StoredModel(PythonModel):  # type: ignore[misc]
    """A pyfunc model whose configuration names a `store`, the digest of an `artifact` and `max_new_tokens`; and perhaps what
    a request may take: `max_request_mb`, `max_request_seconds`."""

    _process: PredictingProcess

    def load_context(self, context: Any) -> None:
        """Load the weights. Raises MlflowException with the cause and the fix."""
        try:
            self._process = _load(context.model_config)
        except TrnflowError as error:
            raise MlflowException(str(error)) from error

    def predict(self, context: Any, model_input: DataFrame, params: Meta | None = None) -> list[Meta]:
        """Return the predictions of a data frame's rows as `trnflow predict --file --json` gives them."""
        if self._process.ended:
            self.load_context(context)
        try:
            return self._process.predict(model_input)
        except TrnflowError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error


def _load(config: Meta) -> PredictingProcess:
    """Load a model of the store that `config` names, else of the one that TRNFLOW_STORE names. Raises TrnflowError."""
    store = _open_store(config["store"])
    stored = store.artifact(config["artifact"])
    with tempfile.TemporaryDirectory() as folder:
        links = store.link_files(stored, Path(folder) / "model")
        tokens = int(config["max_new_tokens"])
        return PredictingProcess(links, stored.kind, stored.meta, tokens, _bounds(config))


def _bounds(config: Meta) -> Bounds:
    # a model that was registered before has no limits in its configuration
    found = {name: config.get(name, default) for name, default in REQUEST.items()}
    return Bounds(float(found["max_request_mb"]), float(found["max_request_seconds"]))


def _open_store(root: str) -> Store:
    roots = [named for named in (root, os.environ.get(VARIABLE, "")) if named and MASK not in named]
    for named in roots:
        store = Store(named, home_folder())
        if store.is_made():
            return store
    raise ConfigError(f"there is no store at {root}", f"set {VARIABLE} to the store that holds the model")
