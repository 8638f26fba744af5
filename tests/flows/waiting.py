"""Stages that wait: for a gate, or to be stopped. They use nothing of flows, as stages do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

from trnflow.tasks.artifact import Meta
from trnflow.tasks.config import NOT_KEYED, StageConfig
from trnflow.tasks.errors import Interrupted
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.system.process import ATTEMPT


class OnceConfig(StageConfig):
    """number: keyed; journal: gets a line an execution, the name of its run; gate: the stage ends when this file exists; salt:
    spoils determinism."""

    number: int = 0
    journal: Annotated[str, NOT_KEYED]
    gate: Annotated[str, NOT_KEYED] = ""
    salt: Annotated[str, NOT_KEYED] = ""
    mute: Annotated[bool, NOT_KEYED] = True


@stage(kind="once")
def once(config: OnceConfig, out: Workdir) -> Meta:
    _note(config, os.environ[ATTEMPT].rpartition("-once-")[0])
    while config.gate and not Path(config.gate).exists():
        time.sleep(0.01)
        if not config.mute:
            out.progress(0, 1)
    (out.path / "made.txt").write_text(f"{config.number}{config.salt}")
    return {}


@stage(kind="apart", resumable=True)
def apart(config: OnceConfig, out: Workdir) -> Meta:
    """As training does: on SIGTERM it saves its state, slowly, and leaves; begun again it goes on from there."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    assert out.partial is not None
    found = out.partial.newest(out.warn)
    _note(config, f"begins at step {found[0] if found else 0}")
    while not found and not stopped:
        time.sleep(0.01)
    if stopped:
        time.sleep(0.5)
        (out.scratch / "state").mkdir()
        (out.scratch / "state" / "weights").write_text("half trained")
        out.partial.commit(7, out.scratch / "state")
        _note(config, "saved")
        raise Interrupted("stopped at step 7", "run it again to resume")
    (out.path / "made.txt").write_text("trained")
    return {}


def _note(config: OnceConfig, text: str) -> None:
    with open(config.journal, "a") as journal:
        journal.write(f"{text}\n")
