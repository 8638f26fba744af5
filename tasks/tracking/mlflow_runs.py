"""Make MLflow runs of an event log: a parent run, and a nested run for each stage with metrics.

Events can be sent again without effect. A stage that was killed, and started again under the same key by another run,
is one nested run with one curve, of the run that started it last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.events import Event
from trnflow.tasks.events.event_types import Champion, Metrics, RunBegun, StageBegun, StageEnded, stages_of
from trnflow.tasks.system.redaction import hide_secrets, scrub, without_secrets
from trnflow.tasks.tracking.addresses import note_experiment
from trnflow.tasks.tracking.mlflow_values import (
    SUMMARY,
    VIEW_TAG,
    flatten,
    lengths_figure,
    main_figures,
    numbers,
    plain_name,
    saved_view,
)
from trnflow.tasks.tracking.registry import MirroredChampion, mirror_champion
from trnflow.tasks.training.automatic import AUTO, SETTINGS

if TYPE_CHECKING:
    from mlflow import MlflowClient

METRICS_A_CALL = 1000
SWEEP = "trnflow.sweep"
"""The tag of a run in a sweep: the id of the sweep's own run."""
STATUS = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
KIND = {"mlflow.experimentKind": "custom_model_development"}  # makes the experiment's page show runs, not GenAI traces
ENTRIES_A_CALL = 100
TAG_LENGTH = 5000
DIGEST_LENGTH = 36  # MLflow's limit for the digest of a data set


