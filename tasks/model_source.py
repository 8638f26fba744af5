"""The recipe's `model`: a Hugging Face model, local or on the hub, or a configuration to start from scratch.

Its identity has three parts, so that each stage is keyed by what it reads: `tokenizer` (the tokenizer's files alone),
`config` (the architecture), `weights`. A new fine-tune with the same tokenizer re-tokenizes nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import model_validator

from tasks.artifact import Meta, Source
from tasks.config import StageConfig
from tasks.errors import ConfigError, ModelError
from tasks.hub import hub_errors
from tasks.resolve import Resolver

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model",
)  # fmt: skip
WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json")


class ModelConfig(StageConfig):
    """source: a folder or a hub name; revision: branch, tag or commit of a hub name; config: the architecture of a model
    from scratch (`model_type: bert`, sizes), not read when there is a source; overrides: fields of either that are
    replaced (dropout, say); tokenizer: a folder or hub name when the tokenizer lives elsewhere."""

    source: str | None = None
    revision: str | None = None
    config: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    tokenizer: str | None = None
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _has_an_architecture(self) -> ModelConfig:
        if self.source is None and "model_type" not in self.config:
            raise ValueError("needs `source` (a folder or a hub name) or `config.model_type` (a model from scratch)")
        return self


def model_source(config: ModelConfig, resolver: Resolver) -> Source:
    """Resolve to exact bytes. Fails with ConfigError for a missing folder, ModelError for a gated or unknown repository."""
    model = _resolve(config.source, config.revision, resolver) if config.source else {}
    tokenizer = model
    if config.tokenizer:
        tokenizer = _resolve(config.tokenizer, None, resolver)
    identity = {
        "config": {
            "pretrained": model.get("config"),
            "overrides": config.overrides if config.source else config.config | config.overrides,
        },
        "tokenizer": tokenizer.get("tokenizer"),
        "weights": model.get("weights"),
    }
    location = {
        "model": model.get("location"),
        "tokenizer": tokenizer.get("location"),
        "trust_remote_code": config.trust_remote_code,
    }
    return Source("model", identity, location, note=" ".join(filter(None, {model.get("note"), tokenizer.get("note")})))


def model_folder(source: Source) -> Path | None:
    """The folder with config.json and the weights, fetched from the hub if need be; None for a model from scratch."""
    return _folder(source.location["model"], ("config.json", "generation_config.json", *WEIGHT_PATTERNS))


def tokenizer_folder(source: Source) -> Path | None:
    """The folder with the tokenizer's files; None when the recipe trains one."""
    return _folder(source.location["tokenizer"], TOKENIZER_FILES)


def _resolve(source: str, revision: str | None, resolver: Resolver) -> Meta:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _resolve_folder(folder, resolver)
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise ConfigError(f"model.source: there is no folder {source}", "give a folder with config.json, or a hub name")
    return _resolve_hub(source, revision or "main", resolver)


def _resolve_folder(folder: Path, resolver: Resolver) -> Meta:
    names = sorted(os.listdir(folder))
    weights = [name for name in names if name.endswith((".safetensors", ".safetensors.index.json"))]
    if not weights and any(name.endswith(".bin") for name in names):
        raise ModelError(
            f"{folder} holds only pickled weights (*.bin), which are never loaded",
            "convert them once with `model.save_pretrained(folder)` of a current transformers",
        )
    tokenizer = [name for name in names if name in TOKENIZER_FILES]
    digests = dict(
        zip(weights + tokenizer, resolver.memo.digests([folder / n for n in weights + tokenizer]), strict=True)
    )
    return {
        "config": json.loads((folder / "config.json").read_text()) if "config.json" in names else None,
        "tokenizer": {"files": {name: digests[name] for name in tokenizer}} if tokenizer else None,
        "weights": {"files": {name: digests[name] for name in weights}} if weights else None,
        "location": {"folder": str(folder.resolve())},
    }


def _resolve_hub(repo: str, revision: str, resolver: Resolver) -> Meta:
    answer, note = resolver.remembered(f"hub/models/{repo}@{revision}", lambda: _ask_hub(repo, revision))
    at = {"repo": repo, "commit": answer["commit"]}
    return {"config": answer["config"], "tokenizer": at, "weights": at, "location": at, "note": note}


def _ask_hub(repo: str, revision: str) -> Meta:
    from huggingface_hub import HfApi, hf_hub_download

    with hub_errors("model", repo, revision):
        commit = HfApi().model_info(repo, revision=revision).sha
        config = hf_hub_download(repo, "config.json", revision=commit)
    return {"commit": commit, "config": json.loads(Path(config).read_text())}


def _folder(location: Meta | None, patterns: tuple[str, ...]) -> Path | None:
    if location is None:
        return None
    if "folder" in location:
        return Path(location["folder"])
    from huggingface_hub import snapshot_download

    with hub_errors("model", location["repo"], location["commit"]):
        return Path(snapshot_download(location["repo"], revision=location["commit"], allow_patterns=list(patterns)))
