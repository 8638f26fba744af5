"""Resolve the recipe's `model`. A stage's key has those parts of the identity that the stage reads."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import field_validator, model_validator

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.config import SOURCE, StageConfig
from trnflow.tasks.errors import ConfigError, ModelError
from trnflow.tasks.sources.hub_client import expect_files
from trnflow.tasks.sources.hub_errors import described, files_due, hub_errors
from trnflow.tasks.sources.model_sizes import (
    ADAPTER,
    CHAT_TEMPLATE,
    CONFIG,
    FILES,
    TOOL_TEMPLATE,
    check_files,
    check_held,
    check_parsed,
    check_sizes,
    size_error,
)
from trnflow.tasks.sources.other_tokenizer import remark_of_tokenizer
from trnflow.tasks.sources.paths import in_folder
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.sentence_files import MODULES, sentence_files
from trnflow.tasks.sources.weight_files import parse_small
from trnflow.tasks.system.redaction import fill_variables

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", CHAT_TEMPLATE,
    TOOL_TEMPLATE, "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model",
)  # fmt: skip
WEIGHT_ENDS = (".safetensors", ".safetensors.index.json")
GENERATION = "generation_config.json"
UNUSED = "unused"
"""In a Source's location: files may hold tensors that the model does not use (`model.allow_unused_weights`)."""
WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json")
_HUB_NAME = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?")


class ModelConfig(StageConfig):
    """The model: a pretrained one, or the configuration of a model that is trained from scratch."""

    source: Annotated[str | None, SOURCE] = None
    """A pretrained model: a folder with config.json and safetensors, or a name on the Hugging Face hub. Default: a
    model from scratch."""
    revision: str | None = None
    """The branch, tag or commit of a hub model. Default: its main branch."""
    name: str | None = None
    """The hub name of the model in the folder `source`, such as `org/model`. The model card and the adapter name it as
    the base model, so that peft finds it. A hub name in `source` needs none."""
    config: Meta = {}
    """The architecture of a model from scratch, in transformers' names (`model_type: bert`, `hidden_size: 128`).
    Ignored when `source` is set."""
    overrides: Meta = {}
    """Fields of the model's configuration to replace, such as `{hidden_dropout_prob: 0.0}`."""
    tokenizer: Annotated[str | None, SOURCE] = None
    """A folder or hub name with the tokenizer, where it does not lie beside the model."""
    allow_unused_weights: bool = False
    """Train though the files hold tensors that the model has no place for, such as layers that `config.json` or
    `overrides` leave out. Heads of other tasks are left out without it."""

    @field_validator("name")
    @classmethod
    def _is_a_hub_name(cls, value: str | None) -> str | None:
        if value is not None and not _HUB_NAME.fullmatch(value):
            raise ValueError(f"{value!r} is no hub name: write org/model")
        return value

    @field_validator("config", "overrides")
    @classmethod
    def _has_sizes_that_can_be(cls, value: Meta) -> Meta:
        wrong = size_error(value)
        if wrong:
            raise ValueError(wrong)
        return value

    @model_validator(mode="after")
    def _has_an_architecture(self) -> ModelConfig:
        if self.source is None and "model_type" not in self.config:
            raise ValueError("needs `source` (a folder or a hub name) or `config.model_type` (a model from scratch)")
        return self


