"""A flow in miniature: runs a stage of `stages` and writes what became of it. Killed in every way by test_orphans."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from tasks.errors import TrnflowError
from tasks.launch.job import JobSpec
from tasks.launch.local import interrupt_jobs, run_job
from tests.launch import stages


def main(folder: Path, stage: str, how: str, grace: float, *, threaded: bool) -> None:
    config = stages.NapConfig(how=how, pids=folder / "pids.json")
    spec = JobSpec.of(getattr(stages, stage), config, {}, out=folder / "out", scratch=folder / "scratch")
    heard: list[object] = []

    def work() -> None:
        try:
            outcome: object = run_job(spec, heard.append, grace_seconds=grace)
        except TrnflowError as error:
            outcome = error.to_json()
        (folder / "outcome.json").write_text(json.dumps({"outcome": outcome, "heard": heard}))

    if not threaded:
        return work()
    done = threading.Event()
    threading.Thread(target=lambda: (work(), done.set())).start()
    while not done.is_set():
        try:
            done.wait(0.1)  # not `join`, which in Python 3.11 forgets the thread at Ctrl-C
        except KeyboardInterrupt:
            interrupt_jobs()
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]), threaded=sys.argv[5] == "thread")
