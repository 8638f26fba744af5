"""A flow in miniature: runs a stage of `stages` and writes what became of it. Killed in every way by test_orphans."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from tests.launch import stages
from tests.launch.processes import send
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.launch.call import Call
from trnflow.tasks.launch.local import run_call


def main(folder: Path, stage: str, how: str, grace: float, *, threaded: bool, forked: bool) -> None:
    config = stages.NapConfig(how=how, pids=folder / "pids.json")
    call = Call.of(
        getattr(stages, stage), config, {}, folder / "out", preload=("json",) if forked else (), grace_seconds=grace
    )
    heard: list[object] = []

    def work() -> None:
        try:
            outcome: object = run_call(call, heard.append)
        except TrnflowError as error:
            outcome = error.to_json()
        (folder / "outcome.json").write_text(json.dumps({"outcome": outcome, "heard": heard}))

    if not threaded:
        return work()
    done = threading.Event()
    thread = threading.Thread(target=lambda: (work(), done.set()))
    thread.start()
    while not done.is_set():
        try:
            done.wait(0.1)  # not `join`, which in Python 3.11 forgets the thread at Ctrl-C
        except KeyboardInterrupt:
            send(thread, KeyboardInterrupt)
    return None


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        sys.argv[3],
        float(sys.argv[4]),
        threaded="thread" in sys.argv[5],
        forked="forked" in sys.argv[5],
    )
