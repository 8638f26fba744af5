"""Turn a sharded checkpoint into a Hugging Face folder that `AutoModel*.from_pretrained` loads.

Takes memory for the largest tensor, twice where a family joins tensors. Raises ModelError when a tensor is missing,
unexpected, different or not finite, or the logits are not finite.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import field_validator

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE, row_format
from trnflow.tasks.data.texts import PAIR
from trnflow.tasks.data.tokenization.folder_settings import TOKENIZER_CONFIG
from trnflow.tasks.kinds.classification import TEMPERATURE
from trnflow.tasks.kinds.preference import WEIGHED
from trnflow.tasks.kinds.registry import FORMATS, kind_of
from trnflow.tasks.model_folder.calibration import Divided, Division, output_layer, temperature_of
from trnflow.tasks.model_folder.check import check_finite, check_folder, check_shapes, pieces
from trnflow.tasks.model_folder.model_card import CardSource, write_card
from trnflow.tasks.model_folder.older_config import with_older_keys
from trnflow.tasks.model_folder.published_weights import PublishedWeights, model_without_values
from trnflow.tasks.model_folder.settings_files import (
    end_ids,
    generation_settings,
    learnt_settings,
    positions_of,
    write_tokenizer,
)
from trnflow.tasks.model_folder.tokenizer_check import settle_tokenizer
from trnflow.tasks.sources.model_sizes import CHAT_TEMPLATE
from trnflow.tasks.sources.model_source import GENERATION, generation_config
from trnflow.tasks.stage import Keyed, Workdir, read_json, stage, write_json
from trnflow.tasks.system.model_process import model_environ
from trnflow.tasks.system.optional_packages import bitsandbytes_version
from trnflow.tasks.training.checkpoint.merged_weights import MergedWeights, Weights, write_adapter
from trnflow.tasks.training.checkpoint.starting_weights import base_weights, starting_from
from trnflow.tasks.training.model.lora import CONFIG
from trnflow.tasks.training.model.pretrained import TOKEN_TYPES, auto_class, takes_token_types
from trnflow.tasks.training.shared_types import PARAMETER

if TYPE_CHECKING:
    from trnflow.tasks.metadata import CheckpointMeta, ModelMeta, PackedMeta, Task, TextsMeta, TokensMeta

SCHEMA = 1

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
ROWS = 32
"""Rows of a forward pass over validation."""
CALIBRATION = 10**13
"""Floating point operations that calibration may take: two for each parameter and position."""
FEWEST, MOST = 20, 1000
"""Validation rows that choose a temperature; fewer, where a processor can't compute more in time, choose none."""
WIDTHS = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}


class ConsolidateConfig(StageConfig):
    """Settings of the stage `consolidate`, which writes the trained model as a Hugging Face folder."""

    dtype: Literal["float32", "bfloat16", "float16", "base"] = "float32"
    """The type of the published weights. base: that of the model that training started from, float32 from scratch. LoRA's
    update is added in fp32 before weights are cast; the cast ones are evaluated."""
    max_shard_size: str = "5GB"
    """The largest size of one weight file, such as `5GB` or `500MB`."""
    calibrate: bool = False
    """Whether a classifier's logits are divided by a temperature that validation rows choose (Guo et al. 2017), within its last
    layer: what it predicts stays, its probabilities come to say how often it is right. Of other tasks it does nothing."""

    @field_validator("max_shard_size")
    @classmethod
    def _is_a_size(cls, value: str) -> str:
        _bytes(value)
        return value


def environ(config: ConsolidateConfig) -> dict[str, str]:
    """Return the environment of the stage's process: no requests to the hub."""
    return {**model_environ(), "TOKENIZERS_PARALLELISM": "false"}


def consolidate_inputs(config: ConsolidateConfig, inputs: Keyed) -> Meta:
    """Return what is keyed: the checkpoint, row format, generation settings and name, the weights training began with."""
    shards, model, start = inputs["shards"], inputs["model"], inputs.get("warm_start")
    assert isinstance(shards, Artifact) and isinstance(model, Source)
    keyed: Meta = {"shards": shards.digest, **{part: model.identity.get(part) for part in ("generation", "name")}}
    keyed["format"] = _row_format(inputs.get("texts"), inputs.get("tokens"))
    ends = _ends(inputs.get("tokens"))
    keyed |= {"ends": ends} if any(ends.values()) else {}
    packed = inputs.get("packed")
    if isinstance(packed, Artifact) and (
        kind_of(packed.meta["task"]).decides or _calibrates(config, packed.meta["task"])
    ):
        keyed["packed"] = packed.digest
    if ((shards.meta.get("settings") or {}).get("lora") or {}).get("base_dtype") == "nf4":
        keyed["bitsandbytes"] = bitsandbytes_version()
    keyed["weights"] = start.digest if isinstance(start, Artifact) else model.identity.get("weights")
    return {**keyed, "dtype": _dtype(config, model, start)} if config.dtype == "base" else keyed


