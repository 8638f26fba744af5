"""Whether a process still runs, as leases and cleaning ask."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.helpers.waiting import wait_for
from trnflow.tasks.system.process import Process, how_ended, is_running, process_of, read_tag, this_process


def test_a_process_that_has_ended_is_dead_before_its_parent_asks_and_after() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = process_of(child.pid)
    assert process.is_running_here() and not process.is_dead() and read_tag(process.tag) == process
    child.send_signal(signal.SIGKILL)
    wait_for(lambda: os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))  # a zombie from now on
    assert process.is_dead() and not process.is_running_here() and not is_running(child.pid)
    child.communicate()
    assert process.is_dead() and not process.is_running_here()


def test_a_later_process_with_the_same_pid_is_another() -> None:
    here = this_process()
    assert not here.is_dead()
    assert here._replace(start=here.start - 1).is_dead()


def test_of_a_machine_that_restarted_all_are_dead_and_of_others_nothing_is_known() -> None:
    here = this_process()
    assert here._replace(boot="before").is_dead()
    for other in (here._replace(boot="theirs", host="their machine"), Process("", "theirs", here.space, 1, 1)):
        assert not other.is_dead() and not other.is_running_here()
    assert not here._replace(space="a container's").is_dead()


def test_a_name_that_many_machines_have_tells_nothing_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, is_dead in (("algo-1", False), ("localhost", False), ("", False), ("algo-one", True)):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        assert this_process()._replace(boot="another instance's").is_dead() is is_dead


def test_how_a_process_ended() -> None:
    told = ["exit code 0", "exit code 3", "signal SIGKILL", "signal 200"]
    assert [how_ended(status) for status in (0, 3, -9, -200)] == told