def model_source(config: ModelConfig, resolver: Resolver) -> Source:
    """Resolve the recipe's `model`; no weights are downloaded.

    Returns:
        A Source with the identity {"config": {"pretrained": config.json, "overrides"}, "tokenizer", "weights",
        "generation": digests of files, or a hub repository and commit, "name", "sentence": as `sentence_files`}; None where
        the model has none

    Raises:
        ConfigError: A folder or revision is missing.
        ModelError: A repository is gated, unknown or unreachable; weights are pickled, or not as config.json says.
    """
    source = fill_variables(config.source, "model.source") if config.source else None
    model = _resolve("model.source", source, config.revision, resolver) if source else {}
    _check(config, model)
    if model and model["weights"] is None:
        model["note"] = f"{source} holds no weights (*.safetensors): the model begins from nothing"
    tokenizer = model
    if config.tokenizer:
        tokenizer = _resolve("model.tokenizer", fill_variables(config.tokenizer, "model.tokenizer"), None, resolver)
        if remark := remark_of_tokenizer(model, tokenizer):
            tokenizer["note"] = remark
    identity = {
        "config": {
            "pretrained": model.get("config"),
            "overrides": config.overrides if config.source else config.config | config.overrides,
        },
        "tokenizer": tokenizer.get("tokenizer"),
        "weights": model.get("weights"),
        "generation": model.get("generation"),
        "name": (model.get("location") or {}).get("repo") or config.name,
        "sentence": model.get("sentence"),
    }
    location = {"model": model.get("location"), "tokenizer": tokenizer.get("location")}
    if config.allow_unused_weights:
        location[UNUSED] = True
    return Source("model", identity, location, note=" ".join(filter(None, {model.get("note"), tokenizer.get("note")})))


def _check(config: ModelConfig, model: Meta) -> None:
    """Raise ModelError for an adapter, or for sizes that no model can have or that the weights' files here do not hold."""
    if model.get("adapter"):
        _refuse_adapter(f"model.source: {config.source}", Path((model["location"] or {}).get("folder", "")))
    fields = model.get("config") or {}
    check_sizes(fields, f"model.source: config.json of {config.source}")
    folder = (model.get("location") or {}).get("folder")
    if folder and model["weights"] is not None:
        check_held(Path(folder), fields | config.overrides, unused=config.allow_unused_weights)


def check_weights(source: Source) -> None:
    """Raise ModelError unless the weights' files hold what the configuration says; those of the hub are downloaded."""
    folder = model_folder(source) if source.identity["weights"] is not None else None
    config = source.identity["config"]
    if folder is not None:
        check_held(folder, {**(config["pretrained"] or {}), **config["overrides"]}, unused=UNUSED in source.location)


def model_folder(source: Source) -> Path | None:
    """Return the folder with config.json and weights, downloaded if needed; None for a model from scratch."""
    return _folder(source.location["model"], ("config.json", GENERATION, *WEIGHT_PATTERNS))


def generation_config(source: Source) -> Meta | None:
    """Return the model's `generation_config.json`, downloaded if needed, or None. Raises ModelError."""
    if source.identity.get("generation") is None:
        return None
    file = cast(Path, _folder(source.location["model"], (GENERATION,))) / GENERATION
    config: Meta | None = _read_config(file) if file.exists() else None
    return config


def tokenizer_folder(source: Source) -> Path | None:
    """Return the folder with the tokenizer's files, downloaded if needed; None if the recipe trains one."""
    return _folder(source.location["tokenizer"], TOKENIZER_FILES)


def _resolve(setting: str, source: str, revision: str | None, resolver: Resolver) -> Meta:
    """Return identity and location of a folder or hub model."""
    folder = resolver.folder(setting) / Path(source).expanduser()
    if os.path.isdir(folder):  # `Path.is_dir` raises OSError for a name of more than 255 bytes
        return _resolve_folder(folder, resolver)
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise ConfigError(
            f"{setting}: there is no folder {source}{in_folder(source, resolver.folder(setting))}",
            "give a folder with config.json, or a hub name",
        )
    return _resolve_hub(source, revision or "main", resolver)


def _resolve_folder(folder: Path, resolver: Resolver) -> Meta:
    names = sorted(os.listdir(folder))
    _refuse_pickles(str(folder), names)
    check_files(folder)
    weights = [name for name in names if name.endswith(WEIGHT_ENDS)]
    tokenizer = sorted(name for name in TOKENIZER_FILES if (folder / name).is_file())
    read = weights + tokenizer + [name for name in names if name == GENERATION]
    digests = dict(zip(read, resolver.memo.digests([folder / name for name in read]), strict=True))
    return {
        "config": _read_config(folder / "config.json") if "config.json" in names else None,
        "tokenizer": {"files": {name: digests[name] for name in tokenizer}} if tokenizer else None,
        "weights": {"files": {name: digests[name] for name in weights}} if weights else None,
        "generation": digests.get(GENERATION),
        "adapter": ADAPTER in names,
        "sentence": sentence_files([*names, *_configs_below(folder, names)], lambda name: _read_config(folder / name)),
        "location": {"folder": str(folder.resolve())},
    }


