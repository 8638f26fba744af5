"""A stage that counts until a file appears, for tests of commands that watch a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from trnflow.tasks.artifact import Meta
from trnflow.tasks.config import NOT_KEYED, StageConfig
from trnflow.tasks.stage import Workdir, stage


class WaitConfig(StageConfig):
    path: Annotated[str, NOT_KEYED]


@stage(kind="waits")
def wait_for(config: WaitConfig, out: Workdir) -> Meta:
    print("a line of the stage", flush=True)
    for step in range(1, 100_000):
        out.progress(min(step, 99), 100, "looks")
        if Path(config.path).exists():
            break
        time.sleep(0.05)
    print("the last line", flush=True)
    return {}
