"""`trnflow publish`: copy a model, an adapter or an export to a folder or an object store."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Namespace
from typing import Any

from flows.cli.history_commands import artifact_of, run_ids
from flows.cli.output import emit
from flows.finetune import FINETUNE
from flows.recipes import recipe as settings
from flows.runner.run import look, open_store
from tasks.artifact import Artifact
from tasks.errors import ConfigError
from tasks.keys.lineage import nearest_run
from tasks.store import Store
from tasks.store.garbage.numbered_roots import CHAMPIONS, numbered
from tasks.store.location import default_root
from tasks.system.home import home_folder

STAGES = {"model": "consolidate", "adapter": "consolidate", "export": "export_neuron"}
"""What is published -> the stage that makes it."""
DIGEST = re.compile(r"(sha256:)?[0-9a-f]{8,64}")
CHAMPION = "@champion"


def add_commands(sub: Any, recipe: argparse.ArgumentParser) -> None:
    """Add `publish` to the parser.

    Args:
        sub: argparse's collection of commands.
        recipe: The arguments of commands that take a recipe; a run or a digest may stand in place of its name.
    """
    send = sub.add_parser(
        "publish",
        parents=[recipe],
        help="copy a model, an adapter or an export to a folder or s3://...",
    )
    send.add_argument("to", metavar="DIR|s3://...")
    send.add_argument("--what", choices=[*STAGES], default="model", help="what is published (%(default)s)")
    send.set_defaults(command=publish)


def publish(options: Namespace) -> int:
    """Copy an artifact to where others find it; return exit code 0. RECIPE, RECIPE@champion, RUN or DIGEST names it."""
    from flows.champions.publish import evaluation_of
    from flows.champions.publish import publish as publish_artifact

    store, artifact = _found(options)
    evaluation = None if options.what == "export" else evaluation_of(store, artifact.digest)
    done = publish_artifact(store, artifact, options.what, options.to, evaluation, _say)
    text = f"published {done.what} {done.artifact[:19]} to {done.to}: {done.files} files, {done.bytes / 1e6:.1f} MB"
    emit(options, done.to_json(), f"{text}{'' if done.copied else ' (all there already)'}\n")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")


def _found(options: Namespace) -> tuple[Store, Artifact]:
    """The store, and the artifact that the command names. ConfigError when there is none."""
    text, stage = options.recipe, STAGES[options.what]
    store = Store(default_root(home_folder()), home_folder())
    ids = run_ids(store) if store.is_made() else []
    if text.split("~")[0] == "last" or any(run.startswith(text) for run in ids):
        run = nearest_run(text, ids)
        made = {one["stage"]: one["artifact"] for one in (store.run(run) or {}).get("stages", [])}
        if not made.get(stage):
            raise ConfigError(f"the run {run} has no artifact of {stage}", "name a run that completed (`trnflow runs`)")
        return store, store.artifact(made[stage])
    if DIGEST.fullmatch(text):
        return store, store.artifact(artifact_of(text, store))
    recipe = settings.load(text.removesuffix(CHAMPION), options.overrides)
    store = open_store(recipe)
    if text.endswith(CHAMPION):
        return store, _champion(store, recipe.name, stage)
    outcome = look(recipe, store, FINETUNE).outcomes[stage]
    if outcome.artifact is None:
        raise ConfigError(
            f"{stage} of {recipe.name} has no artifact for these settings: {outcome.why}", "`trnflow run` makes it"
        )
    return store, outcome.artifact


def _champion(store: Store, name: str, stage: str) -> Artifact:
    """The champion's model, or the export that was made of exactly this model."""
    found = numbered(store.backend, CHAMPIONS, name)
    if not found:
        raise ConfigError(f"{name} has no champion", f"`trnflow promote {name}` makes the first")
    model: str = found[0].document["artifact"]
    if stage == "consolidate":
        return store.artifact(model)
    for record in store.records(stage):
        if record["document"]["inputs"].get("weights") == model:
            return store.artifact(record["artifact"])
    raise ConfigError(f"no export of the champion {model[:19]} is in the store", "run its recipe to the end")
