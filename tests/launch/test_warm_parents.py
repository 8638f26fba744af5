"""A warm parent gives a process the environment that a program of its own would have, or leaves the start to others."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.read_variables import read_on_import
from tests.launch import stages
from trnflow.tasks.launch import warm_parents
from trnflow.tasks.launch.call import Call
from trnflow.tasks.launch.local import run_call
from trnflow.tasks.system.process import ATTEMPT, lives_on

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="warm parents are for Linux")


def seen(folder: Path, preload: tuple[str, ...], **environ: str) -> Any:
    """What a stage says of its process: parent of its guard, environment, modules imported before its own."""
    config = stages.NapConfig(pids=folder / "pids.json")
    call = Call.of(stages.look_around, config, {}, folder / "out", preload=preload, environ=environ)
    heard: list[Any] = []
    looked = config.pids.with_name("looked")
    looked.unlink(missing_ok=True)

    def hear(event: Any) -> None:
        heard.append((event, lives_on(environ.get(ATTEMPT, "none"))))
        looked.touch()

    meta = run_call(call, hear)
    assert heard == [({"info": "looks"}, ATTEMPT in environ)]
    return meta


def test_a_forked_process_has_the_environment_of_a_started_one(tmp_path: Path) -> None:
    variables = {ATTEMPT: f"attempt-{os.getpid()}", "CPU_NUM_DEVICES": "2", "OMP_NUM_THREADS": "3"}
    started, forked = (seen(tmp_path, preload, **variables) for preload in ((), ("json",)))
    assert started["environ"] == forked["environ"]
    assert started["folder"] == forked["folder"] == os.getcwd()
    assert not lives_on(variables[ATTEMPT])


def test_a_parent_serves_one_environment_and_variables_that_are_read_late(tmp_path: Path) -> None:
    def parent(**variables: str) -> int:
        return int(seen(tmp_path, ("json",), **variables)["parent"])

    first = parent(CPU_NUM_DEVICES="1", **{ATTEMPT: "one"})
    assert parent(CPU_NUM_DEVICES="2", **{ATTEMPT: "two"}) == first
    assert parent(XLA_FLAGS="--a=1") != first


def test_variables_that_no_library_reads_start_no_second_parent_and_reach_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRNFLOW_FIRST", "1")
    monkeypatch.setenv("PREFECT_API_URL", "first")
    first = seen(tmp_path, ("json",))
    monkeypatch.delenv("TRNFLOW_FIRST")
    monkeypatch.setenv("PREFECT_API_URL", "second")
    monkeypatch.setenv("MLFLOW_SECOND", "2")
    second, started = seen(tmp_path, ("json",)), seen(tmp_path, ())
    assert second["parent"] == first["parent"]
    assert first["environ"]["TRNFLOW_FIRST"] == "1" and first["environ"]["PREFECT_API_URL"] == "first"
    assert second["environ"] == started["environ"]
    monkeypatch.setenv("ANY_OTHER", "1")
    assert seen(tmp_path, ("json",))["parent"] != first["parent"]


def test_no_login_of_prefect_reaches_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what a warm parent forks, nor what is started without one."""
    for name in ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_KEY"):
        monkeypatch.setenv(name, "planted")
    monkeypatch.setenv("PREFECT_API_URL", "kept")
    for modules in (("json",), ()):
        environ = seen(tmp_path, modules)["environ"]
        assert "planted" not in environ.values() and environ["PREFECT_API_URL"] == "kept"


@pytest.mark.slow
def test_no_module_that_is_imported_before_the_fork_reads_a_variable_that_starts_no_parent(tmp_path: Path) -> None:
    """Both readings count: in Python, and in the C of torch, OpenMP, BLAS and Arrow. What goes through all variables takes those
    of its own prefix: TQDM_, NETWORKX_ and FSSPEC_."""
    modules = [*warm_parents.LIGHT, *(module for modules in warm_parents.HEAVY.values() for module in modules)]
    environ = {"PATH": os.environ["PATH"], **warm_parents.WITHOUT_THREADS}  # what is not set is only read on purpose
    read = read_on_import(modules, tmp_path, environ)
    assert {
        "OMP_NUM_THREADS",
        "GOMP_SPINCOUNT",
        "USE_TORCH_XLA",
        "HF_HUB_OFFLINE",
        "CI",
    } <= read.names  # all is watched
    assert not [name for name in read.names if warm_parents.IRRELEVANT.fullmatch(name)]
    known = ("tqdm/utils.py", "networkx/utils/backends.py", "fsspec/config.py")
    assert not [file for file in read.scans if not file.endswith(known)]


def test_libraries_are_there_and_the_projects_own_code_is_imported_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    found = seen(tmp_path, warm_parents.modules_for(warm_parents.HEAVY, {}))
    assert found["torch"]
    assert found["threads"] == 1
    assert "TORCHINDUCTOR_CACHE_DIR" not in found["environ"]  # peft's import sets it to a folder of the parent


def test_a_parent_that_has_threads_or_lacks_a_module_leaves_the_start_to_the_flow(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    for module in ("threaded", "no_such_module"):
        assert seen(tmp_path, (module,), PYTHONPATH=str(tmp_path))["made"]


def test_a_parent_that_answers_too_late_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its late answer would be read as that to the next request."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(warm_parents, "PATIENCE", 0)
    parent = warm_parents.WarmParent({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert parent.start({"modules": ["slow_to_import"]}, [0, 1, 2]) is None
    assert parent.ended


def test_a_stage_does_not_wait_for_modules_that_only_others_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(600)\n")
    parent = warm_parents.warm_parent(warm_parents.process_environ({"PYTHONPATH": str(tmp_path)}))
    pid, send = parent._process.pid, socket.send_fds
    os.kill(pid, signal.SIGSTOP)  # until the request is there: without one, it would begin to import what others need
    parent.preload(("json", "slow_to_import"))

    def sent(*arguments: Any) -> int:
        length = send(*arguments)
        os.kill(pid, signal.SIGCONT)
        return length

    monkeypatch.setattr(socket, "send_fds", sent)
    try:
        assert seen(tmp_path, ("json",), PYTHONPATH=str(tmp_path))["parent"] == pid
    finally:
        parent.close()
