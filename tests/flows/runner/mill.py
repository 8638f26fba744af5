"""A stage that keeps its predictions, in a package of its own whose code tests edit.

    python -m tests.flows.runner.mill FOLDER RUN PASS

runs it as the run RUN, with the setting `pass_mark`.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from tests.helpers.runs import context, run_graph
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.plan import Step
from trnflow.tasks.artifact import Meta
from trnflow.tasks.store import Store
from trnflow.tasks.system.clock import now

PREDICTING = """
import os, time
from typing import Annotated
from trnflow.tasks.config import NOT_KEYED, StageConfig
from trnflow.tasks.stage import stage

class PredictConfig(StageConfig):
    rows: int = 5
    log: Annotated[str, NOT_KEYED] = ""
    seconds: Annotated[float, NOT_KEYED] = 0.0

@stage(kind="judged.shard")
def predict(config: PredictConfig, out):
    with open(config.log, "a") as log:
        log.write("predicts\\n")
    time.sleep(config.seconds)
    (out.path / "rows.txt").write_text(" ".join(map(str, range(config.rows))))
    out.figures(latency=time.monotonic())
    return {"first": 0}
"""
SCORING = """
import time
from mill.predicting import PredictConfig
from trnflow.tasks.artifact import Input
from trnflow.tasks.stage import Kept, stage

class JudgeConfig(PredictConfig):
    pass_mark: int = 3
    def predicting(self):
        return PredictConfig(rows=self.rows, log=self.log, seconds=self.seconds)

@stage(kind="judged", kept={"predictions": Kept("mill.predicting:predict", JudgeConfig.predicting)})
def judge(config: JudgeConfig, predictions: Input, out):
    with open(config.log, "a") as log:
        log.write("scores\\n")
    rows = [int(row) for row in (predictions.path / "rows.txt").read_text().split()]
    passed = sum(row >= config.pass_mark for row in rows) + predictions.meta["first"]
    (out.path / "passed.txt").write_text(str(passed))
    return {"metrics": {"passed": passed}}
"""


class Mill:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        (folder / "mill").mkdir(exist_ok=True)
        for name, text in {"__init__": "", "predicting": PREDICTING, "scoring": SCORING}.items():
            if not self.file(name).exists():
                self.file(name).write_text(text)
        self.store().prepare()

    def file(self, name: str) -> Path:
        return self.folder / f"mill/{name}.py"

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.file(name).read_text()
        assert old in text
        self.file(name).write_text(text.replace(old, new))

    def store(self) -> Store:
        return Store(str(self.folder / "store"), self.folder / "home")

    def graph(self, **config: float) -> Graph:
        scoring = importlib.import_module("mill.scoring")
        return Graph((Node(scoring.judge, scoring.JudgeConfig(log=str(self.log), **config), {}),))

    def run(self, run: str = "r", *, force: bool = False, **config: float) -> Step:
        ran = run_graph(self.graph(**config), context(self.store(), run=run), force=["judge"] if force else [])
        step = ran.steps["judge"]
        document = {"recipe": "mill", "run": run, "outcome": "completed", "ended": now(), "stages": [step.outcome()]}
        self.store().write_run(run, document)
        return step

    def done(self) -> list[str]:
        """What has run so far, in order."""
        return self.log.read_text().split() if self.log.exists() else []

    def kept(self) -> list[Meta]:
        return self.store().records("judge.shard")


def main() -> None:
    folder, run, mark = sys.argv[1:]
    print(Mill(Path(folder)).run(run, pass_mark=int(mark), seconds=float(os.environ.get("SECONDS_TAKEN", 0))).metrics)


if __name__ == "__main__":
    main()
