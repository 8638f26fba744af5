"""Past runs and models from Python: metrics, predictions, pages, and what a model says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.flows.cli.history_commands import RunDiff, differences, page_of, run_summary
from trnflow.flows.cli.live.runs_command import list_runs
from trnflow.flows.display import report
from trnflow.flows.display.live_block import html_table
from trnflow.flows.finetune import ROLES
from trnflow.flows.models import find_model
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.documents import RunRecord
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.store.model_names import artifact_of_run

if TYPE_CHECKING:
    import pandas as pd

    from trnflow.tasks.prediction.predict import Model as PredictingModel
    from trnflow.tasks.prediction.predict import Predict


class Stage(NamedTuple):
    """A stage of a run.

    Attributes:
        action: ran, hit or skip.
        path: A folder of links to the artifact's checked files. They are the store's own: copy what must change.
        meta: The artifact's metadata.
    """

    name: str
    action: str
    path: Path
    meta: Meta


class Run:
    """A run on record."""

    def __init__(self, store: Store, run: str) -> None:
        self._store, self.id = store, run
        self.record: RunRecord = store.run(run) or {}

    @property
    def metrics(self) -> Meta:
        """All metrics of all stages, as `trnflow run --json` has them."""
        return dict(run_summary(self.id, self.record)["metrics"])

    @property
    def predictions(self) -> pd.DataFrame:
        """The rows that were evaluated, each with its text and what the model said."""
        import pandas as pd

        return pd.read_parquet(self.stage(ROLES["evaluation"]).path / "predictions.parquet")

    @property
    def report(self) -> Report:
        """The page of the run, with its evaluation."""
        return Report(page_of(self._store, self.id))

    def stage(self, name: str) -> Stage:
        """Return a stage. Raises ConfigError if the run has no result of it, BlobLost if the store lost it."""
        found = next((stage for stage in self.record["stages"] if stage["stage"] == name), None)
        if found is None or found["artifact"] is None:
            there = [stage["stage"] for stage in self.record["stages"] if stage["artifact"]]
            raise ConfigError(f"the run {self.id} has no result of {name}", f"it has {', '.join(there)}")
        artifact = self._store.artifact(found["artifact"])
        return Stage(name, found["action"], _opened(self._store, artifact), artifact.meta)

    def model(self) -> Model:
        """Return the run's model. Raises ConfigError if it made none."""
        digest = artifact_of_run(self.record, ROLES["model"])
        if digest is None:
            raise ConfigError(f"the run {self.id} made no model", "run it to the end")
        return Model(self._store, self._store.artifact(digest))

    def __repr__(self) -> str:
        figures = report.figures(self.metrics)
        return f"Run({self.id} of {self.record['recipe']}: {self.record['outcome']}, {figures})"

    def _repr_html_(self) -> str:
        rows = [
            (stage["stage"], stage["action"], report.seconds(stage["seconds"]), report.figures(stage["metrics"]))
            for stage in self.record["stages"]
        ]
        return f"<p>{escape(repr(self))}</p>{html_table(('stage', '', 'seconds', 'figures'), rows)}"


class Report:
    """The page of a run. path: the HTML file, which needs no other."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Report({self.path})"

    def _repr_html_(self) -> str:
        page = escape(self.path.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" sandbox width="100%" height="600"></iframe>'


class Model:
    """A trained model in the store. Its weights are loaded at the first prediction, and kept."""

    def __init__(self, store: Store, artifact: Artifact) -> None:
        self._store, self._artifact = store, artifact
        self._loaded: PredictingModel | None = None
        self._predictors: dict[int, Predict] = {}

    @property
    def digest(self) -> str:
        return self._artifact.digest

    @property
    def path(self) -> Path:
        """A Hugging Face folder of links to the model's files."""
        return _opened(self._store, self._artifact)

    def predict(
        self, rows: str | Sequence[str] | Sequence[Meta] | pd.DataFrame, max_new_tokens: int = 256
    ) -> pd.DataFrame:
        """Return the predictions of texts, or of rows with the columns of training.

        Returns:
            A row for each, in order: text, label and probabilities of a classifier, prompt and generated of a language
            model; `cut` where tokens were left out.

        Raises:
            ConfigError: A column that the model reads is missing.
            DataError: A row can't become a text.
        """
        import pandas as pd

        from trnflow.tasks.prediction.predict import open_model, predictor

        items: Iterable[Any] = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
        items = [items] if isinstance(items, str) else list(items)
        with _eager():
            model = self._loaded = self._loaded or open_model(self.path, self._artifact.kind, self._artifact.meta)
            named = [
                (f"row {number}", model.shape.of_text(row) if isinstance(row, str) else dict(row))
                for number, row in enumerate(items, 1)
            ]
            if max_new_tokens not in self._predictors:
                self._predictors = {max_new_tokens: predictor(model, max_new_tokens)}
            return pd.DataFrame(list(self._predictors[max_new_tokens](named)))

    def __repr__(self) -> str:
        return f"Model({self.digest[:19]}, {self._artifact.meta['task']})"


def model(name: str) -> Model:
    """Return a model of the store: `RECIPE`, `RECIPE@champion`, `RECIPE@N`, a run or a digest. Raises ConfigError."""
    found = find_model(name)
    return Model(found.store, found.artifact)


def runs() -> pd.DataFrame:
    """Return the runs of the store (TRNFLOW_STORE, else that of the home), newest first, as `trnflow runs`."""
    import pandas as pd

    return pd.DataFrame(list_runs(made_store()))


def diff(before: str | Run, after: str | Run) -> RunDiff:
    """Return how two runs differ in settings, data, code, libraries, artifacts and metrics, as `trnflow diff --json`."""
    names = [run.id if isinstance(run, Run) else run for run in (before, after)]
    return differences(before._store if isinstance(before, Run) else made_store(), *names)


def _opened(store: Store, artifact: Artifact) -> Path:
    """Return a folder in the home with links to an artifact's verified files. Raises BlobLost."""
    folder = store.home / "cache" / "opened" / artifact.digest.removeprefix("sha256:")[:16]
    shutil.rmtree(folder, ignore_errors=True)  # the blobs that its links name may be gone
    return store.link_files(artifact, folder)


@contextmanager
def _eager() -> Iterator[None]:
    """Context with the environment in which libraries that predict are imported; it stays as it was for later runs."""
    from trnflow.tasks.evaluation.models import EAGER

    added = {
        name: value
        for name, value in {**EAGER, "USE_TORCH_XLA": "0", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}.items()
        if name not in os.environ
    }
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
