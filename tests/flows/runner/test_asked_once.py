"""A command reads its recipe once, asks each source once, and makes one plan: counted where it reads and asks."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import RECIPE as TINY
from tests.helpers import hub_server
from tests.helpers.command_line import RECIPE, InProcessShell, Shell
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from tests.helpers.s3_server import requests, s3_endpoint, s3_root  # noqa: F401 - fixtures
from tests.helpers.serving import QuietHandler, serving
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.plan import Plan

ROWS = b"text,label\n" + b"".join(b"row %d,%s\n" % (n, (b"pos", b"neg")[n % 2]) for n in range(60))
DIRECT = ("--direct", "tracking.enabled=false")


class Counted(ThreadingHTTPServer):
    """Serves one file without an ETag, so that only its bytes tell whether it changed; counts requests by method."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        self.rows = ROWS


class Handler(QuietHandler):
    server: Counted

    def do_GET(self) -> None:
        self.server.asked[self.command] += 1
        self.answer(200, self.server.rows)

    do_HEAD = do_GET


@pytest.fixture
def server() -> Iterator[Counted]:
    with serving(Counted()) as server:
        yield server


@pytest.fixture
def shell(tmp_path: Path, server: Counted, inline_calls: None) -> Shell:  # noqa: F811
    source = f"http://127.0.0.1:{server.server_port}/set.csv"
    split = "split: {validation: 0.1, test: 0.2}"
    (tmp_path / "mine.yaml").write_text(RECIPE.replace("source: rows", f"source: '{source}', {split}"))
    return InProcessShell(tmp_path)


def asked(shell: Shell, server: Counted, *arguments: str) -> dict[str, int]:
    server.asked.clear()
    done = shell(*arguments)
    assert done.returncode == 0, done.stderr
    return dict(server.asked)


def test_a_url_is_asked_and_downloaded_once_a_command(shell: Shell, server: Counted) -> None:
    once = {"HEAD": 1, "GET": 1}
    assert asked(shell, server, "preview", "mine.yaml", "tracking.enabled=false") == once
    assert asked(shell, server, "run", "mine.yaml", "--until", "pack_chunks", *DIRECT) == once
    assert asked(shell, server, "run", "mine.yaml", "--until", "pack_chunks", "data.limit=40", *DIRECT) == once
    assert asked(shell, server, "run", "mine.yaml", "--until", "pack_chunks", *DIRECT) == once, "to know that all hits"
    assert asked(shell, server, "plan", "mine.yaml") == {}


