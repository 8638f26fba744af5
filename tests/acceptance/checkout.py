"""A project of three stages with helpers two imports deep, edited and run as a user does: each command a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from trnflow.tasks.store import Store

REPOSITORY = Path(__file__).resolve().parents[2]

FILES = {
    "pyproject.toml": "",
    "rows.txt": "b a c",
    "mill/__init__.py": "",
    "mill/letter.txt": "not declared",
    "mill/other.py": "WORDS = 3\n",
    "mill/read.py": '''
from pathlib import Path
from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.stage import Workdir, stage


@stage(kind="rows")
def read(config: StageConfig, source: Source, out: Workdir) -> Meta:
    """Copy the rows."""
    (out.path / "rows").write_text(Path(source.location["path"]).read_text())
    return {}
''',
    "mill/sort.py": """
import importlib
from pathlib import Path
from typing import Annotated
from mill.order import ordered
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import NOT_KEYED, StageConfig
from trnflow.tasks.stage import Workdir, stage


class SortConfig(StageConfig):
    sneaks: Annotated[str, NOT_KEYED] = ""


@stage(kind="sorted")
def sort(config: SortConfig, rows: Input, out: Workdir) -> Meta:
    if config.sneaks == "module":
        importlib.import_module("mill.other")
    if config.sneaks == "file":
        (Path(__file__).parent / "letter.txt").read_text()
    (out.path / "sorted").write_text(ordered((rows.path / "rows").read_text()))
    return {}
""",
    "mill/count.py": """
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.stage import Workdir, stage


@stage(kind="counts")
def count(config: StageConfig, rows: Input, out: Workdir) -> Meta:
    from mill.totals import total
    (out.path / "count").write_text(str(total(rows.path / "sorted")))
    return {}
""",
    "mill/order.py": "from mill.compare import key\n\ndef ordered(text):\n    return ' '.join(sorted(text.split(), key=key))\n",
    "mill/compare.py": '"""How words compare."""\n\ndef key(word):\n    return (word, 0)\n',
    "mill/totals.py": "def total(path):\n    return len(path.read_text().split())\n",
    "mill/wiring.py": """
import json, sys
from pathlib import Path
from trnflow.flows.recipes.recipe import load
from trnflow.flows.runner.context import context_of, make_plan
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.run import settle
from mill.count import count
from mill.read import read
from mill.sort import SortConfig, sort
from trnflow.tasks.artifact import Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.store import Store

def flow(source, sneaks):
    rows = Node(read, StageConfig(), {"source": source})
    ordered = Node(sort, SortConfig(sneaks=sneaks), {"rows": rows})
    return Graph((rows, ordered, Node(count, StageConfig(), {"rows": ordered})))

what, root, home, sneaks = sys.argv[1:]
store = Store(root, Path(home))
store.prepare()
context = context_of(load("demo", ["store.min_free_gb=0"]), store, offline=True)
path = str(Path("rows.txt").absolute())
source = Source("data", {"digest": store.memo.digest(path)}, {"path": path})
graph = flow(source, sneaks)
plan = context.plan = make_plan(graph, context)
said = {}
try:
    if what == "run":
        settle(graph, context, plan=plan)
except TrnflowError as error:
    said = {"stage": error.stage, **error.to_json()}
store.memo.save()
print(json.dumps({
    "actions": {name: step.action for name, step in plan.steps.items() if step.settled or what == "plan"},
    "why": {name: step.why for name, step in plan.steps.items() if step.settled or what == "plan"},
    "error": said,
}))
""",
}


class Checkout:
    """root: of the store; the home is beside the checkout, so that it may move."""

    def __init__(self, folder: Path, root: str) -> None:
        self.folder, self.root, self.home = folder / "checkout", root, folder / "home"
        for name, text in FILES.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def edit(self, name: str, before: str, after: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))

    def move(self, to: Path) -> None:
        shutil.move(self.folder, to)
        self.folder = to

    def store(self) -> Store:
        return Store(self.root, self.home)

    def run(self, sneaks: str = "") -> dict[str, Any]:
        """{"actions": {stage: action}, "why": {stage: reason}, "error": {} or what was said}"""
        return self._call("run", sneaks)

    def plan(self) -> dict[str, Any]:
        return self._call("plan", "")

    def again(self) -> dict[str, str]:
        return dict(self.run()["actions"])

    def _call(self, what: str, sneaks: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "mill.wiring", what, self.root, str(self.home), sneaks]
        environ = os.environ | {"PYTHONPATH": f"{self.folder}{os.pathsep}{REPOSITORY}"}
        done = subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))
