"""What a tokenizer's folder sets beside its vocabulary: obeyed in training, or replaced in the published folder and said.

transformers changes the normalizer of tokenizer.json by tokenizer_config.json, and cuts and pads as both say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.special_tokens import read_object
from trnflow.tasks.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Side = Literal["left", "right"]

NORMALIZERS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""{setting of tokenizer_config.json: field of BERT's normalizer that it changes}."""
BUILT_IN = ("truncation", "padding")
"""The sections of tokenizer.json by which the library alone would cut and pad."""
TOKENIZER_CONFIG, TOKENIZER_JSON = "tokenizer_config.json", "tokenizer.json"


def obey(tokenizer: Tokenizer, config: Meta) -> Side:
    """Apply tokenizer_config.json to a tokenizer, in place; return the side on which long texts are cut. Raises ModelError
    for another side."""
    _change_normalizer(tokenizer, config)
    side = config.get("truncation_side") or (tokenizer.truncation or {}).get("direction") or "right"
    if side not in ("left", "right"):
        raise ModelError(f"{TOKENIZER_CONFIG}: truncation_side is {side!r}", "set it to left or right")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return cast(Side, side)


def _change_normalizer(tokenizer: Tokenizer, config: Meta) -> None:
    from tokenizers import normalizers

    known = json.loads(tokenizer.normalizer.__getstate__()) if tokenizer.normalizer else {}
    if changes := normalizer_changes(known, config):
        fields = {name: value for name, value in known.items() if name != "type"}
        tokenizer.normalizer = normalizers.BertNormalizer(**fields | changes)


def normalizer_changes(normalizer: Meta, config: Meta) -> Meta:
    """Return the fields of a normalizer, as in tokenizer.json, that tokenizer_config.json changes."""
    named = {field: config[name] for name, field in NORMALIZERS.items() if name in config}
    is_changed = normalizer.get("type") == "BertNormalizer"
    return {field: value for field, value in named.items() if is_changed and normalizer.get(field) != value}


def published(folder: Path | None, max_length: int, side: Side, *, per_row: bool) -> Meta:
    """Return the settings that tokenizer_config.json of the published folder needs, so that programs read texts as training
    does. folder: the tokenizer's own, if it has one; max_length: tokens of a text in training."""
    if per_row:
        return {"model_max_length": max_length, "padding_side": "right", "truncation_side": side}
    longest = read_object(folder / TOKENIZER_CONFIG).get("model_max_length") if folder else None
    # a language model writes on beyond the rows of training
    known = {"model_max_length": max_length} if isinstance(longest, int | float) and longest < max_length else {}
    return {**known, "clean_up_tokenization_spaces": False, "truncation_side": side}


def replaced(folder: Path, settings: Meta) -> Iterator[str]:
    """Yield what `settings` replace of a tokenizer's folder."""
    config, document = read_object(folder / TOKENIZER_CONFIG), read_object(folder / TOKENIZER_JSON)
    for name, value in settings.items():
        own = config.get(name)
        # a recipe that reads less of a text than the model could is no surprise
        if own not in (None, value) and not (name == "model_max_length" and own > value):
            yield f"{name} {_shown(own)} by {_shown(value)}"
    yield from (f"{name} of {TOKENIZER_JSON} by none" for name in BUILT_IN if document.get(name))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