class MlflowRuns:
    """Writes the events of one run to MLflow.

    Args:
        home: The folder of local state.
        plots: The folder of copied plots.
        state: What has been sent, changed in place; the caller saves it.
    """

    def __init__(self, client: MlflowClient, home: Path, plots: Path, state: Meta) -> None:
        self._client = client
        self._home, self._plots = home, plots
        self._state = state

    def apply(self, events: Iterable[Event]) -> None:
        """Send events in their order, metrics in batches. Stages that are not in the run's plan are left out, and
        what begins after a planned one of its name has ended."""
        curves: dict[str, list[Any]] = {}
        for event in events:
            self._state["last"] = max(event["time"], self._state.get("last", 0.0))
            if event["event"] == "metrics" and self._is_shown(event["stage"]):
                curves.setdefault(event["stage"], []).extend(self._points(event))
            else:
                self._send(curves)
                self._apply(event)
        self._send(curves)

    def end_killed(self) -> None:
        """End the MLflow runs of a run whose log has no end."""
        if not self._state.get("ended"):
            self._end_all("KILLED", self._state.get("last", 0.0))

    def _apply(self, event: Event) -> None:
        if event["event"] == "run_begun":
            self._run_begun(event)
        elif event["event"] == "planned":
            self._state["planned"] = [stage["stage"] for stage in stages_of(event)]
            self._state["shown"] = [*self._state["planned"]]
        elif event["event"] == "repair":
            self._state["shown"] = [*self._state.get("planned", ())]
        elif event["event"] == "stage_begun" and self._is_shown(event["stage"]):
            self._stage_begun(event)
        elif event["event"] == "stage_ended" and self._is_shown(event["stage"]):
            if event["artifact"] is not None:
                self._stage_ended(event)
            # scoring has stages of the same names, which come later
            self._state["shown"].remove(event["stage"])
        elif event["event"] == "champion" and "parent" in self._state:
            self._champion(event)
        elif event["event"] == "run_ended":
            self._end_all(STATUS.get(event["outcome"], "FAILED"), event["time"])

    def _is_shown(self, stage: str) -> bool:
        return "parent" in self._state and stage in self._state.get("shown", ())  # a full disk may have cost both

    def _run_begun(self, event: RunBegun) -> None:
        tracking, settings = event.get("tracking") or {}, without_secrets(event["settings"])
        self._state["experiment"] = self._experiment(tracking["experiment"], tracking["artifacts"])
        note_experiment(self._home, tracking["uri"], tracking["experiment"], self._state["experiment"])
        own = {"trnflow.run": event["run"], "trnflow.recipe": event["recipe"]}
        checkout = event["checkout"]
        git = {"git.commit": checkout["commit"], "git.dirty": str(checkout["dirty"]).lower()} if checkout else {}
        tags = {**own, **git, SWEEP: event["parent"], **tracking.get("tags", {})}
        self._state |= {"tags": own, "sweep": event["parent"], "stages": {}, "sources": data_sources(settings)}
        self._state["store"] = hide_secrets(event["store"])
        self._state["parent"] = self._run(f"{event['recipe']} {event['run']}", event["time"], tags, stage="")
        self._nest()
        # a parameter can't be changed: training's own follow when they are known
        self._params(self._state["parent"], _without_auto(settings))
        import yaml

        recipe = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        self._client.log_text(self._state["parent"], recipe, "recipe.yaml")

    def _dataset(self, name: str, digest: str, note: str, context: str) -> None:
        """Show that the run used a data set. note: where it came from; context: `training` or `evaluation`."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        source = json.dumps({"note": note, "digest": digest})
        data = Dataset(name, digest.rpartition(":")[2][:DIGEST_LENGTH], source_type="trnflow", source=source)
        given = DatasetInput(data, [InputTag("mlflow.data.context", context)])
        self._client.log_inputs(self._state["parent"], datasets=[given])

    def _stage_begun(self, event: StageBegun) -> None:
        settings = without_secrets(event["settings"])
        known = {"time": event["time"], "settings": settings, "step": 0, "key": event["key"]}
        self._state["stages"][event["stage"]] = known
        self._tags(self._state["parent"], {f"trnflow.key.{event['stage']}": event["key"]})

    def _stage_ended(self, event: StageEnded) -> None:
        stage, at = event["stage"], event["time"]
        if event.get("kind") == "rows":
            for setting, source in self._state["sources"].items():
                self._dataset(source, str(event["artifact"]), f"{setting}={source}", "training")
        if chosen := event.get("chosen"):
            self._params(self._state["parent"], {"train": chosen})
        tags = {"key": event["key"], "artifact": event["artifact"], "action": event["action"]}
        self._tags(self._state["parent"], {f"trnflow.{name}.{stage}": value for name, value in tags.items()})
        reached = numbers(event["metrics"])
        spent = {"seconds": event["seconds"]} if event["seconds"] and event["action"] == "ran" else {}
        of_stage = {f"{stage}/{name}": value for name, value in {**reached, **spent}.items()}
        own = event.get("own", [])
        shown = (*SUMMARY, *(f"{stage}/{name}" for name in own))
        summary = {name: value for name, value in of_stage.items() if name in shown}
        self._metrics(self._state["parent"], summary, at, 0)
        plots = event.get("plots", [])
        if event["action"] != "ran" or not (reached or plots or "run" in self._state["stages"].get(stage, {})):
            return
        run, step = self._nested(stage, at), self._state["stages"].get(stage, {}).get("step", 0)
        self._metrics(run, main_figures({**reached, **spent, **numbers(event["figures"])}, own), at, step)
        self._tags(run, {f"trnflow.{name}": value for name, value in tags.items()})
        for plot in plots:
            self._client.log_artifact(run, str(self._plots / stage / plot))
        if lengths := event.get("lengths"):
            self._client.log_figure(run, lengths_figure(lengths), "row_lengths.png")
        self._end(run, "FINISHED", at)
        self._state["stages"][stage]["ended"] = True

    def _champion(self, event: Champion) -> None:
        from mlflow.exceptions import MlflowException

        if event["frozen"]:
            self._dataset(f"{event['recipe']} frozen rows", event["frozen"], "", "evaluation")
        self._metrics(self._state["parent"], numbers(event["comparison"]), event["time"], 0)
        try:
            shown: MirroredChampion = {**event, "store": self._state.get("store", "")}
            mirror_champion(self._client, self._state["experiment"], self._state["parent"], shown)
        except MlflowException as error:
            if "Max retries exceeded" in str(error) or "timed out" in str(error):
                raise
            # what the registry refuses must not hold up the run's own events
            self._tags(self._state["parent"], {"trnflow.champion_not_shown": scrub(str(error))[:200]})

    def _end_all(self, status: str, at: float) -> None:
        """End the run and its nested runs that have not ended."""
        self._state["ended"] = True
        if "parent" not in self._state:  # the run was killed before its first event
            return
        own = self._state["tags"]["trnflow.run"]
        for stage in self._state["stages"].values():
            is_open = "run" in stage and "ended" not in stage
            # another run may have taken the nested one over
            if is_open and self._client.get_run(stage["run"]).data.tags.get("trnflow.run") == own:
                self._end(stage["run"], status, at)
        self._nest()
        self._end(self._state["parent"], status, at)

    def _nest(self) -> None:
        """Nest a run of a sweep in the sweep's own run, if MLflow has that yet."""
        own, sweep = self._state["parent"], self._state.get("sweep")
        if sweep is None or self._state.get("nested"):
            return
        runs = self._found("", f"tags.`trnflow.run` = '{sweep}'")
        if runs:
            self._tags(own, {"mlflow.parentRunId": runs[0].info.run_id})
            self._state["nested"] = True

    def _experiment(self, name: str, artifacts: str | None) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            return str(self._client.create_experiment(name, artifacts, KIND | {VIEW_TAG: saved_view()}))
        if VIEW_TAG not in experiment.tags:
            self._client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, saved_view())
        return str(experiment.experiment_id)

    def _run(self, name: str, at: float, tags: Meta, stage: str) -> str:
        """Return the id of the MLflow run with these tags, made if there is none. stage: "" for the parent run."""
        own = tags["trnflow.run"]
        runs = self._found(stage, f"tags.`trnflow.run` = '{own}'") or (
            self._found(stage, f"tags.`trnflow.runs` LIKE '%{own}%'") if stage else []
        )
        if runs:
            return str(runs[0].info.run_id)
        tags = {**_texts(tags), "trnflow.stage": stage, "mlflow.source.name": "trnflow", "mlflow.source.type": "JOB"}
        created = self._client.create_run(self._state["experiment"], start_time=_ms(at), tags=tags, run_name=name)
        return str(created.info.run_id)

    def _found(self, stage: str, wanted: str) -> list[Any]:
        """Return the MLflow runs of a stage that match `wanted`, newest first."""
        wanted = f"tags.`trnflow.stage` = '{stage}' and {wanted}"
        order = ["attributes.start_time DESC"]
        return list(self._client.search_runs([self._state["experiment"]], wanted, max_results=100, order_by=order))

    def _join(self, stage: str, known: Meta) -> None:
        """Use the nested run that another run made for this key and did not finish, or started later."""
        own, key = self._state["tags"]["trnflow.run"], known.get("key")
        for nested in self._found(stage, f"tags.`trnflow.key` = '{key}'") if key else ():
            tags, began = nested.data.tags, float(nested.data.tags.get("trnflow.began", "inf"))
            if own in tags["trnflow.runs"].split() or (nested.info.status == "FINISHED" and began < known["time"]):
                continue
            run, other = nested.info.run_id, tags["trnflow.run"]
            self._tags(run, {"trnflow.runs": f"{tags['trnflow.runs']} {own}"})
            first, last = (other, own) if began < known["time"] else (own, other)
            mine, theirs = self._state["parent"], tags["mlflow.parentRunId"]
            before, after = (theirs, mine) if last == own else (mine, theirs)
            self._tags(before, {f"trnflow.continued_by.{stage}": last})
            self._tags(after, {f"trnflow.continues.{stage}": first})
            if last == own:
                self._tags(run, {"trnflow.run": own, "trnflow.began": known["time"], "mlflow.parentRunId": mine})
                self._client.update_run(run, "RUNNING")
            return

    def _nested(self, stage: str, at: float) -> str:
        """Return the id of the nested run for a stage, made when first needed."""
        known = self._state["stages"].setdefault(stage, {"time": at, "settings": {}, "step": 0})
        if "run" not in known:
            self._join(stage, known)
            own = {
                "trnflow.key": known.get("key"),
                "trnflow.began": known["time"],
                "trnflow.runs": self._state["tags"]["trnflow.run"],
            }
            tags = {**self._state["tags"], **own, "mlflow.parentRunId": self._state["parent"]}
            known["run"] = self._run(stage, known["time"], tags, stage)
            self._params(known["run"], known["settings"])
        return str(known["run"])

    def _points(self, event: Metrics) -> Iterator[Any]:
        from mlflow.entities import Metric

        self._nested(event["stage"], event["time"])
        known = self._state["stages"][event["stage"]]
        known["step"] = max(known["step"], event["step"])
        for name, value in numbers(dict(event["values"])).items():
            yield Metric(name, value, _ms(event["time"]), event["step"])

    def _send(self, curves: dict[str, list[Any]]) -> None:
        for stage, points in curves.items():
            for some in _batches(points, METRICS_A_CALL):
                self._client.log_batch(self._state["stages"][stage]["run"], metrics=some)
        curves.clear()

    def _metrics(self, run: str, values: dict[str, float], at: float, step: int) -> None:
        from mlflow.entities import Metric

        points = [Metric(plain_name(name), value, _ms(at), step) for name, value in values.items()]
        for some in _batches(points, METRICS_A_CALL):
            self._client.log_batch(run, metrics=some)

    def _params(self, run: str, settings: Meta) -> None:
        from mlflow.entities import Param

        for some in _batches([Param(name, text) for name, text in flatten(settings).items()], ENTRIES_A_CALL):
            self._client.log_batch(run, params=some)

    def _tags(self, run: str, tags: Meta) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(run, tags=[RunTag(name, text) for name, text in _texts(tags).items()])

    def _end(self, run: str, status: str, at: float) -> None:
        self._client.set_terminated(run, status, end_time=_ms(at))


def _without_auto(settings: Meta) -> Meta:
    """Return a recipe's settings without those of training that the rows will decide."""
    train = settings.get("train", {})
    known = {name: value for name, value in train.items() if name not in SETTINGS or value != AUTO}
    return {**settings, "train": known} if known != train else settings


def data_sources(settings: Meta) -> dict[str, str]:
    """Return {setting: its value} of each data source in a recipe's settings."""
    data = settings.get("data", {})
    mix = data.get("mix") or {}
    named = {f"data.mix.{name}.source": mix[name]["source"] for name in sorted(mix)}
    return named or {"data.source": data.get("source")}


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _texts(tags: Meta) -> dict[str, str]:
    return {plain_name(name): str(value)[:TAG_LENGTH] for name, value in tags.items() if value is not None}


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
