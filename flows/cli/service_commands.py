"""The commands that check this machine and start or stop Prefect's server and worker."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, NoReturn

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import emit, exit_at_once
from trnflow.flows.recipes.sections import TrackingConfig
from trnflow.flows.runner.work_folders import open_home
from trnflow.tasks.artifact import Meta
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import hide_secrets


def add_commands(sub: Any, common: ArgumentParser) -> None:
    for name, command, text in (
        ("doctor", doctor, "check this machine: packages, memory, store, devices"),
        ("up", up, "start the local Prefect server"),
        ("down", down, "stop the local Prefect server"),
        ("deploy", deploy, "give Prefect the schedules of ./prefect.yaml"),
        ("worker", worker, "run what is scheduled or started from Prefect, until Ctrl-C"),
        ("ui", ui, "print the addresses of the Prefect and MLflow pages"),
    ):
        parser = add_command(sub, name, command, common, text)
        if command is deploy:
            replacing = "delete the deployments of other checkouts on the same server"
            parser.add_argument("--replace", action="store_true", help=replacing)


def doctor(options: Namespace) -> int:
    """Check this machine; exit code 1 when a check fails."""
    from trnflow.flows.cli.doctor import checkup

    checks = checkup(open_home())
    document = {"checks": [check._asdict() for check in checks]}
    emit(options, document, *checks)
    return 0 if all(check.ok for check in checks) else 1


def up(options: Namespace) -> int:
    """Start the local Prefect server, until `trnflow down`, and print its address."""
    from trnflow.flows.services.login import sourced
    from trnflow.flows.services.prefect_address import foreign_url
    from trnflow.flows.services.prefect_server import ensure_server, stop_open_server

    home = open_home()
    is_own = foreign_url(home) is None
    lost = stop_open_server(home) if is_own else None
    url = ensure_server(home, stays=True)
    lines = [f"Prefect: {hide_secrets(url.removesuffix('/api'))}"]
    if is_own:
        lines += ["`trnflow ui` names the file that opens its page"]
        lines += [f"for prefect's own commands: . {shlex.quote(str(sourced(home)))}"]
    if lost is not None:
        lines += ["restarted: the server of an earlier version asked for no login"]
    if lost:
        lines += [f"its page does not show how these runs in progress end: {', '.join(lost)}"]
    emit(options, {"url": url, "lost": lost or []}, *lines)
    return 0


def down(options: Namespace) -> int:
    """Stop the local Prefect server."""
    from trnflow.flows.services.prefect_server import stop_server

    stopped = stop_server(home_folder())
    text = "stopped the local Prefect server" if stopped else "no local Prefect server was running"
    emit(options, {"stopped": bool(stopped)}, text)
    return 0


def deploy(options: Namespace) -> int:
    """Register the deployments of ./prefect.yaml and their automations, and print their names."""
    from trnflow.flows.services.deploy import deploy
    from trnflow.flows.services.login import OPEN
    from trnflow.flows.services.notification import VARIABLE

    deployed = deploy(open_home(), Path.cwd(), replace=options.replace)
    document: Meta = {"deployments": deployed.names, "automations": deployed.automations, "notify": deployed.notified}
    document |= {"project": deployed.project, "others": deployed.others, "login": deployed.login}
    notified = f"go to {deployed.notified}" if deployed.notified else f"are off; {VARIABLE} turns them on"
    text = f"deployed {', '.join(deployed.names)}; `trnflow worker` runs them"
    others = [f"deployments of other checkouts stay: {', '.join(deployed.others)}"] if deployed.others else []
    others += [] if deployed.login else [f"Prefect's server: {OPEN}"]
    emit(options, document, text, f"notifications {notified}", *others)
    return 0


def worker(options: Namespace) -> NoReturn:
    """Tend lost flow runs, then replace this process by a Prefect worker."""
    from trnflow.flows.retraining.crashed import report_crashed
    from trnflow.flows.services.deploy import start_worker

    start_worker(open_home(), report_crashed)


def ui(options: Namespace) -> int:
    """Print the addresses of Prefect's and MLflow's pages, and of the page of health, which is written anew."""
    from trnflow.flows.cli.health_command import look_after, page_file
    from trnflow.flows.services.pages import pages

    home = home_folder()
    found = look_after(home)
    health = page_file(home)
    lines = pages(home, TrackingConfig())
    lines += [f"health:  {health.absolute().as_uri()}"] if health.exists() else []
    emit(options, {"pages": lines}, *lines)
    if found["unanswered"]:
        exit_at_once(0)
    return 0
