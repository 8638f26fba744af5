"""`trnflow health [RECIPE]`: whether schedule, queue, store and champions are as they should be, for monitoring.

Answers within SECONDS and the time of its imports, also while servers and store do not answer. A store that is slow is no
problem: what it did not answer is named, and its recipes are asked at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from trnflow.flows.champions.lost import lost_champion
from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.health_report import (
    SECONDS,
    Health,
    HealthParts,
    LastFiring,
    MlflowHealth,
    PrefectHealth,
    RecipeHealth,
    Serving,
    SpoolHealth,
    StoreHealth,
    lines_of,
    page_of,
)
from trnflow.flows.cli.model.history_command import killed_retrains
from trnflow.flows.cli.output import emit, exit_at_once
from trnflow.flows.recipes.names import model_name, root_of
from trnflow.flows.recipes.sections import StoreConfig
from trnflow.flows.retraining.firings import Firing, read_firings
from trnflow.flows.services.login import encoded
from trnflow.flows.services.prefect_address import CLIENT, api_url
from trnflow.flows.services.prefect_server import asks_for_login, client_login
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import TrnflowError, unexpected
from trnflow.tasks.events import log_file, unsent_runs
from trnflow.tasks.events.begun_runs import begun_runs
from trnflow.tasks.keys.hash_cache import in_threads
from trnflow.tasks.sources.paths import local_path
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import is_ahead
from trnflow.tasks.store.ledger import Entry, Ledger, read_ledger, recipes_of
from trnflow.tasks.store.location import VARIABLE, default_root
from trnflow.tasks.store.verify import LastVerified, last_verified
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import hide_secrets, scrub_all
from trnflow.tasks.system.whole_file import write_whole
from trnflow.tasks.tracking import tracking_address

SOCKET_SECONDS = 1.5
LATE_SECONDS = 300.0
SPOOL_SECONDS = 86400.0
"""The age at which events that MLflow lacks are a problem."""
BAD = ("failed", "stopped", "killed")
"""Outcomes of a last firing that are a problem."""
DUE = ["SCHEDULED", "PENDING", "RUNNING"]

SLOW = 3
"""The exit code when there is no problem, and not every answer."""
READERS = 16
"""How many recipes of a store are asked at a time."""

Problems = list[str]


@dataclass
class Asked:
    """What the store has said of its recipes so far; the threads that ask it add to it.

    names: None before the store has listed them. unknown: those without a decision. rows: {recipe: its row, or None because
    of a problem}.
    """

    names: list[str] | None = None
    unknown: set[str] = field(default_factory=set)
    rows: dict[str, RecipeHealth | None] = field(default_factory=dict)
    problems: dict[str, Problems] = field(default_factory=dict)


def add_commands(sub: Any, store: ArgumentParser) -> None:
    text, more = (
        "say whether schedule, queue, store and champions are well",
        "; exit code 1 if not, 3 if answers are missing",
    )
    parser = add_command(sub, "health", health, store, text, more)
    parser.add_argument(
        "recipe", metavar="RECIPE", nargs="?", help="a recipe's name or file; default: all of the store"
    )


def health(options: Namespace) -> int:
    """Print the state of each part and all problems; write the page of `trnflow ui`. Exit code 1 if there are any, SLOW if
    there are none and something did not answer in time."""
    recipe = model_name(options.recipe).recipe if options.recipe else None
    root = root_of(options.recipe, options.store) if recipe else options.store
    found = look_after(home_folder(), root, recipe)
    emit(options, found, *lines_of(found))
    code = 1 if found["problems"] else SLOW if found["unanswered"] else 0
    if found["unanswered"]:
        exit_at_once(code)  # their threads may wait for minutes
    return code


def look_after(home: Path, root: str | None = None, recipe: str | None = None) -> Health:
    """Look at each part, and write `<home>/reports/health.html`. root: of the store; None for the default one, and all others
    that recipes have of their own."""
    asked, elsewhere = Asked(), not (root or recipe or os.environ.get(VARIABLE))
    root = root or root_of(recipe, None) or default_root(home)
    with contextlib.suppress(TrnflowError, OSError, ValueError):  # the part says what is wrong
        Store(root, home)  # imports a remote store's client, which may take as long as all parts together
    parts: dict[str, Callable[[Problems], Any]] = {
        "prefect": partial(_prefect, home, recipe), "mlflow": partial(_mlflow, home), "store": partial(_space, home, root),
        "spool": partial(_spool, home), "verify": partial(_verify, home, root),
        "recipes": partial(_recipes, home, root, recipe, elsewhere, asked),
    }  # fmt: skip
    found, problems = _in_time(parts)
    unanswered = [name for name in parts if name not in found and (name != "recipes" or asked.names is None)]
    rows, names = dict(asked.rows), [name for name in asked.names or () if name not in asked.unknown]
    if asked.names is not None:
        found["recipes"] = [row for name in names if (row := rows.get(name))]
        unanswered += [f"{name} (recipe)" for name in names if name not in rows]
        problems += [problem for name in names if name in rows for problem in asked.problems[name]]
    answers = cast(HealthParts, {name: hide_secrets(found.get(name)) for name in parts})
    document: Health = {
        "healthy": not problems and not unanswered, "created": now(), "problems": scrub_all(problems),
        "unanswered": unanswered, **answers,
    }  # fmt: skip
    with contextlib.suppress(OSError):  # a full disk, which the answer names
        write_whole(page_file(home), page_of(document))
    return document


def page_file(home: Path) -> Path:
    return home / "reports" / "health.html"


def _in_time(parts: dict[str, Callable[[Problems], Any]]) -> tuple[Meta, Problems]:
    """Call all parts at a time; return {name: what it returned} of those that answered, and the problems."""
    found: Meta = {}
    problems: dict[str, Problems] = {}

    def call(name: str, part: Callable[[Problems], Any]) -> None:
        problems[name] = []
        found[name] = _answer(name, part, problems[name])

    threads = [threading.Thread(target=call, args=each, daemon=True) for each in parts.items()]
    deadline = time.monotonic() + SECONDS
    # all at once: a server that does not answer costs the others no time
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    return dict(found), [problem for name in parts for problem in problems[name]]


def _answer(name: str, part: Callable[[Problems], Any], problems: Problems) -> Any:
    """Return what a part returns; None after an error, which becomes a problem."""
    try:
        return part(problems)
    except TrnflowError as error:
        problems.append(f"{name}: {error.message}")
    except OSError as error:
        problems.append(f"{name}: {error}")
    except Exception as error:
        problems.append(f"{name}: {unexpected(error).message}")
    return None


def _prefect(home: Path, recipe: str | None, problems: Problems) -> PrefectHealth:
    url = api_url(home)
    nothing: PrefectHealth = {"url": None, "login": True, "next": None, "running": 0, "waiting": 0, "late": 0}
    if url is None:
        return nothing
    wanted = {
        "flow_runs": {"state": {"type": {"any_": DUE}}, "tags": {"all_": ["trnflow"]}},
        "flows": {"name": {"any_": ["finetune", "prepare", "retrain", "sweep"]}}, "sort": "EXPECTED_START_TIME_ASC",
    }  # fmt: skip
    request = Request(f"{url}/flow_runs/filter", json.dumps(wanted).encode(), {"content-type": "application/json"})
    if login := client_login(home, url):
        request.add_header("authorization", f"Basic {encoded(login)}")
    elif key := os.environ.get("PREFECT_API_KEY"):
        request.add_header("authorization", f"Bearer {key}")
    login_asked = ThreadPoolExecutor(1).submit(asks_for_login, url)
    try:
        with urlopen(request, timeout=SOCKET_SECONDS) as answer:
            runs = json.loads(answer.read())
            if not isinstance(runs, list):
                raise ValueError
    except ValueError:
        problems.append(f"prefect: what answers at {hide_secrets(url)} is no Prefect server")
        return {**nothing, "url": url}
    except HTTPError as error:
        said = f"refuses the login: set {CLIENT} to its own" if error.code == 401 else f"refuses: {error}"
        problems.append(f"prefect: the server at {hide_secrets(url)} {said}")
        return {**nothing, "url": url}
    except OSError as error:
        problems.append(f"prefect: the server at {hide_secrets(url)} does not answer: {error}")
        return {**nothing, "url": url}
    if recipe is not None:
        runs = [run for run in runs if Path(str(run["parameters"].get("recipe"))).stem == Path(recipe).name]
    waits = {run["id"]: run["expected_start_time"] for run in runs if run["state_type"] == "SCHEDULED"}
    late = [start for start in waits.values() if _age(start) > LATE_SECONDS]
    if late:
        problems.append(
            f"prefect: {len(late)} run{'s' * (len(late) > 1)} should have begun, the first at {late[0]}: does a worker run?"
        )
    coming = [start for start in waits.values() if _age(start) <= 0]
    return {
        "url": url, "login": login_asked.result(), "next": next(iter(coming), None),
        "running": sum(run["state_type"] == "RUNNING" for run in runs),
        "waiting": sum(run["state_type"] == "PENDING" for run in runs) + len(waits) - len(coming), "late": len(late),
    }  # fmt: skip


def _mlflow(home: Path, problems: Problems) -> MlflowHealth:
    address = tracking_address(home, None)
    if address.startswith("http"):
        try:
            urlopen(f"{address.rstrip('/')}/health", timeout=SOCKET_SECONDS).close()
        except OSError as error:
            problems.append(f"mlflow: the server at {hide_secrets(address)} does not answer: {error}")
    return {"address": hide_secrets(address)}


def _is_awaited(home: Path, root: str) -> bool:
    """Return whether the first run here has yet to make the store."""
    return root == default_root(home) and not any((home / name).exists() for name in ("runs", "firings", "verified"))


def _space(home: Path, root: str, problems: Problems) -> StoreHealth:
    path = local_path(root)
    folder = Path(path or "").expanduser()
    if path is None or (_is_awaited(home, root) and not folder.exists()):
        return {"root": root, "bytes": None, "free": None}
    free = shutil.disk_usage(folder).free
    if free < StoreConfig().min_free_gb * 1e9:
        problems.append(f"store: only {free / 1e6:,.0f} MB are free at {root}")
    begun, total = time.monotonic(), 0
    for inside, _, files in os.walk(folder):
        total += sum(os.lstat(f"{inside}/{name}").st_size for name in files if os.path.lexists(f"{inside}/{name}"))
        if time.monotonic() - begun > SECONDS / 2:  # a store of millions of files
            return {"root": root, "bytes": None, "free": free}
    return {"root": root, "bytes": total, "free": free}


def _spool(home: Path, problems: Problems) -> SpoolHealth:
    logs = [log_file(home, run) for run in unsent_runs(home)]
    oldest = max((time.time() - log.stat().st_mtime for log in logs if log.exists()), default=0.0)
    if oldest > SPOOL_SECONDS:
        problems.append(f"spool: MLflow lacks the events of {len(logs)} runs, for {oldest / 86400:.0f} days")
    return {"runs": len(logs), "oldest_seconds": round(max(oldest, 0.0))}


def _verify(home: Path, root: str, problems: Problems) -> LastVerified:
    last = last_verified(home, root)
    if last["damaged"]:
        problems.append(
            f"verify: {last['damaged']} files were damaged on {last['created']}: `trnflow verify` names them"
        )
    return last


def _recipes(home: Path, root: str, recipe: str | None, elsewhere: bool, asked: Asked, problems: Problems) -> None:
    store = Store(root, home)
    own: list[str] = []
    if store.is_made():
        own = [recipe] if recipe else recipes_of(store)
    elif not _is_awaited(home, root):
        store.check()
    newest = _elsewhere(home, store) if elsewhere else {}
    asked.names = [*dict.fromkeys([*own, *newest])]

    def look(place: str) -> None:
        names = {name for name in asked.names or () if newest.get(name, root) == place}
        # one that can't be read becomes a problem, and those of others are looked at
        _answer("recipes", partial(_look, home, place, names, store, {*own}, asked), problems)
        asked.unknown |= names - {*asked.rows}

    # at a time: a store that does not answer costs the recipes of others nothing
    in_threads(look, [*dict.fromkeys([root, *newest.values()])], READERS)


def _elsewhere(home: Path, own: Store) -> dict[str, str]:
    """Return the root of the store of each recipe whose newest run on this machine was in another one than `own`."""
    newest: dict[str, str] = {}
    for begun in begun_runs(home):
        if begun.recipe not in newest:
            # the logs of a home that was copied name the place of the other one
            newest[begun.recipe] = own.root if begun.store == own.root or own.run(begun.run) else begun.store
    return {name: place for name, place in newest.items() if place != own.root}


def _look(home: Path, place: str, names: set[str], own: Store, of_own: set[str], asked: Asked, _: Problems) -> None:
    """Ask a store about its recipes, and of those without a decision there the store `own`, which has the recipes `of_own`."""
    there = Store(place, home)
    judged = of_own if place == own.root else {*(recipes_of(there) if there.is_made() else ())}
    for where, some in ((there, names & judged), (own, (names & of_own) - judged)):
        runs = {*where.run_ids()} if some else set()
        in_threads(partial(_ask, asked, where, runs), sorted(some), READERS)


def _ask(asked: Asked, store: Store, runs: set[str], name: str) -> None:
    asked.problems[name] = []
    asked.rows[name] = _answer(name, partial(_recipe, store, name, runs), asked.problems[name])


def _recipe(store: Store, name: str, runs: set[str], problems: Problems) -> RecipeHealth:
    ledger = read_ledger(store, name)
    champion, stands = ledger.champion, ledger.stands
    last = _last(store, ledger, runs)
    if lost := lost_champion(store, ledger):
        problems.append(f"{name}: {lost}")
    if last and last["outcome"] in BAD:
        problems.append(f"{name}: the last retrain {last['outcome']} on {last['created']}: {last['why']}")
    if last and is_ahead(last["created"]):
        problems.append(f"{name}: the last retrain is dated in the future ({last['created']}): a clock was wrong")
    serves: Serving | None = champion and {
        "number": champion["number"], "artifact": champion["champion"], "created": champion["created"],
        "days": round(_age(champion["created"]) / 86400, 1), "forced": champion["forced"],
    }  # fmt: skip
    return {
        "recipe": name, "store": hide_secrets(store.root), "champion": serves, "last": last, "failures": stands["failures"],
    }  # fmt: skip


def _last(store: Store, ledger: Ledger, runs: set[str]) -> LastFiring | None:
    """Return the newest firing, with what its run took. runs: those on record."""
    name, entries = ledger.recipe, map(ledger.entry, ledger.numbers)
    decided = next((entry for entry in entries if entry["by"] == "retrain"), None)
    fired: list[Firing | Entry] = [*read_firings(store.home, name, store.root)[:1]]
    fired += [*([decided] if decided else []), *killed_retrains(store, name, runs)]
    if not fired:
        return None
    newest = max(fired, key=lambda one: (not is_ahead(one["created"]), one["created"]))
    record = (store.run(newest["run"]) if newest["run"] else None) or {}
    return {
        "created": newest["created"], "outcome": newest["outcome"], "why": newest["why"], "run": newest["run"],
        "seconds": record.get("seconds"), "dollars": record.get("dollars"),
    }  # fmt: skip


def _age(created: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(created)).total_seconds()
