"""`trnflow job ROOT#DIGEST`: run a job that `trnflow run --detach` ordered, such as on another machine."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.jobs.order import parse_uri
from trnflow.flows.jobs.work import work


def add_commands(sub: Any, common: ArgumentParser) -> None:
    parser = add_command(sub, "job", job, common, "run a job that `run --detach` ordered on another machine")
    parser.add_argument("uri", metavar="ROOT#DIGEST", help="the store and the order, as `run --detach` prints them")


def job(options: Namespace) -> int:
    return work(parse_uri(options.uri))
