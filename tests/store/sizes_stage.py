"""A stage that reads the size of its input, in a module that imports nothing but what stages are made of."""

from __future__ import annotations

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.stage import Workdir, stage


@stage(kind="sizes")
def measure(config: StageConfig, rows: Input, out: Workdir) -> Meta:
    (out.path / "size").write_text(str((rows.path / "0.bin").stat().st_size))
    return {}
