"""Mirror a recipe's champion in MLflow's model registry, as a pyfunc model that reads its weights from the store.

The store decides which model is champion. An event about an earlier champion than the registry shows changes no alias;
of two series the one whose champion is newer is shown.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.events.event_types import Champion
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.system.redaction import scrub

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.models import ModelSignature

CHAMPION, CHALLENGER = "champion", "challenger"
ARTIFACT, COMPLETE = "trnflow.artifact", "trnflow.complete"
NUMBER, SERIES, CREATED = "trnflow.champion_number", "trnflow.champion_series", "trnflow.champion_created"
# MLflow would fill these in with the user's name and the path of the running script
WHO = {"mlflow.user": "unknown", "mlflow.source.name": "trnflow", "mlflow.source.type": "JOB"}
FORMAT = "2"
"""The value of the tag COMPLETE; models of earlier versions have `true`, and can't be loaded."""
CODE = '''"""Loads a model from trnflow's store: the configuration beside this file names the store and the digest."""

from mlflow.models import set_model

from trnflow.tasks.prediction.stored_model import StoredModel

set_model(StoredModel())
'''
MAX_NEW_TOKENS = 256
REQUEST = {"max_request_mb": 16, "max_request_seconds": 600}
"""What a request may take, unless the model is loaded with another `model_config`."""


class MirroredChampion(Champion):
    """store: the store's root without secrets."""

    store: str


def registered_name(recipe: str) -> str:
    """Return the name of a recipe's registered model: `-` in place of what MLflow refuses, then a digest of the name."""
    accepted = re.sub(r"[/:']", "-", recipe)
    # without the digest `a/b` and `a-b` would share a model, and each other's champion
    return accepted if accepted == recipe else f"{accepted}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}"


def mirror_champion(client: MlflowClient, experiment: str, run: str, event: MirroredChampion) -> None:
    """Register champion and challenger, and give them their aliases. Another call with the same event has no effect.

    experiment, run: MLflow's ids for new models.
    """
    import mlflow

    mlflow.set_tracking_uri(client.tracking_uri)
    name = registered_name(event["recipe"])
    # challenger: None where the models were not compared
    models = {CHAMPION: event["champion"], CHALLENGER: event["challenger"]}
    versions = {
        alias: _version(client, experiment, run, name, model, event) for alias, model in models.items() if model
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
    client.update_registered_model(name, describe(event))
    client.update_model_version(name, versions[CHAMPION], describe(event))
    for tag, value in ((NUMBER, event["number"]), (SERIES, event["series"]), (CREATED, event["created"])):
        client.set_registered_model_tag(name, tag, str(value))


def _is_older(event: MirroredChampion, shown: dict[str, str]) -> bool:
    """Return whether an event is about an earlier champion than the registry shows."""
    if shown.get(SERIES, "") == event["series"]:
        return int(shown.get(NUMBER, 0)) > int(event["number"])
    return shown.get(CREATED, "") > str(event["created"])


def describe(event: MirroredChampion) -> str:
    """Return the description of a registered model (Markdown): its champion, why it is that, its figures, its use."""
    model, figures = f"{event['recipe']}@champion", event.get("metrics", {})
    lines = [
        f"Champion {event['number']} of {event['recipe']} since {event['created']}: {event.get('why', '')}",
        f"Its evaluation: {', '.join(f'{name} {value:.4g}' for name, value in figures.items())}" if figures else "",
        f"Its weights are {event['champion']} in the store {event['store']}; to copy them:",
        f"    trnflow get '{model}' consolidate DIR",
        "To predict:",
        f"    trnflow predict '{model}' TEXT",
        f'    mlflow.pyfunc.load_model("models:/{registered_name(event["recipe"])}@champion").predict(rows)',
    ]
    return scrub("\n\n".join(filter(None, lines)))


def _version(client: MlflowClient, experiment: str, run: str, name: str, artifact: str, event: MirroredChampion) -> str:
    """Return the version of the registered model for an artifact, made if there is none."""
    import mlflow

    model = _found(client, experiment, artifact) or client.create_logged_model(
        experiment, name, source_run_id=run, tags={ARTIFACT: artifact, **WHO}, model_type=event["task"]
    )
    if model.tags.get(COMPLETE) != FORMAT:
        _complete(client, model, artifact, event)
    source = f"models:/{model.model_id}"
    for version in client.search_model_versions(f"name = '{name}'"):
        if version.source == source:
            return str(version.version)
    return str(mlflow.register_model(source, name, tags={ARTIFACT: artifact}).version)


def _found(client: MlflowClient, experiment: str, artifact: str) -> LoggedModel | None:
    """Return the model for an artifact, a complete one where there are several."""
    models = client.search_logged_models([experiment], filter_string=f"tags.`{ARTIFACT}` = '{artifact}'")
    return next(iter(sorted(models, key=lambda model: COMPLETE not in model.tags)), None)


def _complete(client: MlflowClient, model: LoggedModel, artifact: str, event: MirroredChampion) -> None:
    """Give a model its files, which a killed follower or an earlier version may have left out."""
    from mlflow.models import Model
    from mlflow.pyfunc import save_model
    from mlflow.utils.mlflow_tags import MLFLOW_MODEL_IS_EXTERNAL

    columns, signature = event.get("columns", []), _signature(event)
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "stored_model.py"
        code.write_text(CODE, encoding="utf-8")
        described = Model(
            model.artifact_location, model.source_run_id, model_uuid=model.model_id, model_id=model.model_id
        )
        save_model(
            f"{folder}/model", python_model=str(code), mlflow_model=described, signature=signature,
            input_example=dict.fromkeys(columns, "a text") if signature else None,
            model_config={"store": event["store"], "artifact": artifact, "max_new_tokens": MAX_NEW_TOKENS, **REQUEST},
            pip_requirements=[f"trnflow=={metadata.version('trnflow')}"],
        )  # fmt: skip
        client.log_model_artifacts(model.model_id, f"{folder}/model")
    client.finalize_logged_model(model.model_id, "READY")
    if MLFLOW_MODEL_IS_EXTERNAL in model.tags:
        client.delete_logged_model_tag(model.model_id, MLFLOW_MODEL_IS_EXTERNAL)
    # last: nothing is missing now
    client.set_logged_model_tags(model.model_id, {COMPLETE: FORMAT})


def _signature(event: MirroredChampion) -> ModelSignature | None:
    """Return the columns that the model reads and writes; None if they are not known."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType, Array, Map

    if not event.get("columns"):
        return None
    # any type: `trnflow predict` writes numbers, lists and messages into the text, too
    needed = [ColSpec(AnyType(), name) for name in event["columns"]]
    inputs = [*needed, *(ColSpec(AnyType(), name, required=False) for name in event["optional"])]
    types: dict[str, Any] = {"map": Map(DataType.double), "list": Array(DataType.string)}
    types |= dict.fromkeys(("numbers", "entities"), AnyType())
    outputs = [ColSpec(types.get(kind, kind), name) for name, kind in kind_of(event["task"]).answers.items()]
    return ModelSignature(Schema(inputs), Schema(outputs))
