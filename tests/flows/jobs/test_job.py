"""A job in a home of its own makes the bits that its order's machine would make, stops, goes on, and refuses what is forged."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell, Shell
from tests.helpers.small_disk import small_disk
from tests.helpers.stores import new_store
from tests.helpers.waiting import wait_for
from tests.launch.processes import gone, marked
from trnflow.flows.jobs.listing import runs_of
from trnflow.flows.jobs.order import keep_order, order_file, parse_uri
from trnflow.flows.jobs.work import CODE_OF
from trnflow.tasks.errors import Interrupted
from trnflow.tasks.events import follow
from trnflow.tasks.events.retention import log_file
from trnflow.tasks.keys.hash_cache import sha256_bytes
from trnflow.tasks.platforms.protocol import STOPPED
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy

OWN = """
extends: tiny.yaml
format: {task: classification, make: 'mine:form'}
evaluate: {metrics: [{function: 'mine:half', less_is_better: false}]}
"""
MODULE = """
def form(row):
    return "text: " + row["text"]


def half(p):
    return 0.5
"""


def shell_in(folder: Path, store: Path, kind: type[Shell] = Shell) -> Shell:
    folder.mkdir()
    shell = kind(folder)
    shell.environ["TRNFLOW_STORE"] = str(store)
    return shell


def write_own(folder: Path) -> None:
    write_tiny(folder)
    (folder / "own.yaml").write_text(OWN)
    (folder / "mine.py").write_text(MODULE)


def stages_of(document: Any) -> dict[str, tuple[str, str]]:
    return {one["stage"]: (one["action"], one["artifact"]) for one in document["stages"]}


@pytest.fixture
def here(tmp_path: Path) -> Shell:
    shell = shell_in(tmp_path / "here", tmp_path / "store")
    write_own(shell.folder)
    return shell


@pytest.fixture
def there(tmp_path: Path) -> Shell:
    return shell_in(tmp_path / "there", tmp_path / "store")


def ordered(here: Shell, *settings: str) -> str:
    return str(here.json("run", "own.yaml", "--direct", "--detach", *settings)["uri"])


def result_of(there: Shell, uri: str) -> Any:
    job = parse_uri(uri)
    return json.loads((Path(job.root) / f"jobs/{job.id}/result.json").read_text())


@pytest.mark.slow
def test_one_recipe_here_and_as_a_job_is_one_digest(here: Shell, there: Shell, tmp_path: Path) -> None:
    alone = shell_in(tmp_path / "alone", tmp_path / "other")
    write_own(alone.folder)
    wanted = stages_of(alone.json("run", "own.yaml", "--direct"))
    uri = ordered(here)
    assert ordered(here) == uri, "the same order twice is one job"
    hidden = here.folder.rename(tmp_path / "hidden")
    done = there("job", uri)
    assert done.returncode == 0, done.stderr
    hidden.rename(here.folder)
    assert not os.listdir(there.folder / ".trnflow/jobs"), "what it laid out is gone"
    made = stages_of(result_of(there, uri))
    assert {stage: digest for stage, (_, digest) in made.items()} == {
        stage: digest for stage, (_, digest) in wanted.items()
    }
    assert made["train"][0] == "ran" and made["load_data"][0] == "hit"
    again = stages_of(here.json("run", "own.yaml", "--direct"))
    (job,) = {listed["job"] for listed in here.json("runs")["runs"]} - {None}
    assert job == parse_uri(uri).id and here("runs").stdout.count(f"  job {job}; ") == 1, "one line is marked"
    assert {action for action, _ in again.values()} == {"hit"} and again["evaluate_model"] == (
        "hit",
        wanted["evaluate_model"][1],
    )
    assert there("job", uri).returncode == 0, "done twice, it is hits"
    # an edited line of own code travels
    (here.folder / "mine.py").write_text(MODULE.replace("0.5", "0.25"))
    edited = ordered(here)
    assert edited != uri and there("job", edited).returncode == 0
    second = stages_of(result_of(there, edited))
    assert second["train"][0] == "hit" and second["evaluate_model"][0] == "ran"


@pytest.mark.slow
def test_a_job_that_is_stopped_goes_on_to_the_same_bits(here: Shell, there: Shell, tmp_path: Path) -> None:
    # 800 steps took a fast machine six seconds: training was over when `jobs --cancel` had started
    steps = ("train.max_steps=3000", "train.checkpoint_every=50", "export.target=none")
    uri = ordered(here, *steps)
    job = parse_uri(uri).id
    (listed,) = here.json("jobs")["jobs"]
    assert (listed["job"], listed["recipe"], listed["state"], listed["run"]) == (job, "own", "ordered", None)
    assert f"job {job} does not run: it is ordered" in here.error("jobs", job[:6], "--cancel", code=2)
    follower = here.start("jobs", job, "--follow", stdout=subprocess.PIPE)
    work = there.start("job", uri)
    store = Store(str(tmp_path / "store"), there.folder / ".trnflow")
    (listed,) = wait_for(lambda: [one for one in here.json("jobs", job)["jobs"] if one["stage"] == "train"])
    assert (listed["state"], listed["host"]) == ("running", socket.gethostname())
    wait_for(lambda: store.backend.names("partial"))
    assert "was asked to save its state" in here("jobs", job, "--cancel").stdout
    assert work.wait(120) == Interrupted.exit_code, "its platform is not to start it again"
    assert "cancelled" in follower.communicate(timeout=60)[0] and follower.returncode == 1
    assert here.json("jobs")["jobs"][0]["state"] == "stopped"
    stopped = result_of(there, uri)
    assert stopped["outcome"] == "stopped" and stopped["error"]["type"] == "Interrupted"
    # a platform's preemption may signal every process of a job, and again
    there.environ["JOB_OF_TEST"] = f"{tmp_path}"
    work = there.start("job", uri, stderr=subprocess.PIPE)
    second = wait_for(lambda: runs_of(store, job)[1:])[0]
    wait_for(log_file(store.home, second).exists)
    wait_for(lambda: {"metrics"} & {event["event"] for event in follow(log_file(store.home, second), 0)[0]})
    pids = marked(f"JOB_OF_TEST={tmp_path}")
    assert len(pids) >= 4, "job, warm parent, guard, worker"
    for _ in range(2):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.3)
    _, said = work.communicate(timeout=120)
    assert work.returncode == STOPPED and "training was stopped at step" in said and "its state is" not in said
    assert gone(pids)
    assert there("job", uri).returncode == 0
    assert len(runs_of(store, job)) == 3 and here.json("jobs")["jobs"][0]["state"] == "completed"
    alone = shell_in(tmp_path / "alone", tmp_path / "other")
    write_own(alone.folder)
    wanted = stages_of(alone.json("run", "own.yaml", "--direct", *steps))
    assert stages_of(result_of(there, uri))["train"][1] == wanted["train"][1]


@pytest.mark.slow
def test_an_order_takes_the_code_of_its_machine_along(here: Shell, there: Shell, tmp_path: Path) -> None:
    uri = ordered(here, "--until", "precompile")
    job, store = parse_uri(uri), Store(str(tmp_path / "store"), here.folder / ".trnflow")
    order = json.loads(store.backend.read(order_file(job.id)))
    from trnflow.flows.jobs.carry import ARCHIVE, CODE, unpack_code

    # an edited line of the program
    program = tmp_path / "program"
    store.copy_files(store.artifact(order["code"]["artifact"]), program)
    unpack_code(program / ARCHIVE, program)
    with (program / "trnflow/flows/jobs/work.py").open("a") as file:
        file.write("\nimport sys\nsys.stderr.write('the edited line\\n')\n")
    (program / ARCHIVE).unlink()
    import tarfile

    (packed := tmp_path / "packed").mkdir()
    with tarfile.open(packed / ARCHIVE, "w") as archive:
        archive.add(program / "trnflow", "trnflow")
    order["code"]["artifact"] = store.ingest(packed, CODE, {}).digest
    text = json.dumps(order, sort_keys=True, separators=(",", ":")).encode()
    digits = sha256_bytes(text).removeprefix("sha256:")
    store.backend.create(order_file(digits[:12]), text)
    done = there("job", f"{job.root}#{digits}")
    assert done.returncode == 0 and "starts again with the code of its order" in done.stderr
    assert "the edited line" in done.stderr and not os.listdir(there.folder / ".trnflow/jobs")
    # nothing of it stays in the environment of the tests
    assert CODE_OF not in os.environ


def test_what_is_forged_or_missing_is_one_line(tmp_path: Path) -> None:
    here = shell_in(tmp_path / "here", tmp_path / "store", InProcessShell)
    write_own(here.folder)
    store = new_store(tmp_path)
    root = store.root
    assert "is no job: ROOT#DIGEST" in here.error("job", f"{root}#12", code=2)
    assert f"there is no store at {tmp_path}/nowhere" in here.error("job", f"{tmp_path}/nowhere#{'0' * 64}", code=2)
    assert "there is no job 000000000000 in the store" in here.error("job", f"{root}#{'0' * 64}", code=2)
    store.backend.create(order_file("0" * 12), b"{}")
    assert "job 000000000000: the document is not what its digest says" in here.error(
        "job", f"{root}#{'0' * 64}", code=2
    )

    def order(**fields: Any) -> str:
        document: dict[str, Any] = {
            "schema": 1, "name": "x", "recipe": {"artifact": f"sha256:{'1' * 64}"}, "code": {"artifact": f"sha256:{'2' * 64}"},
            "until": "train", "given": [], "force": [], "libraries": {}, "environment": [],
        }  # fmt: skip
        text = json.dumps(document | fields, sort_keys=True, separators=(",", ":")).encode()
        digits = sha256_bytes(text).removeprefix("sha256:")
        store.backend.create(order_file(digits[:12]), text)
        return f"{root}#{digits}"

    assert "is of the schema 9, and this trnflow reads 1" in here.error("job", order(schema=9), code=2)
    assert "the order is not of its shape: given" in here.error("job", order(given=3), code=2)
    assert "is not in the store" in here.error("job", order(), code=1)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a").write_text("a")
    rows = {"artifact": store.ingest(tmp_path / "rows", "rows", {}).digest}
    assert "is no job code: rows" in here.error("job", order(code=rows), code=1)
    assert "the variable TOKEN_OF_TEST is not set here" in here.error(
        "job", order(environment=["TOKEN_OF_TEST"], code=own_code_of(store)), code=2
    )


@pytest.mark.slow
def test_a_store_that_may_only_be_read_takes_no_job(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        here, there = (shell_in(tmp_path / name, disk / "store") for name in ("here", "there"))
        for shell in (here, there):
            shell.environ["TRNFLOW_HOME"] = str(shell.folder / "home")
        write_own(here.folder)
        settings = ("store.min_free_gb=0", "export.target=none")
        uri = ordered(here, *settings)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        before = sorted(disk.rglob("*"))
        for shell, command in (
            (there, ("job", uri)),
            (here, ("run", "own.yaml", "--direct", "--detach", "train.seed=2", *settings)),
        ):
            done = shell(*command)
            assert done.returncode == 1 and "can only be read" in done.stderr and "Traceback" not in done.stderr, (
                done.stderr
            )
        assert sorted(disk.rglob("*")) == before


def own_code_of(store: Store) -> dict[str, str]:
    from trnflow.flows.jobs.carry import carry_code

    return {"artifact": carry_code(store)}


def test_gc_keeps_what_an_order_needs_until_it_has_ended(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a").write_text("a")
    digest = store.ingest(tmp_path / "rows", "rows", {}).digest
    job = f"jobs/{'1' * 12}"
    order = {"name": "x", "machine": "f" * 16, "recipe": {"artifact": digest}}
    documents = {
        "order.json": order,
        "submitted/0.json": {},
        "runs/r": {},
        "result.json": {"run": "r", "outcome": "stopped"},
    }
    for name, document in documents.items():
        store.backend.create(f"{job}/{name}", json.dumps(document).encode())
    for name in ("f", "0"):
        store.backend.create(f"machines/{name * 16}.json", b"{}")
    store.backend.create("runs/r.json", json.dumps({"recipe": "x", "outcome": "stopped", "stages": []}).encode())

    def collected(**policy: float) -> set[str]:
        """The files of jobs and machines that stay."""
        collect(store.backend, Policy(**policy), yes=True)  # type: ignore[arg-type]
        return {*store.backend.names("jobs"), *store.backend.names("machines")}

    whole = {f"{job}/{name}" for name in documents} | {f"machines/{'f' * 16}.json"}
    assert collected() == whole | {f"machines/{'0' * 16}.json"}, "they are young"
    assert collected(grace=0.0) == whole, "no order names the facts of the other machine"
    assert store.artifact(digest), "it goes on when it is run again"
    store.backend.replace(f"{job}/result.json", json.dumps({"run": "r", "outcome": "completed"}).encode())
    assert collected(grace=0.0) == whole and not store.backend.names("blobs")
    assert collected(grace=0.0, keep_last=0) == set()


def test_gc_keeps_a_job_that_is_queued_or_was_submitted_just_now(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    names = [
        f"jobs/{number * 12}/{name}" for number in "123" for name in ("order.json", "result.json", "submitted/0.json")
    ]
    for name in names:
        store.backend.create(name, b'{"run": "gone", "outcome": "completed"}')
        os.utime(Path(store.root) / name, (1e9, 1e9))
    store.backend.remove(names[1])
    store.backend.replace(names[5], b"{}")
    collect(store.backend, Policy(grace=3600.0), yes=True)
    assert store.backend.names("jobs") == [names[0], *names[2:6]]
    # ordered anew while gc looks: what is kept is the order alone
    uri = parse_uri(f"{store.root}#{'3' * 64}")
    store.backend.create(f"jobs/{uri.id}/submitted/1.json", b"{}")
    keep_order(store, uri)
    assert [name for name in store.backend.names("jobs") if "333" in name] == [
        names[6],
        f"jobs/{'3' * 12}/submitted/1.json",
    ]


def test_what_is_ordered_is_checked_before_rows_are_made(tmp_path: Path) -> None:
    here = shell_in(tmp_path / "here", tmp_path / "store", InProcessShell)
    write_own(here.folder)
    wrong = {
        ("--until", "trian"): "there is no stage trian",
        ("--until", "tokenize_text"): "tokenize_text runs here: a job begins behind pack_chunks",
        ("launch.environment.TOKEN=hunter2",): "launch.environment.TOKEN may be a secret",
    }
    for words, said in wrong.items():
        error = here.error("run", "own.yaml", "--direct", "--detach", *words, code=2)
        assert said in error and "hunter2" not in error and "load_data" not in error.split("error:")[0]
    assert not (tmp_path / "store/records").exists()
    assert here("jobs").stdout == "no jobs\n"
