"""The toy pipeline run as `trnflow run` runs the real one: healing what is damaged, from any home, on any store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.flows.runner.toy import CountConfig, WordsConfig, pipeline
from trnflow.flows.runner.executor import Listener
from trnflow.flows.runner.run import heal
from trnflow.flows.runner.runner import Runner
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.store import Store


@dataclass
class Machine:
    """A home, a checkout's words, and a store that may be shared with others."""

    root: str
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "words.txt").write_text("a bb ccc")

    def store(self) -> Store:
        """Opened as by a new process."""
        return Store(self.root, self.folder / "home")

    def run(self, least: int = 0, *listeners: Listener) -> Runner:
        store = self.store()
        store.prepare()
        runner = Runner(store, Resolver(store.home), run="r", min_free_gb=0.0, listeners=listeners)
        words = WordsConfig(path=str(self.folder / "words.txt"))
        heal(runner, lambda: pipeline(words, CountConfig(least=least), runner))
        return runner

    def actions(self, least: int = 0) -> dict[str, str]:
        return actions(self.run(least))


def actions(runner: Runner) -> dict[str, str]:
    return {name: outcome.action for name, outcome in runner.outcomes.items()}