def _dtype(config: ConsolidateConfig, model: Source, start: Artifact | Input | Source | None) -> str:
    """Return the type of the published weights."""
    if config.dtype != "base":
        return config.dtype
    known = (model.identity["config"]["pretrained"] or {}) if start is None or isinstance(start, Source) else start.meta
    base = str(known.get("dtype") or known.get("torch_dtype"))
    return base if base in WIDTHS else "float32"


@stage(kind="model", role="model", inputs=consolidate_inputs, environ=environ)
def consolidate(
    config: ConsolidateConfig,
    shards: Input[CheckpointMeta],
    model: Source,
    warm_start: Input | None = None,
    texts: Input[TextsMeta] | None = None,
    tokens: Input[TokensMeta] | None = None,
    packed: Input[PackedMeta] | None = None,
    *,
    out: Workdir,
) -> ModelMeta:
    """Write `config.json`, `model*.safetensors`, tokenizer, card, of texts and tokens (which say how rows were formatted)
    `trnflow.json`; `generation_config.json`, for LoRA `adapter/`. packed: the validation rows that thresholds are chosen on.
    """
    from transformers import AutoConfig

    from trnflow.tasks.training.checkpoint.shards import Reader

    base, origin, dtype = model, _origin(model, warm_start), _dtype(config, model, warm_start)
    stored, model = Reader(shards.path, PARAMETER), starting_from(model, warm_start)
    settings = AutoConfig.for_model(**read_json(shards.path / "config.json"))
    # version 4.57 reads its own keys in place of newer ones
    document = with_older_keys(read_json(shards.path / "config.json"), settings.to_dict()) | {"dtype": dtype}
    write_json(out.path / "config.json", document)
    empty = model_without_values(shards.meta["task"], settings)
    weights: Weights = stored
    if shards.meta.get("method", "full") != "full" or (shards.meta.get("settings") or {}).get("freeze"):
        # it holds only what was trained
        weights = MergedWeights(shards, base_weights(model, empty), stored, empty)
    check_shapes(weights, empty)
    published = PublishedWeights(weights, empty)
    sizes = {name: math.prod(published.shape(name)) for name in published.names}
    if not kind_of(shards.meta["task"]).per_row:
        generates = learnt_settings(generation_config(base), out)
        write_json(out.path / GENERATION, generation_settings(document, generates, **_ends(tokens)))
    _write_tokenizer(shards, texts, tokens, empty, out)
    formatted = _row_format(texts, tokens)
    # predictions are of the model's task, which may be another than that of its rows
    _write_row_format(formatted and {**formatted, "task": shards.meta["task"]}, out)
    groups = _grouped(sizes, config, dtype)
    _write_shards(out, groups, published, dtype)
    temperature = _temperature(config, shards, packed, stored, sum(sizes.values()), out)
    if temperature is not None:
        published = PublishedWeights(Divided(weights, *temperature), empty)
        _write_shards(out, groups, published, dtype)
    if (shards.path / CONFIG).exists():
        trained = stored if temperature is None else Divided(stored, *temperature)
        write_adapter(out.path / "adapter", shards, model, trained, dtype, empty)
        write_card(out.path / "adapter", shards.meta, document, origin, adapter=True)
        _copy_beside_adapter(shards, out)
    if texts is not None and tokens is not None and "head" in texts.meta:
        _write_companions(texts.meta, tokens.meta, empty, out)
    # written tensors are compared with the checkpoint's, and the model computes a row
    check_folder(out, auto_class(shards.meta["task"]), settings, published, dtype)
    decision = {TEMPERATURE: temperature.by} if temperature else _decide(shards, packed, out)
    write_card(out.path, shards.meta, document, origin, decision=decision)
    meta: ModelMeta = {
        "task": shards.meta["task"], "labels": shards.meta["labels"],
        "lengths": _lengths(shards.meta, tokens, positions_of(empty)),
        "parameters": sum(sizes.values()), "dtype": dtype,
    }  # fmt: skip
    if kind_of(shards.meta["task"]).pairs:
        meta["preference"] = {name: value for name, value in shards.meta["settings"].items() if name in WEIGHED}
    if temperature:
        meta["temperature"] = temperature.by
    return meta


