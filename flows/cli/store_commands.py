"""The commands that maintain a store: `verify`, `gc`, `pin` and `unpin`."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from typing import Any

from trnflow.flows.cli.arguments import add_command, number
from trnflow.flows.cli.output import emit
from trnflow.flows.display import report
from trnflow.flows.finetune import KINDS
from trnflow.flows.recipes.names import model_name
from trnflow.flows.runner.metadata_check import metadata_fault
from trnflow.flows.runner.work_folders import clear_jobs
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store, made_store
from trnflow.tasks.store.garbage.mark import Policy
from trnflow.tasks.store.garbage.pins import add_pin, pin_names, remove_pin
from trnflow.tasks.store.layout import SHARD
from trnflow.tasks.store.model_names import find_artifact, find_stored
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.redaction import hide_secrets

PIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def add_commands(sub: Any, store: ArgumentParser) -> None:
    check = add_command(sub, "verify", verify, store, "read everything in the store and report damage")
    check.add_argument(
        "--repair", action="store_true", help="move damaged files to quarantine; the stages that need them run again"
    )
    collect = add_command(sub, "gc", gc, store, "print what may be removed; with --yes, remove it")
    collect.add_argument(
        "--yes", action="store_true", help="move garbage to the trash, and free what the trash held for a grace period"
    )
    collect.add_argument(
        "--keep-last", type=number(int, 0), default=Policy.keep_last, metavar="N",
        help="the runs to keep of each recipe (%(default)s)",
    )  # fmt: skip
    collect.add_argument(
        "--keep-days",
        type=number(float, 0),
        default=Policy.keep_days,
        metavar="D",
        help="also keep runs younger than D days",
    )
    collect.add_argument(
        "--grace", type=number(float, 0), default=Policy.grace, metavar="SECONDS",
        help="keep everything younger (%(default)s); must be longer than a run takes from one stage to the next",
    )  # fmt: skip
    keep = add_command(sub, "pin", pin, store, "keep an artifact, or all of a run, whatever gc is asked")
    keep.add_argument("target", metavar="DIGEST|RUN", help="a digest or a run, or RECIPE@champion")
    keep.add_argument("--name", help="default: the run's id, or the beginning of the digest")
    add_command(sub, "unpin", unpin, store, "remove a pin").add_argument("name")


def verify(options: Namespace) -> int:
    """Read every file of the store and print damage; exit code 1 if it was not repaired."""
    from trnflow.tasks.store.verify import note_verified
    from trnflow.tasks.store.verify import verify as read_all

    store = made_store(options.store, damaged=True)
    kinds = KINDS | {f"{stage}{SHARD}": f"{kind}{SHARD}" for stage, kind in KINDS.items()}
    cache = None if store.is_local else store.cache
    result = read_all(store.backend, repair=options.repair, cache=cache, kinds=kinds, fault=metadata_fault)
    note_verified(store.home, store.root, result)
    counts = ", ".join(f"{count} {kind}" for kind, count in result.checked.items())
    lines = [f"{hide_secrets(store.root)}: {counts}; {result.bytes / 1e6:.1f} MB hashed"]
    for problem in result.problems:
        ending = " (repaired)" if problem.repaired else ""
        lines.append(f"{problem.what} {problem.name}: {problem.detail}{ending}")
    if result.unreferenced:
        spare = f"{result.unreferenced} blobs ({result.unreferenced_bytes / 1e6:.1f} MB)"
        lines.append(f"{spare} belong to no record: `trnflow gc` collects them")
    if not result.ok and not options.repair:
        lines.append("`trnflow verify --repair` moves it to quarantine, and the next run makes it again")
    if not result.problems:
        lines.append("everything is sound")
    emit(options, {"store": store.root, **result.to_json()}, *lines)
    return 0 if result.ok else 1


def gc(options: Namespace) -> int:
    """Move what nothing needs to the trash and delete old trash; without --yes only count."""
    from trnflow.tasks.store.garbage.collect import collect

    store = made_store(options.store)
    policy = Policy(options.keep_last, options.keep_days, options.grace)
    result = collect(store.backend, policy, yes=options.yes)
    if options.yes:
        clear_jobs(store.home)
    rows = [("", "", "files", "MB")]
    parts = (("kept for", result.kept), ("to the trash", result.swept), ("for good", result.purged))
    for part, tally in parts:
        rows += [(part, kind, str(tally.files[kind]), f"{tally.bytes[kind] / 1e6:.1f}") for kind in sorted(tally.files)]
    lines = report.aligned(rows)
    if result.restored:
        lines.append(f"{len(result.restored)} files came back from the trash: something needs them again")
    if result.dry_run:
        lines.append("nothing was removed: `--yes` removes it")
    elif result.swept.files:
        lines.append(f"the next `trnflow gc --yes` after {policy.grace:.0f} s frees what is in the trash")
    emit(options, {"store": store.root, "policy": vars(policy), **result.to_json()}, *lines)
    return 0


def pin(options: Namespace) -> int:
    """Pin an artifact, or a run. Raises ConfigError when there is none, or another pin has the name."""
    store = made_store(options.store)
    target = _target(options.target, store)
    kind = "run" if "run" in target else "artifact"
    value = str(target[kind])
    name = options.name or (value if kind == "run" else value.removeprefix("sha256:")[:12])
    if not PIN_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a pin", "use letters, digits, dots, dashes and underscores")
    present = add_pin(store.backend, name, {"schema": 1, "name": name, "created": now(), **target})
    if any(present.get(part) != target.get(part) for part in ("run", "artifact")):
        other = present.get("run") or present.get("artifact")
        raise ConfigError(
            f"the pin {name} exists and holds {other}", f"`trnflow unpin {name}` first, or give another --name"
        )
    emit(options, {"name": name, **target}, f"pinned {kind} {value} as {name}")
    return 0


def unpin(options: Namespace) -> int:
    """Remove a pin. Raises ConfigError when no pin has the name."""
    store = made_store(options.store)
    if not remove_pin(store.backend, options.name):
        pins = ", ".join(pin_names(store.backend)) or "none"
        raise ConfigError(f"there is no pin {options.name}", f"pins: {pins}")
    emit(options, {"name": options.name, "unpinned": True}, f"unpinned {options.name}")
    return 0


def _target(text: str, store: Store) -> Meta:
    """Return what the pin keeps: {"run": id}, or {"artifact": digest, "records": [{"stage", "key"}]}."""
    name = model_name(text)
    meaning = find_stored(store, name)
    if meaning is not None and meaning.run is not None:
        return {"run": meaning.run}
    artifact = find_artifact(store, name)
    makers = [record for record in store.all_records() if record["artifact"] == artifact]
    return {"artifact": artifact, "records": [{"stage": record["stage"], "key": record["key"]} for record in makers]}