class Counts:
    """Of this process: readings of tiny.yaml, and plans by the last stage of their graph."""

    def __init__(self) -> None:
        self.readings = 0
        self.plans: Counter[str] = Counter()

    def note_reading(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            self.readings += Path(arguments[0]).name == "tiny.yaml"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts, init = Counts(), Plan.__init__

    def counted(plan: Plan, graph: Graph, *arguments: Any) -> None:
        counts.plans[graph.nodes[-1].name] += 1
        init(plan, graph, *arguments)

    monkeypatch.setattr(Plan, "__init__", counted)
    sys.addaudithook(counts.note_reading)  # stays for good: Python removes none
    return counts


@pytest.fixture
def tiny(tmp_path: Path, server: Counted, inline_calls: None) -> InProcessShell:  # noqa: F811
    """A folder with the recipe `tiny.yaml`, whose rows the server has."""
    source = f"http://127.0.0.1:{server.server_port}/set.csv"
    split = "split: {validation: 0.1, test: 0.4}"
    (tmp_path / "tiny.yaml").write_text(TINY.replace("source: rows", f"source: '{source}', {split}"))
    return InProcessShell(tmp_path)


def counted(
    shell: Shell, server: Counted, counts: Counts, *arguments: str
) -> tuple[int, dict[str, int], dict[str, int]]:
    """Run a command; return how often it read the recipe, its plans and its requests."""
    counts.readings = 0
    counts.plans.clear()
    requests = asked(shell, server, *arguments)
    return counts.readings, dict(counts.plans), requests


@pytest.mark.slow
def test_a_retrain_trains_on_what_its_one_plan_has_checked(
    tiny: InProcessShell, server: Counted, counts: Counts
) -> None:
    """Each retrain asks the source once more after its round, to see whether the data changed meanwhile."""
    retrain = ("retrain", "tiny.yaml", "--direct")
    twice = {"HEAD": 2, "GET": 2}
    scored = {"score_rows": 1}
    first = counted(tiny, server, counts, *retrain)
    assert first == (1, {"evaluate_model": 2, "freeze_rows": 1} | scored, twice), "frozen rows leave the training rows"
    assert counted(tiny, server, counts, *retrain) == (1, {"evaluate_model": 1}, {"HEAD": 1, "GET": 1}), "unchanged"
    server.rows += b"".join(b"more %d,%s\n" % (n, (b"pos", b"neg")[n % 2]) for n in range(20))
    changed = counted(tiny, server, counts, *retrain)
    assert changed == (1, {"evaluate_model": 1, "score_rows": 2}, twice)
    leakage = counted(tiny, server, counts, *retrain, "train.max_steps=2", "checks=[{what: leakage}]")
    assert leakage == (1, {"evaluate_model": 2, "score_rows": 2}, twice), "the check's rows have the frozen ones"


@pytest.mark.slow
def test_a_sweep_and_its_winner_read_and_ask_once(tiny: InProcessShell, server: Counted, counts: Counts) -> None:
    trials = ("--trials", "3", "--sampler", "random", "train.learning_rate=1e-4..1e-2:log")
    sweep = counted(tiny, server, counts, "sweep", "tiny.yaml", *trials)
    assert sweep == (1, {"evaluate_model": 4}, {"HEAD": 1, "GET": 1})


def test_a_name_of_the_hub_is_resolved_once_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    get = hub_server.Handler.do_GET

    def counted(handler: hub_server.Handler) -> None:
        path = handler.path.split("?")[0]
        seen["revision"] += path.startswith("/api/datasets/me/set/revision") or path == "/api/datasets/me/set"
        get(handler)

    monkeypatch.setattr(hub_server.Handler, "do_GET", counted)
    monkeypatch.setattr(hub_server.Handler, "do_HEAD", counted)
    text = RECIPE.replace("source: rows", "source: me/set, split: {validation: 0.1, test: 0.2}")
    (tmp_path / "mine.yaml").write_text(text)
    with hub_server.serve({"train.csv": ROWS}) as address:
        shell = Shell(tmp_path)  # huggingface_hub reads HF_ENDPOINT when it is imported
        plain = shell("run", "mine.yaml", "--until", "load_data", *DIRECT, HF_ENDPOINT=address)
        assert plain.returncode == 0, plain.stderr
        first = seen["revision"]
        seen.clear()
        again = shell("run", "mine.yaml", "--until", "load_data", *DIRECT, HF_ENDPOINT=address)
        assert again.returncode == 0, again.stderr
    assert seen["revision"] == 1, "a hit asks which commit the name means, once"
    assert first <= 4, "and the sizes of its files are asked for, and the datasets library asks for itself"


def test_an_object_of_s3_is_asked_and_downloaded_once_a_command(tmp_path: Path, s3_root: str) -> None:  # noqa: F811
    import boto3

    bucket = s3_root.split("/")[2]
    s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    split = "split: {validation: 0.1, test: 0.2}"
    (tmp_path / "mine.yaml").write_text(RECIPE.replace("source: rows", f"source: 's3://{bucket}/set.csv', {split}"))
    shell = Shell(tmp_path)

    def asked(*arguments: str) -> list[str]:
        before = len(requests(bucket))
        done = shell(*arguments)
        assert done.returncode == 0, done.stderr
        return requests(bucket)[before:]

    head, get = (f"{method} /{bucket}/set.csv" for method in ("HEAD", "GET"))
    run = ("run", "mine.yaml", "--until", "load_data", *DIRECT)
    for rows in (ROWS, ROWS + b"one more,pos\n"):
        s3.put_object(Bucket=bucket, Key="set.csv", Body=rows)
        # all bytes of one GET are of one version
        assert asked(*run) == [head, get]
    assert asked(*run) == [head], "unchanged"
    assert asked("plan", "mine.yaml") == []