def _copy_beside_adapter(shards: Input[CheckpointMeta], out: Workdir) -> None:
    """Copy the tokenizer's files, and of models that write those by which they do."""
    for name in {TOKENIZER_CONFIG, *(file.name for file in (shards.path / "tokenizer").iterdir())}:
        shutil.copyfile(out.path / name, out.path / "adapter" / name)
    for name in (GENERATION, CHAT_TEMPLATE):
        with suppress(FileNotFoundError):
            shutil.copyfile(out.path / name, out.path / "adapter" / name)


def _write_tokenizer(
    shards: Input[CheckpointMeta],
    texts: Input[TextsMeta] | None,
    tokens: Input[TokensMeta] | None,
    empty: Any,
    out: Workdir,
) -> None:
    is_pair = texts is not None and texts.meta["rows"]["settings"].get(PAIR) and "head" not in texts.meta
    # a fast tokenizer of no family leaves token types out
    inputs = ("input_ids", TOKEN_TYPES, "attention_mask") if is_pair and takes_token_types(empty) else ()
    longest = positions_of(empty)
    if tokens is not None and kind_of(shards.meta["task"]).per_row:  # a reward model's rows are a language model's
        longest = min(longest or tokens.meta["max_length"], tokens.meta["max_length"])
    pad = empty.config.get_text_config().pad_token_id if kind_of(shards.meta["task"]).per_row else None
    write_tokenizer(shards.path / "tokenizer", out.path, longest, inputs, pad)
    settle_tokenizer(out.path, out)


def _lengths(shards: CheckpointMeta, tokens: Input[TokensMeta] | None, positions: int | None) -> list[int]:
    """Return the lengths of training's chunks, as far as a text that the model reads can be as long."""
    # of several documents in a chunk each has positions of its own, and texts that are read apart are cut one by one
    texts = tokens.meta["max_length"] if tokens is not None and kind_of(shards["task"]).apart else None
    return sorted({min([length, *filter(None, (positions, texts))]) for length in shards["lengths"]})


def _write_companions(texts: TextsMeta, tokens: TokensMeta, empty: Any, out: Workdir) -> None:
    """Write what other programs read of the part of a model that transformers does not know. empty: the model."""
    longest = min(tokens["max_length"], positions_of(empty) or tokens["max_length"])
    files = kind_of(texts["task"]).companions(texts["head"], empty.config.hidden_size, longest)
    for name, document in files.items():
        (out.path / name).parent.mkdir(exist_ok=True)
        write_json(out.path / name, document)


def _origin(model: Source, warm_start: Input | None) -> CardSource:
    """Return what training began with. A model with several files of weights is known by the first one's digest."""
    if warm_start:
        return CardSource(weights=warm_start.digest)
    files = (model.identity.get("weights") or {}).get("files", {})
    return CardSource(model.identity.get("name"), next(iter(files.values()), None))


def _row_format(texts: Artifact | Source | Input | None, tokens: Artifact | Source | Input | None) -> Meta | None:
    """Return the content of `trnflow.json`, or None."""
    if texts is None or tokens is None:
        return None
    assert not isinstance(texts, Source) and not isinstance(tokens, Source)
    return row_format(cast("TextsMeta", texts.meta), cast("TokensMeta", tokens.meta))


def _ends(tokens: Artifact | Source | Input | None) -> dict[str, list[int]]:
    """Return the ids of the tokens that end answers of train, and of those for padding, as `generation_settings` takes them."""
    assert not isinstance(tokens, Source)
    return end_ids(tokens.meta) if tokens else {}


def _write_row_format(document: Meta | None, out: Workdir) -> None:
    """Write `trnflow.json`, and the recipe's own chat template as `chat_template.jinja`, which transformers reads."""
    if document is None:
        return
    write_json(out.path / ROW_FORMAT_FILE, document)
    settings = document["rows"]["settings"]
    template, task = settings["chat_template"], settings["task"]
    if (task == "chat" or FORMATS[task].pairs) and template not in ("tokenizer", "sections"):
        (out.path / CHAT_TEMPLATE).write_text(template, encoding="utf-8")


def _calibrates(config: ConsolidateConfig, task: Task) -> bool:
    return config.calibrate and kind_of(task).one_class


