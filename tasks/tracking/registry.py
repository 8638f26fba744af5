"""Mirror a recipe's champion in MLflow's model registry.

A model is an external one: MLflow gets its name, digest and signature, never its weights. The store decides who is champion;
the aliases `champion` and `challenger` only show it. MLflow's aliases have no compare-and-swap, so each event carries the
number of the champion's file, and an event that is older than what the registry shows changes no alias.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.artifact import Meta

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION, CHALLENGER = "champion", "challenger"
ARTIFACT, NUMBER = "trnflow.artifact", "trnflow.champion_number"
EXAMPLE = {"classification": {"text": "A sentence to classify."}, "causal_lm": {"prompt": "The beginning of a text"}}
"""An input of each task; no row of the data."""
OUTPUT = {"classification": "label", "causal_lm": "generated"}


def registered_name(recipe: str) -> str:
    """Return the name of a recipe's registered model: MLflow takes neither `/` nor `:`, and its search no `'`."""
    return re.sub(r"[/:']", "-", recipe)


def mirror_champion(client: MlflowClient, experiment: str, run: str, event: Meta) -> None:
    """Register the champion, and the challenger if there is one, and set their aliases. May be repeated without effect.

    Args:
        experiment, run: ids in MLflow; the run is the source of models that are made.
        event: recipe, task, number (of the champion's file), champion (digest), challenger (digest or null).
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
    if int(shown.tags.get(NUMBER, 0)) > event["number"]:
        return
    for alias in (CHAMPION, CHALLENGER):
        if alias in versions:
            client.set_registered_model_alias(name, alias, versions[alias])
    if str(shown.aliases.get(CHALLENGER)) == versions[CHAMPION] and CHALLENGER not in versions:
        client.delete_registered_model_alias(name, CHALLENGER)
    client.set_registered_model_tag(name, NUMBER, str(event["number"]))


def _version(client: MlflowClient, experiment: str, run: str, name: str, artifact: str, task: str) -> str:
    """The version of the registered model that stands for an artifact; it is made if there is none."""
    import mlflow

    wanted = f"tags.`{ARTIFACT}` = '{artifact}'"
    found = list(client.search_logged_models([experiment], filter_string=wanted))
    model = found[0] if found else _logged_model(client, experiment, run, name, artifact, task)
    source = f"models:/{model.model_id}"
    for version in client.search_model_versions(f"name = '{name}'"):
        if version.source == source:
            return str(version.version)
    return str(mlflow.register_model(source, name, tags={ARTIFACT: artifact}).version)


def _logged_model(client: MlflowClient, experiment: str, run: str, name: str, artifact: str, task: str) -> Any:
    """Make an external model with a signature and an input example."""
    import mlflow
    from mlflow.models import ModelSignature, set_signature
    from mlflow.types import ColSpec, Schema

    model = mlflow.create_external_model(
        name=name, source_run_id=run, tags={ARTIFACT: artifact}, model_type=task, experiment_id=experiment
    )
    (given,) = EXAMPLE[task]
    signature = ModelSignature(Schema([ColSpec("string", given)]), Schema([ColSpec("string", OUTPUT[task])]))
    set_signature(f"models:/{model.model_id}", signature)
    with tempfile.TemporaryDirectory() as folder:
        example = Path(folder) / "input_example.json"
        example.write_text(json.dumps({"columns": [given], "data": [[EXAMPLE[task][given]]]}), encoding="utf-8")
        client.log_model_artifact(model.model_id, str(example))
    return model
