"""What the data stages' tests share: run a stage in a folder of its own, and hear what it said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.kept_inputs import run_whole
from trnflow.tasks.artifact import ASIDE, Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.templates import no_limit
from trnflow.tasks.data.tokenization.config import TokenizeConfig
from trnflow.tasks.format_prompts import format_prompts
from trnflow.tasks.launch.call import resolve
from trnflow.tasks.load_data import DataConfig, data_source, load_data
from trnflow.tasks.pack_chunks import PackConfig, pack_chunks
from trnflow.tasks.sources.model_source import ModelConfig, model_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import Workdir, stage_of
from trnflow.tasks.tokenize_text import tokenize_text


@dataclass
class Bench:
    """Stages run in numbered folders below `root`. limited: templates are rendered in a process with limits, as in a run,
    which takes half a second."""

    root: Path
    said: list[Meta]
    count: int = 0
    limited: bool = False

    def workdir(self) -> Workdir:
        self.count += 1
        path = self.root / f"out-{self.count}"
        path.mkdir()
        return Workdir(path, self.root / f"scratch-{self.count}", self.said.append)

    def source(self, config: DataConfig, *, offline: bool = False) -> Source:
        return data_source(config, Resolver(self.root / "home", offline=offline))

    def made(self, stage: Callable[..., Meta], config: StageConfig, **inputs: Input | Source) -> Input:
        out, kind = self.workdir(), stage_of(stage).kind
        return Input(out.path, kind, run_whole(stage, config, inputs, out), f"sha256:{kind}")

    def model(self, settings: dict[str, Any]) -> Source:
        return model_source(ModelConfig(**settings), Resolver(self.root / "home"))

    def rows(self, **data: Any) -> Input:
        config = DataConfig(**{"source": "", "split": {}, **data})  # else data without test split gives 10 % of train
        return self.made(load_data, config, source=self.source(config))

    def texts(self, rows: Input, model: dict[str, Any] | None = None, **format: Any) -> Input:
        source = self.model(model or {"config": {"model_type": "llama"}})
        with pytest.MonkeyPatch.context() as patch:
            if not self.limited:
                patch.setattr("trnflow.tasks.format_prompts.call_limited", call_here)
            return self.made(format_prompts, FormatConfig(**format), rows=rows, model=source)

    def tokens(self, texts: Input, model: dict[str, Any], **tokenize: Any) -> Input:
        return self.made(tokenize_text, TokenizeConfig(**tokenize), texts=texts, model=self.model(model))

    def packed(self, tokens: Input, **pack: Any) -> Input:
        return self.made(pack_chunks, PackConfig(**pack), tokens=tokens)

    def warnings(self) -> list[str]:
        return [event["warn"] for event in self.said if "warn" in event]


def call_here(function: str, arguments: Meta) -> Meta:
    """Do what `call_limited` does, in this process and without limits."""
    meta = resolve(function)(json.loads(json.dumps(arguments)), no_limit)
    return dict(json.loads(json.dumps(meta)))


def new_bench(root: Path) -> Bench:
    return Bench(root, [])


def loaded_rows(root: Path, columns: dict[str, list[Any]], **meta: Any) -> Input:
    """The artifact of load_data with these rows of train, below `root`."""
    folder = root / "rows"
    folder.mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / "train.parquet")
    count = len(next(iter(columns.values())))
    known = {"splits": {"train": count}, "columns": list(columns), "text": [], "labels": None, **meta}
    return Input(folder, "rows", known, "sha256:rows")


def table(rows: Input, split: str) -> dict[str, list[Any]]:
    return pq.read_table(rows.path / f"{split}.parquet").to_pydict()


def whole(texts: Input) -> list[str]:
    """The texts of format_prompts' train rows that are in parts."""
    return ["".join(part["text"] for part in row) for row in table(texts, "train")["parts"]]


def trained(texts: Input) -> list[str]:
    """Of each train row what is trained on."""
    return ["".join(part["text"] for part in row if part["train"]) for row in table(texts, "train")["parts"]]


def files(folder: Path) -> dict[str, bytes]:
    """The files of an artifact that keys below count: {path: bytes}."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if not name.startswith(ASIDE)}
