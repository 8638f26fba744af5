"""The order of a job: a document in the store that says which stages another machine is to run.

<root>/jobs/<id>/order.json    the document, created once; the id is the first digits of its digest
<root>/jobs/<id>/runs/<run>    a run of it: {run, host, begun}
<root>/jobs/<id>/result.json   how the last run of it ended
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict, cast

from trnflow.flows.jobs.carry import Carried, carry_code, carry_recipe
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.plan import Plan
from trnflow.tasks.errors import ConfigError, DataError, StoreError
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import sha256_bytes
from trnflow.tasks.keys.key_document import stage_closure
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.trash import absent, bring_back
from trnflow.tasks.system.json_objects import misfit, read_object
from trnflow.tasks.system.redaction import hide_secrets

SCHEMA = 1
ID_DIGITS, NAME_DIGITS = 12, 8
URI = re.compile(r"(?P<root>.+)#(?P<digits>[0-9a-f]{64})")


class Named(TypedDict):
    """An artifact, in the field by which garbage collection finds it."""

    artifact: str


class GivenStage(Named):
    stage: str
    key: str


class Order(TypedDict):
    """What a job runs.

    Fields:
        name: Of the recipe.
        recipe, code: What `carry` makes.
        until: The last stage.
        given: The artifacts that stand for the stages before.
        force: Stages to run although the store has their results.
        libraries: {distribution that the stages import: its version where the order was written}.
        environment: Variables that must be set where it runs.
        machine: What names the machines that are to run it; "" for a job that is given by hand.
    """

    schema: int
    name: str
    recipe: Named
    code: Named
    until: str
    given: list[GivenStage]
    force: list[str]
    libraries: dict[str, str]
    environment: list[str]
    machine: NotRequired[str]


class JobUri(NamedTuple):
    """What names a job on a command line: the store's root, and the digest of the order."""

    root: str
    digits: str

    @property
    def id(self) -> str:
        return self.digits[:ID_DIGITS]

    def __str__(self) -> str:
        return f"{self.root}#{self.digits}"

    @property
    def name(self) -> str:
        return job_name(self.root, self.id)


def job_name(root: str, job: str) -> str:
    """Return what a platform calls a job: two stores may have the same order, and each its own job."""
    place = root if "://" in root else str(Path(root).absolute())
    return job + sha256_bytes(place.rstrip("/").encode()).removeprefix("sha256:")[:NAME_DIGITS]


def parse_uri(text: str) -> JobUri:
    """Return the parts of `ROOT#DIGEST`. Raises ConfigError."""
    if match := URI.fullmatch(text):
        return JobUri(match["root"], match["digits"])
    raise ConfigError(
        f"{hide_secrets(text)} is no job: ROOT#DIGEST, with 64 digits",
        "take the line that `trnflow run --detach` prints",
    )


def carried_for(context: RunContext) -> Carried:
    """Put what travels with a job of a recipe into the store. Raises ConfigError, CodeError for what can't."""
    if hide_secrets(context.store.root) != context.store.root:
        raise ConfigError(
            "the store's address holds credentials, and a job's command shows it", "write ${NAME} in store.root"
        )
    return carry_recipe(context.recipe, context.store, context.resolver)


def write_order(
    context: RunContext,
    plan: Plan,
    carried: Carried,
    given: Collection[str],
    until: str,
    force: frozenset[str],
    machine: str = "",
) -> JobUri:
    """Write the order for the stages behind those that are given, up to a stage. The same order has the same name.

    given: stages whose results the plan has found.

    Raises:
        DataError: The plan has not found a result.
        StoreError: The store can't be written.
    """
    store, recipe = context.store, context.recipe
    steps = [plan.steps[name] for name in sorted(given)]
    if any(step.artifact is None or step.key is None for step in steps):
        raise DataError("the rows or the code changed while the data stages ran", "run the same command again")
    libraries = dict(carried.libraries)
    for step in plan.steps.values():
        if step.name not in given:
            libraries |= stage_closure(step.node.stage, store.memo).env
    order = Order(
        schema=SCHEMA,
        name=recipe.name,
        recipe={"artifact": carried.digest},
        code={"artifact": carry_code(store)},
        until=until,
        given=[
            {"stage": step.name, "artifact": step.artifact.digest, "key": str(step.key)} for step in steps if step.artifact
        ],
        force=sorted(force),
        libraries=libraries,
        environment=sorted(carried.variables),
        machine=machine,
    )  # fmt: skip
    text = canonical(cast(Any, order)).encode()
    root = store.root if "://" in store.root else str(Path(store.root).absolute())
    uri = JobUri(root, sha256_bytes(text).removeprefix("sha256:"))
    if not store.backend.create(order_file(uri.id), text) and store.backend.read(order_file(uri.id)) != text:
        # the first digits of two digests are the same
        raise StoreError(
            f"the job {uri.id} in the store is another one", "remove its folder below jobs/, and run again"
        )
    return uri


def order_anew(store: Store, uri: JobUri) -> None:
    """Let a job that is ordered once more be done again: gc keeps for it what it names."""
    store.backend.remove(result_file(uri.id))
    keep_order(store, uri)


def keep_order(store: Store, uri: JobUri) -> None:
    """Bring back the order of a job that gc has begun to collect since it was ordered once more."""
    bring_back(store.backend, absent(store.backend, [order_file(uri.id)]))


def read_order(store: Store, uri: JobUri) -> Order:
    """Return the order of a job. Raises ConfigError if there is none, or the document is not what its digest says."""
    try:
        text = store.backend.read(order_file(uri.id))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no job {uri.id} in the store {hide_secrets(uri.root)}", "check the address"
        ) from None
    if sha256_bytes(text) != f"sha256:{uri.digits}":
        raise ConfigError(
            f"job {uri.id}: the document is not what its digest says", "order it anew: somebody changed it"
        )
    document = read_object(text)
    if document.get("schema") != SCHEMA:
        raise ConfigError(
            f"job {uri.id} is of the schema {document.get('schema')}, and this trnflow reads {SCHEMA}",
            "install the version that wrote it",
        )
    if wrong := misfit(document, Order):
        raise ConfigError(f"job {uri.id}: the order is not of its shape: {wrong}", "order it anew")
    return cast(Order, document)


def order_file(job: str) -> str:
    return f"jobs/{job}/order.json"


def result_file(job: str) -> str:
    return f"jobs/{job}/result.json"
