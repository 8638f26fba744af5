"""What a tokenizer's folder sets beside its vocabulary: obeyed in training, or replaced in the published folder and said.

transformers changes the normalizer of tokenizer.json by tokenizer_config.json, and cuts and pads as both say.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

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
FRAME = {"add_bos_token": "bos_token", "add_eos_token": "eos_token"}
"""{setting: the role of the token that it means}. Only transformers 4 reads them beside a tokenizer.json, by some classes."""
FRAMING = ("Llama", "CodeLlama", "Gemma", "Cohere", "GPTNeoX")
"""How the names of these classes begin, which read them: without them they go by defaults of their own."""
BUILT_IN = ("truncation", "padding")
"""The sections of tokenizer.json by which the library alone would cut and pad."""
TOKENIZER_CONFIG, TOKENIZER_JSON = "tokenizer_config.json", "tokenizer.json"


class Obeyed(NamedTuple):
    """side: on which long texts are cut; is_changed: whether tokenizer.json says something else than the tokenizer."""

    side: Side
    is_changed: bool


AS_IT_IS = Obeyed("right", False)


def obey(tokenizer: Tokenizer, config: Meta) -> Obeyed:
    """Apply tokenizer_config.json to a tokenizer, in place. Raises ModelError for a strange side."""
    side = config.get("truncation_side") or (tokenizer.truncation or {}).get("direction") or "right"
    if side not in ("left", "right"):
        raise ModelError(f"{TOKENIZER_CONFIG}: truncation_side is {side!r}", "set it to left or right")
    is_changed = _change_normalizer(tokenizer, config) or bool(tokenizer.truncation or tokenizer.padding)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Obeyed(cast(Side, side), is_changed)


def _change_normalizer(tokenizer: Tokenizer, config: Meta) -> bool:
    """Set the fields of BERT's normalizer that tokenizer_config.json names; return whether one changed."""
    from tokenizers import normalizers

    if not isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        return False
    known = json.loads(tokenizer.normalizer.__getstate__())
    known.pop("type")
    named = {field: config[name] for name, field in NORMALIZERS.items() if name in config}
    try:
        tokenizer.normalizer = normalizers.BertNormalizer(**known | named)
    except TypeError as error:
        what = " ".join([str(error), *getattr(error, "__notes__", ())])
        raise ModelError(f"{TOKENIZER_CONFIG}: {what}", "set it to true or false") from error
    return bool(known | named != known)


def published(folder: Path | None, max_length: int, side: Side, adds: Collection[str], *, per_row: bool) -> Meta:
    """Return the settings that tokenizer_config.json of the published folder needs, so that programs read texts as training
    does. folder: the tokenizer's own, if it has one; max_length: tokens of a text in training; adds: roles of the tokens that
    the tokenizer puts around texts."""
    config = read_object(folder / TOKENIZER_CONFIG) if folder else {}
    longest = config.get("model_max_length")
    frames = str(config.get("tokenizer_class")).startswith(FRAMING)
    settings: Meta = {name: role in adds for name, role in FRAME.items() if frames or name in config}
    settings["truncation_side"] = side
    if per_row:
        return {**settings, "model_max_length": max_length, "padding_side": "right"}
    if isinstance(longest, int | float) and longest < max_length:  # it writes on beyond the rows of training
        settings["model_max_length"] = max_length
    return {**settings, "clean_up_tokenization_spaces": False}


def replaced(folder: Path, settings: Meta) -> Iterator[str]:
    """Yield what `settings` replace of a tokenizer's folder."""
    config, document = read_object(folder / TOKENIZER_CONFIG), read_object(folder / TOKENIZER_JSON)
    for name, value in settings.items():
        own = config.get(name)
        # a recipe that reads less of a text than the model could is no surprise
        if own not in (None, value) and not (name == "model_max_length" and own > value):
            yield f"{name} {_shown(own)} -> {_shown(value)}"
    yield from (f"{name} of {TOKENIZER_JSON} -> none" for name in BUILT_IN if document.get(name))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
