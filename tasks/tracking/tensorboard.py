"""A reader of a run's events that writes TensorBoard's files: `tensorboard --logdir <home>/tensorboard`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import MissingDependency
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.system.redaction import without_secrets
from trnflow.tasks.tracking.mlflow_values import numbers

if TYPE_CHECKING:
    from trnflow.tasks.events.event_types import RunBegun

FOLDER = "tensorboard"


class TensorBoardFiles(Reader):
    """Writes curves, and what stages reached, to `<home>/tensorboard/<recipe>/<run>`; runs of hits alone write none.

    Raises MissingDependency without the package tensorboard.
    """

    def __init__(self, home: Path) -> None:
        if find_spec("tensorboard") is None:
            raise MissingDependency(
                "tracking.also names tensorboard, which is not installed", "pip install 'trnflow[tensorboard]'"
            )
        self._home = home
        self._begun: RunBegun | None = None
        self._file: Any = None
        self._steps: dict[str, int] = {}

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "run_begun":
            self._begun, self._file, self._steps = event, None, {}
        elif event["event"] == "metrics":
            self._steps[event["stage"]] = event["step"]
            self._scalars(event["stage"], dict(event["values"]), event["step"], event["time"])
        elif event["event"] == "stage_ended" and event["action"] == "ran":
            reached = {**event["metrics"], **event["figures"]}
            self._scalars(event["stage"], reached, self._steps.get(event["stage"], 0), event["time"])
        elif event["event"] == "run_ended" and self._file is not None:
            self._file.close()

    def _scalars(self, stage: str, values: Meta, step: int, at: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        named = numbers(values)
        if named:
            summary = Summary(
                value=[Summary.Value(tag=f"{stage}/{name}", simple_value=value) for name, value in named.items()]
            )
            self._write(summary, step, at)

    def _write(self, summary: Any, step: int, at: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is None:
            assert self._begun is not None
            self._file = RecordWriter(self._open(self._begun).open("wb"))
            self._file.write(Record(wall_time=self._begun["time"], file_version="brain.Event:2").SerializeToString())
            self._write(_recipe(self._begun), 0, self._begun["time"])
        self._file.write(Record(wall_time=at, step=step, summary=summary).SerializeToString())
        self._file.flush()

    def _open(self, begun: RunBegun) -> Path:
        folder = self._home / FOLDER / begun["recipe"] / begun["run"]
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"events.out.tfevents.{int(begun['time'])}.trnflow"


def _recipe(begun: RunBegun) -> Any:
    """Return the recipe as TensorBoard's text."""
    import yaml
    from tensorboard.plugins.text.summary_v2 import text_pb

    text = yaml.safe_dump(without_secrets(begun["settings"]), sort_keys=False, allow_unicode=True)
    return text_pb("recipe", "".join(f"    {line}\n" for line in text.splitlines()))  # a block of code in Markdown
