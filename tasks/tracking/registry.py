"""Mirror a recipe's champion in MLflow's model registry, as an external model: name, digest, signature, no weights.

The store decides which model is champion. An event about an earlier champion than the registry shows changes no alias;
of two series the one whose champion is newer is shown.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

CHAMPION, CHALLENGER = "champion", "challenger"
ARTIFACT, COMPLETE = "trnflow.artifact", "trnflow.complete"
NUMBER, SERIES, CREATED = "trnflow.champion_number", "trnflow.champion_series", "trnflow.champion_created"
# MLflow would fill these in with the user's name and the path of the running script
WHO = {"mlflow.user": "unknown", "mlflow.source.name": "trnflow", "mlflow.source.type": "JOB"}
EXAMPLE = {"classification": {"text": "A sentence to classify."}, "causal_lm": {"prompt": "The beginning of a text"}}
"""An input of each task; no row of the data."""
OUTPUT = {"classification": "label", "causal_lm": "generated"}


def registered_name(recipe: str) -> str:
    """Return the name of a recipe's registered model: `-` in place of what MLflow refuses, then a digest of the name."""
    accepted = re.sub(r"[/:']", "-", recipe)
    # without the digest `a/b` and `a-b` would share a model, and each other's champion
    return accepted if accepted == recipe else f"{accepted}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}"


def mirror_champion(client: MlflowClient, experiment: str, run: str, event: Meta) -> None:
    """Register champion and challenger, and give them their aliases. Another call with the same event has no effect.

    experiment, run: MLflow's ids for new models; event: recipe, task, number, series, created, champion, challenger.
    """
    import mlflow

    mlflow.set_tracking_uri(client.tracking_uri)
    name = registered_name(event["recipe"])
    versions = {
        alias: _version(client, experiment, run, name, event[alias], event["task"])
        for alias in (CHAMPION, CHALLENGER)
        if event[alias]
    }
    shown = client.get_registered_model(name)
    # MLflow's aliases have no compare-and-swap
    if _is_older(event, shown.tags):
        return
    for alias in (CHAMPION, CHALLENGER):
        if alias in versions:
            client.set_registered_model_alias(name, alias, versions[alias])
    if str(shown.aliases.get(CHALLENGER)) == versions[CHAMPION] and CHALLENGER not in versions:
        client.delete_registered_model_alias(name, CHALLENGER)
    for tag, value in (
        (NUMBER, event["number"]),
        (SERIES, event["series"]),
        (CREATED, event["created"]),
    ):
        client.set_registered_model_tag(name, tag, str(value))


def _is_older(event: Meta, shown: dict[str, str]) -> bool:
    """Return whether an event is about an earlier champion than the registry shows."""
    if shown.get(SERIES, "") == event["series"]:
        return int(shown.get(NUMBER, 0)) > int(event["number"])
    return shown.get(CREATED, "") > str(event["created"])


def _version(client: MlflowClient, experiment: str, run: str, name: str, artifact: str, task: str) -> str:
    """Return the version of the registered model for an artifact, made if there is none."""
    import mlflow

    model = _found(client, experiment, artifact) or mlflow.create_external_model(
        name=name, source_run_id=run, tags={ARTIFACT: artifact, **WHO}, model_type=task, experiment_id=experiment
    )
    if COMPLETE not in model.tags:
        _complete(client, model, task)
    source = f"models:/{model.model_id}"
    for version in client.search_model_versions(f"name = '{name}'"):
        if version.source == source:
            return str(version.version)
    return str(mlflow.register_model(source, name, tags={ARTIFACT: artifact}).version)


def _found(client: MlflowClient, experiment: str, artifact: str) -> LoggedModel | None:
    """Return the model for an artifact, a complete one where there are several."""
    models = client.search_logged_models([experiment], filter_string=f"tags.`{ARTIFACT}` = '{artifact}'")
    return next(iter(sorted(models, key=lambda model: COMPLETE not in model.tags)), None)


def _complete(client: MlflowClient, model: LoggedModel, task: str) -> None:
    """Give an external model what a killed follower may have left out."""
    from mlflow.models import ModelSignature, set_signature
    from mlflow.models.utils import get_external_mlflow_model_spec
    from mlflow.types import ColSpec, Schema

    (given,) = EXAMPLE[task]
    with tempfile.TemporaryDirectory() as folder:
        get_external_mlflow_model_spec(model).save(str(Path(folder) / "MLmodel"))
        example = Path(folder) / "input_example.json"
        example.write_text(json.dumps({"columns": [given], "data": [[EXAMPLE[task][given]]]}), encoding="utf-8")
        client.log_model_artifacts(model.model_id, folder)
    client.finalize_logged_model(model.model_id, "READY")
    signature = ModelSignature(Schema([ColSpec("string", given)]), Schema([ColSpec("string", OUTPUT[task])]))
    set_signature(f"models:/{model.model_id}", signature)
    # last: nothing is missing now
    client.set_logged_model_tags(model.model_id, {COMPLETE: "true"})
