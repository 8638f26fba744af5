"""Bounds of the sizes in a model's configuration, and whether its weights' files hold what the sizes say.

No tensor is read and no library of models is imported: checking the files costs one read of each header.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.weight_files import shapes_in
from trnflow.tasks.system.json_objects import read_object

LABELS = 10_000
"""Most labels, as of `data.label`."""
LAYERS = 10_000
"""Most layers, which are built one by one."""
EXPERTS = 100_000
"""Most experts: Doge has 16,384."""
SIZE = 1_000_000_000
"""The largest other number."""
CONFIG = 16 << 20
"""Most bytes of config.json, and of the other files beside the weights that are parsed."""
VOCABULARY = 64 << 20
"""Most bytes of a file with a vocabulary: Gemma 3 has 33 MB."""
TEMPLATE = 1 << 20
"""Most bytes of a chat template: the largest of published models have 30 kB."""
CHAT_TEMPLATE, TOOL_TEMPLATE = "chat_template.jinja", "additional_chat_templates/tool_use.jinja"
"""The files of a tokenizer's chat template, and of the one for conversations with tools, as transformers saves them."""
FILES = {
    **dict.fromkeys(("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model"), VOCABULARY),
    **dict.fromkeys(("config.json", "generation_config.json", "trnflow.json", "tokenizer_config.json"), CONFIG),
    **dict.fromkeys(("special_tokens_map.json", "added_tokens.json", "vocab.txt"), CONFIG),
    **dict.fromkeys((CHAT_TEMPLATE, TOOL_TEMPLATE), TEMPLATE),
}
"""{file of a model's folder: its most bytes}"""

ADAPTER = "adapter_config.json"
"""peft's, which names the base model that the adapter's weights are for."""

DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)
WIDTHS = (
    "vocab_size", "hidden_size", "n_embd", "d_model", "dim", "intermediate_size", "n_inner", "d_ff", "hidden_dim",
    "type_vocab_size", "head_dim", "num_attention_heads", "n_head", "num_heads", "num_key_value_heads",
    "num_local_experts", "num_experts", "n_routed_experts",
)  # fmt: skip
POSITIONS = ("max_position_embeddings", "n_positions")
SHARED = "num_hidden_groups"
"""ALBERT's number of groups of layers: layers of a group share their weights."""
PREDICTING = "num_nextn_predict_layers"
"""Layers after the last that predict further tokens: transformers builds none, DeepSeek's and GLM's files hold them."""

_LABELS = ("id2label", "label2id")
_LABEL_NUMBER = re.compile(r"[0-9]{1,9}")
_SIZE = re.compile(r"^(num|n|d)_|(size|layers?|blocks|heads|labels|embeddings|positions|dim|experts|length|window)$")
_LAYERS = re.compile(r"(layers?|blocks)$")
_COUNT = re.compile(r"^(num|n)_|_size$")
_OTHER = re.compile(r"^(mscale|dropout)_")
"""Names that end as a size's, and are a factor or a share."""
_FROM_THE_END = re.compile(r"_layer$|^(chunk_size|max_relative_positions|max_image_length|num_images)$")
"""Numbers for which transformers' own configurations have -1 or -2: a layer counted from the last, or "no limit"."""
_LIMIT = "time_step_limit"
"""Mamba2's, Bamba's, Falcon-H1's, Granite's and Nemotron-H's bounds, of which the upper one is infinite."""
_POSITION_TABLE = re.compile(r"(position_embeddings?|embed_positions|wpe)\.weight$")
_NUMBERED = re.compile(r"\.(\d{1,18})\.")


def size_error(fields: Meta) -> str | None:
    """Return what is wrong with the first value or size of a configuration that no model can have; None if nothing is.

    fields: in transformers' names; configurations within it are checked, too.
    """
    if wrong := _value_error(fields):
        return wrong
    within: list[tuple[str, Any]] = [("", fields)]
    while within:
        path, value = within.pop()
        for name, given in value.items():
            where = f"{path}{name}"
            if name in _LABELS and isinstance(given, dict | list):
                if len(given) > LABELS:
                    return f"{where} has {len(given):,} labels, and may have {LABELS:,} at most"
            elif isinstance(given, dict):
                within.append((f"{where}.", given))
            elif isinstance(name, str) and _SIZE.search(name) and not _OTHER.match(name):
                wrong = _wrong(name, given)
                if wrong:
                    return f"{where} {wrong}"
    return None


def _value_error(fields: Meta) -> str | None:
    """Return what is wrong with the labels, the classes or a number of a configuration; None if nothing is."""
    labels, classes = fields.get("id2label") or {}, fields.get("architectures") or []
    if not isinstance(labels, dict) or not all(_LABEL_NUMBER.fullmatch(str(number)) for number in labels):
        return (
            f"id2label is {_short(fields['id2label'])}, and must be labels by their numbers, such as {{0: no, 1: yes}}"
        )
    if not isinstance(classes, list) or not all(isinstance(each, str) for each in classes):
        return f"architectures is {_short(fields['architectures'])}, and must be a list of names"
    within: list[Any] = [fields]
    while within:
        value = within.pop()
        if isinstance(value, dict | list):
            for name, each in value.items() if isinstance(value, dict) else enumerate(value):
                if name == _LIMIT:
                    continue
                if isinstance(each, float) and not math.isfinite(each) and not _SIZE.search(str(name)):
                    return f"{name} is {each}, and must be a finite number"
                within.append(each)
    return None


