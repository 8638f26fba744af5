"""Which commit of the code a run has on record."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trnflow.flows.runner import run_log


def test_the_checkout_is_on_record_with_whether_it_was_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.example"]
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (code := tmp_path / "flows/runner/run_log.py").parent.mkdir(parents=True)
    code.write_text("one")
    monkeypatch.setattr(run_log, "__file__", str(code))
    git("init", "--quiet")
    git("add", "flows")
    git("commit", "--quiet", "--message", "One.")
    (tmp_path / "untracked").touch()
    assert run_log.checkout_state() == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    code.write_text("two")
    assert run_log.checkout_state() == {"commit": git("rev-parse", "HEAD"), "dirty": True}


def test_git_is_not_run_in_a_repository_around_an_installed_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project that was unpacked with its `.git` says there which programs git runs."""
    (code := tmp_path / "venv/trnflow/flows/runner/run_log.py").parent.mkdir(parents=True)
    code.touch()
    monkeypatch.setattr(run_log, "__file__", str(code))
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "config", "core.fsmonitor", f"touch {tmp_path}/harm; false"], cwd=tmp_path, check=True)
    assert run_log.checkout_state() is None and not (tmp_path / "harm").exists()
    subprocess.run(["git", "status"], cwd=code.parent, check=True, capture_output=True)
    assert (tmp_path / "harm").exists(), "which git would have run"
