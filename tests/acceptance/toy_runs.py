"""The toy pipeline run as `trnflow run` runs the real one: healing what is damaged, from any home, on any store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.flows.runner.toy import CountConfig, WordsConfig, graph
from tests.helpers.runs import Ran, context, plan_graph, run_graph
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.plan import Plan
from trnflow.tasks.events import Reader
from trnflow.tasks.store import Store


@dataclass
class Machine:
    """A home, a checkout's words, and a store that may be shared with others."""

    root: str
    folder: Path
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "words.txt").write_text("a bb ccc")

    def store(self) -> Store:
        return Store(self.root, self.folder / "home")

    def run(self, least: int = 0, *readers: Reader) -> Ran:
        store = self.store()
        store.prepare()
        return run_graph(self.graph(least), context(store, *readers, settings=self.settings))

    def plan(self, least: int = 0) -> Plan:
        return plan_graph(self.graph(least), self.store())

    def graph(self, least: int) -> Graph:
        return graph(WordsConfig(path=str(self.folder / "words.txt")), CountConfig(least=least))

    def actions(self, least: int = 0) -> dict[str, str]:
        return self.run(least).actions
