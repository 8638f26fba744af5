"""The commands that check this machine, and that start or stop Prefect's server and worker: `doctor`, `up`, `down`,
`deploy`, `worker`, `ui`."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import Any, NoReturn

from trnflow.flows.cli.output import emit
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.work_folders import open_home
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import hide


def add_commands(sub: Any, common: argparse.ArgumentParser) -> None:
    """Add the commands `doctor`, `up`, `down`, `deploy`, `worker` and `ui` to the argument parser of `trnflow`.

    Args:
        sub: The object that argparse's `add_subparsers` returned; the commands are added to it.
        common: A parser with the arguments that all commands have in common.
    """
    for name, command, text in (
        ("doctor", doctor, "check this machine: packages, memory, store, devices"),
        ("up", up, "start the local Prefect server"),
        ("down", down, "stop the local Prefect server"),
        ("deploy", deploy, "register the deployments of ./prefect.yaml with the Prefect server"),
        ("worker", worker, "start a Prefect worker that runs deployments, until Ctrl-C"),
        ("ui", ui, "print the addresses of the Prefect and MLflow pages"),
    ):
        found = sub.add_parser(name, parents=[common], help=text)
        found.set_defaults(command=command)
        if name == "deploy":
            found.add_argument(
                "--replace", action="store_true", help="delete the deployments of another checkout on the same server"
            )


def doctor(options: Namespace) -> int:
    """Check this machine (packages, memory, store, disk, devices) and print the results. Return exit code 0, or 1 when
    a check fails."""
    from trnflow.flows.cli.doctor import checkup

    checks = checkup(open_home())
    document = {"checks": [check._asdict() for check in checks]}
    emit(options, document, *checks)
    return 0 if all(check.ok for check in checks) else 1


def up(options: Namespace) -> int:
    """Start the local Prefect server unless one runs, and print its address; the server then runs until `trnflow down`.

    If the user configured another server (PREFECT_API_URL), only print its address. Return exit code 0."""
    from trnflow.flows.services.prefect_server import ensure_server

    url = ensure_server(open_home(), stays=True)
    emit(options, {"url": url}, f"Prefect: {hide(url.removesuffix('/api'))}")
    return 0


def down(options: Namespace) -> int:
    """Stop the local Prefect server and print whether one was running; return exit code 0."""
    from trnflow.flows.services.prefect_server import stop_server

    stopped = stop_server(home_folder())
    text = "stopped the local Prefect server" if stopped else "no local Prefect server was running"
    emit(options, {"stopped": bool(stopped)}, text)
    return 0


def deploy(options: Namespace) -> int:
    """Register the deployments of ./prefect.yaml and their automations (rules by which Prefect's server acts on events)
    with Prefect's server, and wait until the next flow run of each active schedule is planned. Print the deployments'
    names (with --json also the automations'); return exit code 0."""
    from trnflow.flows.services.deploy import deploy
    from trnflow.flows.services.notification import VARIABLE

    done = deploy(open_home(), Path.cwd(), replace=options.replace)
    document = {"deployments": done.names, "automations": done.automations, "notify": done.notified}
    notified = f"go to {done.notified}" if done.notified else f"are off; {VARIABLE} turns them on"
    deployed = f"deployed {', '.join(done.names)}; `trnflow worker` runs them"
    emit(options, document, deployed, f"notifications {notified}")
    return 0


def worker(options: Namespace) -> NoReturn:
    """End or reschedule the flow runs whose process was lost, then replace this process by a Prefect worker, which runs
    the flow runs of the registered deployments (see `deploy`) until the worker is interrupted."""
    from trnflow.flows.retraining.crashed import report_crashed
    from trnflow.flows.services.deploy import start_worker

    start_worker(open_home(), report_crashed)


def ui(options: Namespace) -> int:
    """Print the addresses of the web pages of Prefect and MLflow; return exit code 0. Starts neither server."""
    from trnflow.flows.services.pages import pages

    lines = pages(home_folder(), settings.TrackingConfig())
    emit(options, {"pages": lines}, *lines)
    return 0