def _wrong(name: str, given: Any) -> str | None:
    """Return why a value can't be the size `name`."""
    if isinstance(given, list):
        if len(given) > LAYERS:
            return f"has {len(given):,} entries, and may have {LAYERS:,} at most"
        return next((wrong for each in given if isinstance(each, int | float) and (wrong := _wrong(name, each))), None)
    if given is None or (isinstance(given, bool) and not _COUNT.search(name)):
        return None
    if isinstance(given, bool | str) or not isinstance(given, int | float) or given != given // 1:
        return f"is {_short(given)}, and must be a whole number"
    if given < (-LAYERS if _FROM_THE_END.search(name) else 0):
        return f"is {_short(given)}, and must be 0 or more"
    return f"is {_short(given)}, and may be {_most(name):,} at most" if given > _most(name) else None


def _most(name: str) -> int:
    if name == "num_labels":
        return LABELS
    return LAYERS if _LAYERS.search(name) else EXPERTS if name.endswith("experts") else SIZE


def _short(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return f"a number of {value.bit_length():,} bits"
    if isinstance(value, float):
        return f"{value:g}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def check_sizes(fields: Meta, where: str) -> None:
    """Raise ModelError for a configuration with a size that no model can have. where: its setting or file, for the error."""
    wrong = size_error(fields)
    if wrong:
        raise ModelError(f"{where}: {wrong}", "correct it, or get the model anew from where it was published")


def check_files(folder: Path) -> None:
    """Raise ModelError for a file of a model's folder that is too large to be parsed, or a pipe or device: these have no end."""
    for entry in folder.iterdir():
        if entry.exists() and not entry.is_file() and not entry.is_dir():
            raise ModelError(f"model.source: {entry} is no regular file", "remove it, or save the model anew")
    for name, most in FILES.items():
        file = folder / name
        if file.is_file() and file.stat().st_size > most:
            raise ModelError(f"model.source: {file} has more than {most >> 20} MiB", "save the model anew")


def check_parsed(repo: str, name: str, size: int | None) -> None:
    """Raise ModelError for a hub's file that is too large to be parsed. size: None where the hub does not say."""
    most = FILES.get(name, CONFIG)
    if size is not None and size > most:
        raise ModelError(
            f"model.source: {name} of {repo} has more than {most >> 20} MiB", "take a model without such a file"
        )


def check_folder(folder: Path) -> None:
    """Raise ModelError as `check_files`, and if config.json has sizes that no model can have, or the weights do not hold."""
    check_files(folder)
    if (folder / ADAPTER).exists():
        raise ModelError(f"{folder} holds {ADAPTER}, by which another model would be loaded", "merge it with its base")
    file = folder / "config.json"
    try:
        fields = read_object(file.read_bytes()) if file.is_file() else {}
    except ValueError as error:
        raise ModelError(f"{file} can't be read: {error}", "get the model anew from where it was published") from error
    check_sizes(fields, str(file))
    if any(folder.glob("*.safetensors")):
        check_held(folder, fields, unused=True)


def check_held(folder: Path, fields: Meta, *, unused: bool = False) -> None:
    """Raise ModelError unless the weights' files in `folder` hold as many layers, and tensors as large, as `fields` say.

    fields: config.json with the recipe's overrides. unused: whether the files may hold more layers.
    """
    shapes = shapes_in(folder)
    text = fields["text_config"] if isinstance(fields.get("text_config"), dict) else fields
    largest = max((size for shape in shapes.values() for size in shape), default=0)
    for name in WIDTHS:
        if _count(text, name) > largest:
            raise _unlike(folder, text, name, f"the largest tensor in its weights has {largest:,} rows")
    heads = _count(text, "num_attention_heads") * _count(text, "head_dim")
    if heads > largest:
        held_rows = f"the largest tensor in its weights has {largest:,} rows"
        raise _unlike(folder, {"num_attention_heads x head_dim": heads}, "num_attention_heads x head_dim", held_rows)
    held = max((int(found[1]) + 1 for name in shapes if (found := _NUMBERED.search(name))), default=0)
    depth = None if SHARED in text else next((name for name in DEPTHS if name in text), None)
    if depth is not None and _count(text, depth) > held:
        raise _unlike(folder, text, depth, f"its weights have {held:,} layers")
    if text is not fields:
        return  # the files hold the layers and positions of images or sounds, too
    rows = max((shape[0] for name, shape in shapes.items() if shape and _POSITION_TABLE.search(name)), default=None)
    for name in POSITIONS:
        if rows is not None and _count(text, name) > rows:
            raise _unlike(folder, text, name, f"its weights have {rows:,} positions")
    # an encoder and a decoder are numbered each by itself
    if depth is None or sum(name in text for name in DEPTHS) > 1 or unused:
        return
    if 0 < _count(text, depth) < held - _count(text, PREDICTING):
        raise ModelError(
            f"the weights in {folder} have {held:,} layers, and {depth} is {text[depth]:,}: the other layers would not "
            "be used",
            f"correct {depth}, or set model.allow_unused_weights=true to train a part of the model",
        )


def _count(fields: Meta, name: str) -> int:
    value = fields.get(name)
    return int(value) if isinstance(value, int | float) else 0


def _unlike(folder: Path, fields: Meta, name: str, holds: str) -> ModelError:
    return ModelError(
        f"{folder}: {name} is {fields[name]:,}, and {holds}",
        "correct config.json or model.overrides, or get the model anew",
    )