def _configs_below(folder: Path, names: list[str]) -> list[str]:
    return [f"{name}/config.json" for name in names if (folder / name / "config.json").is_file()]


def _resolve_hub(repo: str, revision: str, resolver: Resolver) -> Meta:
    answer, note = resolver.ask_or_recall(f"hub/models/{repo}@{revision}", lambda: _ask_hub(repo, revision))
    at = {"repo": repo, "commit": answer["commit"]}
    known = {"config": answer["config"], "sentence": answer.get("sentence"), "adapter": answer.get("adapter")}
    return {**known, "tokenizer": at, "weights": at, "generation": at, "location": at, "note": note}


def _ask_hub(repo: str, revision: str) -> Meta:
    from huggingface_hub import HfApi, hf_hub_download

    with hub_errors("model", repo, revision):
        info = described(
            lambda seconds: HfApi().model_info(repo, revision=revision, timeout=seconds, files_metadata=True)
        )
        sizes = {file.rfilename: file.size for file in info.siblings or ()}
        names = [*sizes]

        def read(name: str) -> Any:
            check_parsed(repo, name, sizes.get(name))
            expect_files(sizes.get(name) or 0)
            # which asks again by itself
            return _read_config(Path(hf_hub_download(repo, name, revision=info.sha)))

        config = None if ADAPTER in names and "config.json" not in names else read("config.json")
        sentence = sentence_files(names, read)
    _refuse_pickles(repo, names)
    return {"commit": info.sha, "config": config, "sentence": sentence, "adapter": ADAPTER in names}


def _refuse_adapter(place: str, folder: Path) -> None:
    """Raise ModelError for a model with an adapter of peft, which training here would leave out."""
    above = folder.parent if folder.is_absolute() and any(folder.parent.glob("*.safetensors")) else None
    merge = "merge it with its base model once, with peft: `merge_and_unload()`, then `save_pretrained(folder)`"
    raise ModelError(
        f"{place} holds an adapter ({ADAPTER}), which training here does not read",
        f"give {above}, whose weights have it, or {merge}" if above else merge,
    )


def _refuse_pickles(place: str, names: list[str]) -> None:
    """Raise ModelError for a model whose weights are in files of pickle alone."""
    if any(name.endswith(".bin") for name in names) and not any(name.endswith(WEIGHT_ENDS) for name in names):
        raise ModelError(
            f"{place} holds only pickled weights (*.bin), which are never loaded",
            "convert them once with `model.save_pretrained(folder)` of a current transformers",
        )


def _read_config(file: Path) -> Any:
    if file.stat().st_size > CONFIG:
        raise ModelError(f"model.source: {file} has more than {CONFIG >> 20} MiB", "save the model anew")
    try:
        document = parse_small(file.read_bytes())
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ModelError(f"model.source: {file} is no JSON that can be read: {why}", "save the model anew") from error
    if not isinstance(document, list if file.name == MODULES else dict):
        raise ModelError(f"model.source: {file} holds no JSON object", "save the model anew")
    return document


def _folder(location: Meta | None, patterns: tuple[str, ...]) -> Path | None:
    if location is None:
        return None
    if "folder" in location:
        return Path(location["folder"])
    from huggingface_hub import snapshot_download

    repo, commit = location["repo"], location["commit"]
    with hub_errors("model", repo, commit):
        due = files_due("model", repo, commit, lambda path: any(fnmatchcase(path, pattern) for pattern in patterns))
        for name in due.keys() & FILES.keys():
            check_parsed(repo, name, due[name])
        folder = Path(snapshot_download(repo, revision=commit, allow_patterns=list(patterns)))
    check_files(folder)
    return folder
