"""Past runs and models from Python: metrics, predictions, pages, and what a model says."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trnflow.flows.cli.history_commands import RunDiff, differences, page_of, run_summary
from trnflow.flows.cli.live.runs_command import list_runs
from trnflow.flows.display import report
from trnflow.flows.display.live_block import html_table
from trnflow.flows.finetune import ROLES
from trnflow.flows.models import NEW_TOKENS, find_model
from trnflow.flows.recipes.names import root_of
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.documents import RunRecord
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.store.model_names import artifact_of_run

if TYPE_CHECKING:
    import pandas as pd

    from trnflow.tasks.prediction.separate_process import PredictingProcess


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
    def curves(self) -> pd.DataFrame:
        """Training by step: `loss` (the mean since the row before), `learning_rate`, and `eval_...` where it evaluated, else
        NaN. Raises ConfigError if the run did not train, BlobLost if the store lost what it trained."""
        import pandas as pd

        digest = artifact_of_run(self.record, ROLES["training"])
        if digest is None:
            raise ConfigError(f"the run {self.id} has no training", "run it to the end")
        rows = checked_artifact(self._store, ROLES["training"], digest).meta.get("curves", [])
        names = dict.fromkeys(["step", "loss", "learning_rate", *(name for row in rows for name in row)])
        return pd.DataFrame(rows, columns=[*names])

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
        artifact = checked_artifact(self._store, name, found["artifact"])
        return Stage(name, found["action"], _opened(self._store, artifact), artifact.meta)

    def model(self) -> Model:
        """Return the run's model. Raises ConfigError if it made none."""
        digest = artifact_of_run(self.record, ROLES["model"])
        if digest is None:
            raise ConfigError(f"the run {self.id} made no model", "run it to the end")
        return Model(self._store, checked_artifact(self._store, ROLES["model"], digest))

    def __repr__(self) -> str:
        figures = report.figures(self.metrics)
        return f"Run({self.id} of {self.record['recipe']}: {self.record['outcome']}, {figures})"

    def __str__(self) -> str:
        return "\n".join([repr(self), *self.record.get("notes", [])])

    def _repr_html_(self) -> str:
        rows = [
            (stage["stage"], stage["action"], report.seconds(stage["seconds"]), report.figures(stage["metrics"]))
            for stage in self.record["stages"]
        ]
        said = "".join(f"<p>{escape(line)}</p>" for line in str(self).splitlines())
        return f"{said}{html_table(('stage', '', 'seconds', 'figures'), rows)}"


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
    """A trained model in the store. Its weights are loaded at the first prediction, and kept, in another process."""

    def __init__(self, store: Store, artifact: Artifact) -> None:
        self._store, self._artifact = store, artifact
        self._process: PredictingProcess | None = None

    @property
    def digest(self) -> str:
        return self._artifact.digest

    @property
    def path(self) -> Path:
        """A Hugging Face folder of links to the model's files."""
        return _opened(self._store, self._artifact)

    def predict(
        self,
        rows: str | Sequence[str] | Sequence[Meta] | pd.Series[str] | pd.DataFrame,
        max_new_tokens: int = NEW_TOKENS,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Return the predictions of texts, or of rows with the columns of training, in order and with a DataFrame's index.

        columns: Those of the rows that go into the result. Default: those that the model does not read, such as an id,
        unless one has the name of a prediction's own. A classifier gives text, label and probabilities, a language model
        prompt and generated; `cut` counts tokens left out, `remark` says that a text is empty.

        Raises ConfigError if a column is missing, DataError for a row that can't become a text.
        """
        import pandas as pd

        from trnflow.tasks.prediction.separate_process import PredictingProcess

        process = self._process
        if process is None or process.ended or process.max_new_tokens != max_new_tokens:
            process = PredictingProcess(self.path, self._artifact.kind, self._artifact.meta, max_new_tokens)
            self._process = process
        predicted = process.predict([rows] if isinstance(rows, str) else rows, columns)
        return pd.DataFrame(predicted, rows.index if isinstance(rows, pd.DataFrame | pd.Series) else None)

    def __repr__(self) -> str:
        return f"Model({self.digest[:19]}, {self._artifact.meta['task']})"


def model(name: str) -> Model:
    """Return a model of the store: `RECIPE`, `RECIPE@champion`, `RECIPE@N`, a run or a digest. Raises ConfigError."""
    found = find_model(name)
    return Model(found.store, found.artifact)


def runs() -> pd.DataFrame:
    """Return the runs of the store (TRNFLOW_STORE, else that of the home), newest first, as `trnflow runs`."""
    import pandas as pd

    return pd.DataFrame(list_runs(made_store(root_of(None, None))))


def diff(before: str | Run, after: str | Run) -> RunDiff:
    """Return how two runs differ in settings, data, code, libraries, artifacts and metrics, as `trnflow diff --json`."""
    names = [run.id if isinstance(run, Run) else run for run in (before, after)]
    return differences(before._store if isinstance(before, Run) else made_store(root_of(names[0], None)), *names)


def _opened(store: Store, artifact: Artifact) -> Path:
    """Return a folder in the home with links to an artifact's verified files. Raises BlobLost."""
    folder = store.home / "cache" / "opened" / artifact.digest.removeprefix("sha256:")[:16]
    shutil.rmtree(folder, ignore_errors=True)  # the blobs that its links name may be gone
    return store.link_files(artifact, folder)
