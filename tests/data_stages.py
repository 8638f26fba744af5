"""What the data stages' tests share: run a stage in a folder of its own, and hear what it said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.artifact import Input, Meta, Source
from tasks.format_prompts import FormatConfig, format_prompts
from tasks.load_data import DataConfig, data_source, load_data
from tasks.model_source import ModelConfig, model_source
from tasks.pack_chunks import PackConfig, pack_chunks
from tasks.resolve import Resolver
from tasks.stage import Workdir
from tasks.tokenize_text import TokenizeConfig, tokenize_text


@dataclass
class Bench:
    """Stages run in numbered folders below `root`."""

    root: Path
    said: list[Meta]
    count: int = 0

    def workdir(self) -> Workdir:
        self.count += 1
        path = self.root / f"out-{self.count}"
        path.mkdir()
        return Workdir(path, self.root / f"scratch-{self.count}", self.said.append)

    def source(self, config: DataConfig, *, offline: bool = False) -> Source:
        return data_source(config, Resolver(self.root / "home", offline=offline))

    def rows(self, **data: Any) -> Input:
        config, out = DataConfig(**{"source": "", **data}), self.workdir()
        return Input(out.path, "rows", load_data(config, self.source(config), out), "sha256:rows")

    def texts(self, rows: Input, model: dict[str, Any] | None = None, **format: Any) -> Input:
        source = model_source(
            ModelConfig(**(model or {"config": {"model_type": "llama"}})), Resolver(self.root / "home")
        )
        out = self.workdir()
        return Input(out.path, "texts", format_prompts(FormatConfig(**format), rows, source, out), "sha256:texts")

    def tokens(self, texts: Input, model: dict[str, Any], **tokenize: Any) -> Input:
        source = model_source(ModelConfig(**model), Resolver(self.root / "home"))
        out = self.workdir()
        return Input(out.path, "tokens", tokenize_text(TokenizeConfig(**tokenize), texts, source, out), "sha256:tokens")

    def packed(self, tokens: Input, **pack: Any) -> Input:
        out = self.workdir()
        return Input(out.path, "packed", pack_chunks(PackConfig(**pack), tokens, out), "sha256:packed")

    def warnings(self) -> list[str]:
        return [event["warn"] for event in self.said if "warn" in event]


def new_bench(root: Path) -> Bench:
    return Bench(root, [])


def table(rows: Input, split: str) -> dict[str, list[Any]]:
    """A split's parquet as columns."""
    import pyarrow.parquet as pq

    return pq.read_table(rows.path / f"{split}.parquet").to_pydict()


def files(folder: Path) -> dict[str, bytes]:
    """Every file's bytes, by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
