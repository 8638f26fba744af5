"""The commands that check this machine, and that start or stop Prefect's server and worker: `doctor`, `up`, `down`,
`deploy`, `worker`, `ui`."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import Any, NoReturn

from flows.cli.output import emit
from flows.recipes import recipe as settings
from flows.runner.work_folders import open_home
from tasks.system.home import home_folder
from tasks.system.redaction import hide


def add_commands(sub: Any, common: argparse.ArgumentParser) -> None:
    """Add `doctor`, `up`, `down`, `deploy`, `worker` and `ui` to the parser. sub: argparse's collection of commands;
    common: the arguments of all commands."""
    for name, command, text in (
        ("doctor", doctor, "check this machine: packages, memory, store, devices"),
        ("up", up, "start the local Prefect server"),
        ("down", down, "stop the local Prefect server"),
        ("deploy", deploy, "register the deployments of ./prefect.yaml with the Prefect server"),
        ("worker", worker, "start a Prefect worker that runs deployments, until Ctrl-C"),
        ("ui", ui, "print the addresses of the Prefect and MLflow pages"),
    ):
        sub.add_parser(name, parents=[common], help=text).set_defaults(command=command)


def doctor(options: Namespace) -> int:
    """Print the checks of this machine; exit code 1 when one fails."""
    from flows.cli.doctor import checkup

    checks = checkup(open_home())
    document = {"checks": [check._asdict() for check in checks]}
    emit(options, document, "".join(f"{check}\n" for check in checks))
    return 0 if all(check.ok for check in checks) else 1


def up(options: Namespace) -> int:
    """Start the local Prefect server unless one runs, and print its address."""
    from flows.services.prefect_server import ensure_server

    url = ensure_server(open_home())
    emit(options, {"url": url}, f"Prefect: {hide(url.removesuffix('/api'))}\n")
    return 0


def down(options: Namespace) -> int:
    """Stop the local Prefect server."""
    from flows.services.prefect_server import stop_server

    stopped = stop_server(home_folder())
    text = "stopped the local Prefect server" if stopped else "no local Prefect server was running"
    emit(options, {"stopped": bool(stopped)}, f"{text}\n")
    return 0


def deploy(options: Namespace) -> int:
    """Register the deployments of ./prefect.yaml with Prefect's server and wait until the next flow run of each schedule is
    planned."""
    from flows.services.deploy import deploy

    names = deploy(open_home(), Path.cwd())
    emit(options, {"deployments": names}, f"deployed {', '.join(names)}; `trnflow worker` runs them\n")
    return 0


def worker(options: Namespace) -> NoReturn:
    """Replace this process by a Prefect worker that runs the registered deployments until it is interrupted."""
    from flows.services.deploy import start_worker

    start_worker(open_home())


def ui(options: Namespace) -> int:
    """Print the addresses of the web pages of Prefect and MLflow."""
    from flows.services.pages import pages

    lines = pages(home_folder(), settings.TrackingConfig())
    emit(options, {"pages": lines}, "".join(f"{line}\n" for line in lines))
    return 0
