"""tokenize_text alone, through the runner, on texts that are given: what it makes anew and what it takes from before.

    python -m tests.flows.runner.shelf ROOT FOLDER RUN COUNT KILL_AT

tokenises the first COUNT sentences and, unless KILL_AT is 0, kills itself at the KILL_AT-th call in the machinery of shards.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.helpers.runs import context, run_graph
from tests.helpers.stores import recorded
from trnflow.flows.runner.context import PartMaker
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.plan import Step
from trnflow.tasks.artifact import Artifact, Meta, Source
from trnflow.tasks.data.tokenization.config import TokenizeConfig
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.stage import write_json
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.pins import add_pin
from trnflow.tasks.system.clock import now
from trnflow.tasks.tokenize_text import tokenize_text

Rows = list[Any]
SHARD_BYTES = 2000
SCHEMA = pa.schema([("text", pa.string()), ("label", pa.int64())])
PARTS = pa.schema([("parts", pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_())])))])


def sentences(count: int) -> Rows:
    dice = random.Random(1)
    return [{"text": " ".join(dice.choices("abcdefgh", k=dice.randrange(5, 60))), "label": n % 3} for n in range(count)]


def tokenizer(folder: Path) -> Source:
    if not folder.exists():
        folder.mkdir(parents=True)
        names = ["[PAD]", "[UNK]", *"abcdefgh"]
        made = Tokenizer(models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.save(str(folder / "tokenizer.json"))
        write_json(folder / "tokenizer_config.json", {"pad_token": "[PAD]", "unk_token": "[UNK]"})
    digests = {path.name: sha256_file(path) for path in sorted(folder.iterdir())}
    identity = {"tokenizer": {"files": digests}, "config": {"pretrained": None, "overrides": {}}}
    return Source("model", identity, {"tokenizer": {"folder": str(folder)}})


class Heard(Reader):
    def __init__(self) -> None:
        self.said: list[str] = []

    def read(self, event: Event, state: RunState) -> None:
        self.said += [event["text"]] if event["event"] == "note" else []


class Shelf:
    def __init__(self, root: str, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.heard = Heard()
        self.notes: list[str] = []
        self.store().prepare()

    def store(self) -> Store:
        return Store(self.root, self.folder / "home")

    def texts(self, store: Store, rows: Rows) -> Artifact:
        """An artifact as format_prompts makes it, pinned; a row is {"text", "label"} or {"parts"}."""
        made = self.folder / "home" / f"texts-{os.getpid()}"
        made.mkdir(parents=True)
        causal = bool(rows) and "parts" in rows[0]
        pq.write_table(pa.Table.from_pylist(rows, PARTS if causal else SCHEMA), made / "train.parquet")
        task, splits = "causal_lm" if causal else "classification", {"train": len(rows)}
        meta = {"task": task, "labels": None, "splits": splits, "framed": False, "rows": {"settings": {"task": task}}}
        artifact = store.ingest(made, "texts", meta)
        shutil.rmtree(made)
        add_pin(store.backend, artifact.digest[7:19], {"artifact": artifact.digest})
        return artifact

    def run(
        self, rows: Rows, *, run: str = "r", force: bool = False, part_maker: PartMaker | None = None, **config: Any
    ) -> Step:
        store = self.store()
        settings = TokenizeConfig(**{"shard_bytes": SHARD_BYTES, **config})
        inputs = {"texts": self.texts(store, rows), "model": tokenizer(self.folder / "tokenizer")}
        opened = context(store, self.heard, run=run, part_maker=part_maker, settings=["task_runner.workers=1"])
        graph = Graph((Node(tokenize_text, settings, inputs),))
        ran = run_graph(graph, opened, force=["tokenize_text"] if force else [])
        self.notes += ran.notes
        return ran.steps["tokenize_text"]

    def record_run(self, run: str, step: Step) -> None:
        assert step.artifact is not None
        stage = recorded(step.name, step.key, step.artifact.digest)
        document = {"recipe": "shelf", "run": run, "outcome": "completed", "ended": now(), "stages": [stage]}
        self.store().write_run(run, document)

    def shards(self) -> list[Meta]:
        return self.store().records("tokenize_text.shard")


def kill_at(count: int) -> None:
    """SIGKILL this process at the `count`-th call or return in what finds, makes and publishes shards."""
    calls = [0]

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename.endswith(
            ("/flows/runner/parts/shards.py", "/store/store.py", "/store/blob_store.py")
        ):
            calls[0] += 1
            if calls[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)


def main() -> None:
    root, folder, run, count, at = sys.argv[1:]
    shelf = Shelf(root, Path(folder))
    if int(at):
        kill_at(int(at))
    print(shelf.run(sentences(int(count)), run=run).figures)


if __name__ == "__main__":
    main()
