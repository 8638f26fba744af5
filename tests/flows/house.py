"""A project with one package, `house`: a stage that does what its setting `how` says, and one whose part does (`sharded`)."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.helpers.runs import context, plan_graph, run_graph
from trnflow.flows.runner.graph import Graph, Node
from trnflow.tasks.artifact import Source
from trnflow.tasks.events import Reader
from trnflow.tasks.store import Store

STAGES = """
import importlib, os, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import NOT_KEYED, StageConfig
from trnflow.tasks.stage import Part, Parts, Workdir, stage
from house import known

HERE = Path(__file__).parent

class Config(StageConfig):
    how: str

def make(config, source, out):
    text = WAYS[config.how](Path(source.location["path"]), out)
    (out.path / "text").write_text(str(text))
    return {}

def lazily(path, out):
    from house.lazy import VALUE
    return VALUE

def swallowed(path, out):
    try:
        return importlib.import_module("house.other").VALUE
    except Exception:
        return "fallback"

def renamed(path, out):
    try:
        return (HERE / "letter.txt").read_text()
    except Exception as error:
        raise RuntimeError("no letter") from error

def pooled(path, out):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: (HERE / name).read_text(), ["letter.txt"]))

def shown(path, out):
    import linecache, traceback
    linecache.clearcache()
    try:
        known.fail()
    except ValueError:
        return len(traceback.format_exc()) + len(linecache.getlines(str(HERE / "other.py")))

def local_state(path, out):
    return (HERE.parent / ".cache/state").read_text(), (HERE.parent / "store/FORMAT.json").read_text()

def edited(path, out):
    (HERE / "lazy.py").write_text("VALUE = 9")
    from house.lazy import VALUE
    return VALUE

def touched(path, out):
    (HERE / "lazy.py").write_text("# the same\\nfrom house.deep import VALUE")
    from house.lazy import VALUE
    return VALUE

def temporary():
    import tempfile
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("x")
        file.flush()
        return Path(file.name).read_text()

def sibling():
    import single
    return single.VALUE

def spoken(path, out):
    out.info("load something")
    return 1

WAYS = {
    "known": lambda path, out: known.VALUE,
    "lazy": lazily,
    "input": lambda path, out: path.read_text(),
    "asset": lambda path, out: (HERE / "template.txt").read_text(),
    "shown": shown,
    "local state": local_state,
    "writes": lambda path, out: (HERE.parent / "made.txt").write_text("x"),
    "probes": lambda path, out: Path("setup.cfg").exists() or (HERE / "nothing.txt").exists(),
    "spoken": spoken,
    "touched": touched,
    "edited": edited,
    "import_module": lambda path, out: importlib.import_module("house.other").VALUE,
    "__import__": lambda path, out: __import__("house.other").other.VALUE,
    "sys.modules": lambda path, out: sys.modules.get("house.other", importlib).VALUE,
    "run": lambda path, out: __import__("runpy").run_path(str(HERE / "other.py"))["VALUE"],
    "swallowed": swallowed,
    "file": lambda path, out: (HERE / "letter.txt").read_text(),
    "descriptor": lambda path, out: os.read(os.open(HERE / "letter.txt", os.O_RDONLY), 9),
    "relative": lambda path, out: open("house/../house/letter.txt").read(),
    "renamed": renamed,
    "pooled": pooled,
    "sibling by name": lambda path, out: importlib.import_module("beside").VALUE,
    "sibling": lambda path, out: sibling(),
    "beside": lambda path, out: (HERE.parent / "letter.txt").read_text(),
    "outside": lambda path, out: (HERE.parents[1] / "prices.csv").read_text(),
    "module outside": lambda path, out: (sys.path.append(str(HERE.parents[1] / "else")), __import__("strange")),
    "hidden": lambda path, out: (HERE.parents[1] / ".else/prices.csv").read_text(),
    "temporary": lambda path, out: temporary(),
    "system": lambda path, out: Path("/etc/passwd").read_text(),
    "script": lambda path, out: subprocess.check_output([sys.executable, str(HERE / "other.py")]),
}

@stage(kind="texts", assets=("house/template.txt",))
def here(config: Config, source: Source, out: Workdir) -> Meta:
    return make(config, source, out)

def one_part(config, source, out):
    return [Part({"params": {}, "inputs": {}}, {"path": source.location["path"]})]

def part_of(config, part, out):
    return {"value": WAYS[config.how](Path(part["path"]), out)}

@stage(kind="texts", split=one_part, part=part_of, keep_parts=True)
def sharded(config: Config, source: Source, parts: Parts, out: Workdir) -> Meta:
    (out.path / "text").write_text(str([result.meta["value"] for result in parts.of()]))
    return {}

@stage(kind="texts")
def here_again(config: Config, texts: Input, out: Workdir) -> Meta:
    (out.path / "text").write_text((texts.path / "made.txt").read_text())
    (out.path / "real").write_text((texts.path / "made.txt").resolve().read_text())
    return {}
"""


class Project:
    """A checkout with the package `house`, its store within."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.root = str(folder / "store")
        files = {
            "pyproject.toml": "", "rows.txt": "rows", ".cache/state": "warm", "house/__init__.py": "",
            "house/stages.py": STAGES, "house/template.txt": "Dear {{ name }}", "house/letter.txt": "Dear all",
            "house/known.py": "VALUE = 1\ndef fail():\n    raise ValueError\n",
            "house/lazy.py": "from house.deep import VALUE\n", "house/deep.py": "VALUE = 2\n",
            "house/other.py": "VALUE = 3\n", "single.py": "VALUE = 4\n", "beside.py": "VALUE = 5\n",
            "letter.txt": "Dear all", "../prices.csv": "1", "../.else/prices.csv": "1", "../else/strange.py": "VALUE = 6\n",
        }  # fmt: skip
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.store().prepare()

    def store(self) -> Store:
        return Store(self.root, self.home)

    @property
    def stages(self) -> ModuleType:
        return importlib.import_module("house.stages")

    def run(self, stage: str, how: str, *readers: Reader) -> str:
        return run_graph(self._graph(stage, how), context(self.store(), *readers)).actions[stage]

    def plan(self, stage: str, how: str) -> tuple[str, str]:
        """(action, why)"""
        step = plan_graph(self._graph(stage, how), self.store()).steps[stage]
        return step.action, step.why

    def _graph(self, stage: str, how: str) -> Graph:
        source = Source(
            "data", {"digest": "sha256:rows"}, {"files": [{"path": str(self.folder / "rows.txt")}]} | self.at
        )
        return Graph((Node(getattr(self.stages, stage), self.stages.Config(how=how), {"source": source}),))

    @property
    def at(self) -> dict[str, str]:
        return {"path": str(self.folder / "rows.txt")}

    def published(self, stage: str) -> list[Any]:
        return self.store().records(stage)
