"""Publish a model, an adapter or an export: copy it to a folder, an object store or a hub.

Only files of that artifact are published. The file that makes a folder loadable goes last: an interrupted copy does not
load, and the same command resumes it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from trnflow.flows.champions.contenders import evaluations_of
from trnflow.flows.champions.destinations import CARD, Report, to_folder, to_object_store
from trnflow.flows.champions.forced import forced_in
from trnflow.flows.champions.hub import SCHEME, to_hub
from trnflow.flows.finetune import ROLES
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.flows.runner.work_folders import workplace
from trnflow.tasks.artifact import Artifact, File, Meta
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.evaluation.scores import SCORES
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.sources.paths import local_path
from trnflow.tasks.store import Store

ADAPTER = "adapter/"


class Kind(NamedTuple):
    """What is published (`--what`): kind of the artifact, the stage that makes it, the file that makes it loadable."""

    artifact: str
    stage: str
    loadable: str


KINDS = {
    "model": Kind("model", ROLES["model"], "config.json"),
    "adapter": Kind("model", ROLES["model"], "adapter_config.json"),
    "export": Kind("exported", ROLES["export"], "export.json"),
}

HUB_TYPES = {entry.name: entry.hub for entry in SCORES if entry.hub}
"""{metric: the hub's name of its type}"""


class Published(NamedTuple):
    """The result of a publication.

    to: as the user gave it; artifact: a digest; copied: number of files that the destination did not have.
    """

    to: str
    what: str
    artifact: str
    files: int
    bytes: int
    copied: int


def publish(
    store: Store,
    artifact: Artifact,
    what: str,
    to: str,
    evaluation: Meta | None,
    report: Report,
    *,
    replace: bool = False,
) -> Published:
    """Copy a model, an adapter or an export to a folder, an object store (`s3://...`) or a hub (`hf://USER/NAME`).

    Args:
        to: A new or empty folder, an empty prefix, or a model repository.
        evaluation: Metadata of this model's evaluation, for the card.
        report: Called with a sentence for each file.
        replace: Replace another model in the hub's repository.

    Raises:
        ConfigError: The artifact has no such files, `to` holds another model, or `replace` is set off a hub.
        StoreError: The destination refuses or fails. What was copied stays.
    """
    files = _files(artifact, what)
    if replace and not to.startswith(SCHEME):
        raise ConfigError(f"--replace is for {SCHEME} alone: {to} can't be replaced at once", "name a new place")
    with workplace(store.home, f"publish-{artifact.digest[7:19]}") as work:
        part = Artifact(artifact.digest, artifact.kind, artifact.meta, files)
        folder = store.link_files(part, work / "files")
        _write_card(folder, to, evaluation, forced_in(store, artifact.digest) if what != "export" else "")
        files_there = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        names = sorted(files_there, key=lambda name: (name == KINDS[what].loadable, name))
        size = sum((folder / name).stat().st_size for name in names)
        if to.startswith(SCHEME):
            summary = f"Publish {what} {artifact.digest[:19]}"
            copied = to_hub(folder, names, to, summary, replace, report)
        elif (path := local_path(to)) is None:
            copied = to_object_store(folder, names, to, report)
        else:
            copied = to_folder(folder, names, path, report)
    return Published(to, what, artifact.digest, len(names), size, copied)


def _files(artifact: Artifact, what: str) -> tuple[File, ...]:
    """Return the files to publish, by their published paths. Raises ConfigError."""
    kind = KINDS[what]
    if artifact.kind != kind.artifact:
        raise ConfigError(
            f"{artifact.digest[:19]} is of kind {artifact.kind}, and --what {what} needs {kind.artifact}",
            f"name the artifact of {kind.stage}",
        )
    if what == "adapter":
        files = tuple(
            file._replace(path=file.path.removeprefix(ADAPTER))
            for file in artifact.files
            if file.path.startswith(ADAPTER)
        )
    else:
        files = tuple(file for file in artifact.files if not file.path.startswith(ADAPTER))
    if kind.loadable not in {file.path for file in files}:
        raise ConfigError(
            f"{artifact.digest[:19]} has no {what} (no {kind.loadable})",
            "only a model trained with train.method=lora has an adapter"
            if what == "adapter"
            else "run the recipe again",
        )
    return files


def _write_card(folder: Path, to: str, evaluation: Meta | None, forced: str) -> None:
    """Replace the card by one with the results and, of a forced champion, with that; the artifact's own stays."""
    card = folder / CARD
    if not card.exists() or not (evaluation or forced):
        return
    path = local_path(to)
    name = os.path.basename((to if path is None else os.path.abspath(os.path.expanduser(path))).rstrip("/"))
    text = card.read_text(encoding="utf-8")
    text = with_results(text, name, evaluation) if evaluation else text
    text += f"\n## Promotion\n\n{forced}\n" if forced else ""
    card.unlink()  # a link into the store
    card.write_text(text, encoding="utf-8")


def evaluation_of(store: Store, digest: str) -> Meta | None:
    """Return the metadata of a model's newest evaluation, or None."""
    for record in evaluations_of(store, digest):
        with suppress(BlobLost):
            return checked_artifact(store, record["stage"], record["artifact"]).meta
    return None


def with_results(card: str, name: str, evaluation: Meta) -> str:
    """Return the text of a model card with an evaluation's results, of metrics that have a type of the hub.

    name: under which the model is published; evaluation: metadata of `evaluate_model`.
    """
    from huggingface_hub import EvalResult, ModelCard

    model_card: Any = ModelCard(card)
    data = (model_card.data.to_dict().get("datasets") or ["custom"])[0]
    model_card.data.model_name = name
    model_card.data.eval_results = [
        EvalResult(
            task_type=kind_of(evaluation["task"]).pipeline,
            dataset_type=data, dataset_name=data, dataset_split=evaluation["split"],
            metric_type=HUB_TYPES[metric], metric_name=metric, metric_value=value,
        )
        for metric, value in evaluation["metrics"].items()
        if metric in HUB_TYPES
    ]  # fmt: skip
    return str(model_card)
