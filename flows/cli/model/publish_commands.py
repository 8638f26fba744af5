"""`trnflow publish`: copy a model, an adapter or an export to a folder, an object store or a hub."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from trnflow.flows.champions.publish import KINDS, evaluation_of
from trnflow.flows.champions.publish import publish as publish_artifact
from trnflow.flows.cli.arguments import add_command, add_model
from trnflow.flows.cli.output import emit, say
from trnflow.flows.models import find_model


def add_commands(sub: Any, store: ArgumentParser) -> None:
    send = add_command(sub, "publish", publish, store, "copy a model or an export to a folder, S3 or the hub")
    add_model(send)
    send.add_argument("to", metavar="DIR|s3://...|hf://USER/NAME")
    send.add_argument("--what", choices=[*KINDS], default="model", help="what is published (%(default)s)")
    send.add_argument(
        "--replace", action="store_true", help="replace another model in a hub's repository, whose history keeps it"
    )


def publish(options: Namespace) -> int:
    """Copy a model, its adapter or its export to a folder, an object store or a hub, with a card of its metrics."""
    want = (KINDS[options.what].stage,)
    named = find_model(options.recipe, options.overrides, root=options.store, want=want)
    store, artifact = named.store, named.artifact
    evaluation = None if options.what == "export" else evaluation_of(store, artifact.digest)
    copy = publish_artifact(
        store, artifact, options.what, options.to, evaluation, lambda text: say(f"  {text}"), replace=options.replace
    )
    text = f"published {copy.what} {copy.artifact[:19]} to {copy.to}: {copy.files} files, {copy.bytes / 1e6:.1f} MB"
    lines = [f"{text}{'' if copy.copied else ' (all there already)'}", *(f"note: {note}" for note in named.notes)]
    emit(options, {**copy._asdict(), "champion": named.champion}, *lines)
    return 0