def _temperature(
    config: ConsolidateConfig,
    shards: Input[CheckpointMeta],
    packed: Input[PackedMeta] | None,
    stored: Weights,
    parameters: int,
    out: Workdir,
) -> Division | None:
    """Return what the last layer of the written model is to be divided by; None where it stays as it is."""
    from trnflow.tasks.evaluation.models import load_model
    from trnflow.tasks.evaluation.row_outputs import some_logits
    from trnflow.tasks.training.batches.sampler import Split

    task = shards.meta["task"]
    if packed is None or not _calibrates(config, task):
        return None
    split = Split(packed, "validation")
    rows = min(sum(split.rows.values()), MOST, CALIBRATION // (2 * parameters * max(split.rows, default=1)))
    if rows < FEWEST:
        out.info(
            f"probabilities are not calibrated: a processor computes {rows} rows of validation in time, of {FEWEST}"
        )
        return None
    model = load_model(out.path, task)
    layer = output_layer(model)
    # without its head an adapter would say something else than the whole model
    if not layer or ((shards.path / CONFIG).exists() and not set(layer) <= {*stored.names}):
        out.info("probabilities are not calibrated: no last layer of which logits are a multiple was trained")
        return None
    chosen = Division(layer, temperature_of(*some_logits(model, split, ROWS, rows)))
    out.info(f"chosen on validation: {TEMPERATURE} {chosen.by}")
    return chosen


def _decide(shards: Input[CheckpointMeta], packed: Input[PackedMeta] | None, out: Workdir) -> Meta:
    """Add to `trnflow.json` what the task chooses on validation, and return it; nothing without validation rows."""
    from trnflow.tasks.evaluation.models import load_model
    from trnflow.tasks.evaluation.row_outputs import row_outputs
    from trnflow.tasks.training.batches.sampler import Split

    task, file = shards.meta["task"], out.path / ROW_FORMAT_FILE
    if packed is None or not kind_of(task).decides:
        return {}
    rows = Split(packed, "validation")
    if not rows.rows or not file.exists():
        return {}
    found = row_outputs(load_model(out.path, task), rows, task, ROWS, {}, lambda seen: None)
    decision = kind_of(task).decide(found)
    out.info(f"chosen on validation: {', '.join(f'{name} {value}' for name, value in decision.items())}")
    write_json(file, {**read_json(file), "decision": decision})
    return decision


def _grouped(sizes: dict[str, int], config: ConsolidateConfig, dtype: str) -> list[list[str]]:
    """Return the names in order, in groups that fit a file."""
    limit, width = _bytes(config.max_shard_size), WIDTHS[dtype][1]
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size * width > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size * width
    return groups


def _write_shards(out: Workdir, groups: list[list[str]], weights: Weights, dtype: str) -> None:
    files = [f"model-{i:05d}-of-{len(groups):05d}.safetensors" for i in range(1, len(groups) + 1)]
    if len(groups) == 1:
        files = ["model.safetensors"]
    count, total_tensors = 0, sum(map(len, groups))
    for file, group in zip(files, groups, strict=True):
        for _ in _write_safetensors(out.path / file, group, weights, dtype):
            count += 1
            out.progress(count, total_tensors, "tensors")
    if len(groups) > 1:
        width = WIDTHS[dtype][1]
        total = sum(math.prod(weights.shape(name)) * width for group in groups for name in group)
        where = {name: file for file, group in zip(files, groups, strict=True) for name in group}
        write_json(out.path / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def _write_safetensors(file: Path, names: list[str], weights: Weights, dtype: str) -> Iterator[str]:
    """Write a safetensors file, and yield each tensor's name. Raises ModelError when one is not finite."""
    import torch

    from trnflow.tasks.training.checkpoint.shards import safetensors_header

    kind, width = WIDTHS[dtype]
    entries = ((name, kind, weights.shape(name), math.prod(weights.shape(name)) * width) for name in names)
    with file.open("wb") as handle:
        handle.write(safetensors_header(entries, __metadata__={"format": "pt"}))
        for name in names:
            # a piece at a time, so that no second copy of the tensor is in memory
            for piece in pieces(weights.tensor(name), getattr(torch, dtype)):
                check_finite(name, piece, dtype)
                handle.write(piece.view(torch.uint8).numpy().data)
            yield name


def _bytes(size: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]I?B)\s*", size, re.IGNORECASE)
    if not match:
        raise ValueError(f"{size!r} is not a size: write a size such as 5GB or 500MB")
    return int(float(match[1]) * UNITS[match[2].upper()])
