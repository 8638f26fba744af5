"""The commands that keep a store in order: `verify`, `gc`, `pin`, `unpin`."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Namespace
from typing import Any

from flows import report
from flows.attempts import now
from flows.commands import emit_json
from flows.history import all_records, artifact_of, run_ids, store_of
from tasks.artifact import Meta
from tasks.errors import ConfigError
from tasks.lineage import nearest_run
from tasks.store import Store
from tasks.store.pins import held, hold, release
from tasks.store.roots import Policy

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def add_commands(sub: Any, store: argparse.ArgumentParser) -> None:
    check = sub.add_parser("verify", parents=[store], help="read everything in the store, and say what is wrong")
    check.add_argument("--repair", action="store_true", help="quarantine what is corrupt; what needs it is made anew")
    check.set_defaults(command=verify)
    collect = sub.add_parser("gc", parents=[store], help="what could be collected; with --yes, collect it")
    collect.add_argument(
        "--yes", action="store_true", help="move garbage to the trash, and empty that of what is older"
    )
    collect.add_argument(
        "--keep-last", type=_count, default=Policy.keep_last, metavar="N", help="runs kept of each recipe (%(default)s)"
    )
    collect.add_argument(
        "--keep-days", type=_age, default=Policy.keep_days, metavar="D", help="and runs younger than that"
    )
    collect.add_argument(
        "--grace", type=_age, default=Policy.grace, metavar="SECONDS",
        help="nothing younger is touched (%(default)s); longer than a run takes from one stage to the next",
    )  # fmt: skip
    collect.set_defaults(command=gc)
    keep = sub.add_parser("pin", parents=[store], help="keep an artifact, or all of a run, whatever gc's policy")
    keep.add_argument("target", metavar="ARTIFACT|RUN")
    keep.add_argument("--name", help="default: the run's id, or the beginning of the digest")
    keep.set_defaults(command=pin)
    drop = sub.add_parser("unpin", parents=[store], help="no longer")
    drop.add_argument("name")
    drop.set_defaults(command=unpin)


def verify(options: Namespace) -> int:
    """Exit code 1 when something is wrong and was not repaired."""
    from tasks.store.verify import verify as read_all

    store = store_of(options)
    found = read_all(store.backend, repair=options.repair, cache=None if store.is_local else store.cache)
    if options.json:
        emit_json({"schema": 1, "store": store.root, **found.to_json()})
        return 0 if found.ok else 1
    counts = ", ".join(f"{count} {kind}" for kind, count in found.checked.items())
    sys.stdout.write(f"{store.root}: {counts}; {found.bytes / 1e6:.1f} MB hashed\n")
    for problem in found.problems:
        done = " (repaired)" if problem.repaired else ""
        sys.stdout.write(f"{problem.what} {problem.name}: {problem.detail}{done}\n")
    if found.unreferenced:
        spare = f"{found.unreferenced} blobs ({found.unreferenced_bytes / 1e6:.1f} MB)"
        sys.stdout.write(f"{spare} belong to no record: `trnflow gc` collects them\n")
    if not found.ok and not options.repair:
        sys.stdout.write("`trnflow verify --repair` takes it out of the way, so that the next run makes it anew\n")
    sys.stdout.write("everything is sound\n" if not found.problems else "")
    return 0 if found.ok else 1


def gc(options: Namespace) -> int:
    from tasks.store.collect import collect

    store = store_of(options)
    policy = Policy(options.keep_last, options.keep_days, options.grace)
    done = collect(store.backend, policy, yes=options.yes)
    if options.json:
        emit_json({"schema": 1, "store": store.root, "policy": vars(policy), **done.to_json()})
        return 0
    rows = [("", "", "files", "MB")]
    parts = (("kept for", done.kept), ("to the trash", done.swept), ("for good", done.purged))
    for part, tally in parts:
        rows += [(part, kind, str(tally.files[kind]), f"{tally.bytes[kind] / 1e6:.1f}") for kind in sorted(tally.files)]
    sys.stdout.write(f"{report.aligned(rows)}\n")
    if done.restored:
        sys.stdout.write(f"{len(done.restored)} files came back from the trash: something needs them again\n")
    if done.dry_run:
        sys.stdout.write("nothing was touched: `--yes` does it\n")
    elif done.swept.files:
        sys.stdout.write(
            f"what is in the trash is free {policy.grace:.0f} s from now, with the next `trnflow gc --yes`\n"
        )
    return 0


def pin(options: Namespace) -> int:
    store = store_of(options)
    target = _target(options.target, store)
    kind = "run" if "run" in target else "artifact"
    value = str(target[kind])
    name = options.name or (value if kind == "run" else value.removeprefix("sha256:")[:12])
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a pin", "use letters, digits, dots, dashes and underscores")
    found = hold(store.backend, name, {"schema": 1, "name": name, "created": now(), **target})
    if any(found.get(part) != target.get(part) for part in ("run", "artifact")):
        other = found.get("run") or found.get("artifact")
        raise ConfigError(
            f"the pin {name} exists and holds {other}", f"`trnflow unpin {name}` first, or give another --name"
        )
    if options.json:
        emit_json({"schema": 1, "name": name, **target})
    else:
        sys.stdout.write(f"pinned {kind} {value} as {name}\n")
    return 0


def unpin(options: Namespace) -> int:
    store = store_of(options)
    if not release(store.backend, options.name):
        pins = ", ".join(held(store.backend)) or "none"
        raise ConfigError(f"there is no pin {options.name}", f"pins: {pins}")
    if options.json:
        emit_json({"schema": 1, "name": options.name, "unpinned": True})
    else:
        sys.stdout.write(f"unpinned {options.name}\n")
    return 0


def _target(text: str, store: Store) -> Meta:
    """{"run": id} or {"artifact": digest, "records": those that made it}."""
    ids = run_ids(store)
    if text.split("~")[0] == "last" or any(run.startswith(text) for run in ids):
        return {"run": nearest_run(text, ids)}
    artifact = artifact_of(text, store)
    makers = [record for record in all_records(store) if record["artifact"] == artifact]
    return {"artifact": artifact, "records": [{"stage": record["stage"], "key": record["key"]} for record in makers]}


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _age(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value
