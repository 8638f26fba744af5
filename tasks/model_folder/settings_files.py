"""Write the files of a model folder that are not weights: how texts are generated, and the tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.data.special_tokens import special_tokens
from trnflow.tasks.data.tokenization.folder_settings import TOKENIZER_CONFIG, TOKENIZER_JSON
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.stage import Workdir, read_json, write_json

NOT_LEARNT = (
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "exponential_decay_length_penalty",
    "forced_bos_token_id", "forced_eos_token_id", "forced_decoder_ids", "force_words_ids", "constraints", "suppress_tokens",
    "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "stop_strings",
)  # fmt: skip
"""Settings of generating that would cut what is written, or keep a model from writing what it learnt."""
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def learnt_settings(base: Meta | None, out: Workdir) -> Meta:
    """Return a base model's `generation_config.json` without NOT_LEARNT, and report what is left out and what is kept."""
    known: Meta = {name: value for name, value in (base or {}).items() if value is not None}
    # a minimum of 0, and empty lists, say nothing
    left_out = [name for name in NOT_LEARNT if known.get(name)]
    kept = {name: value for name, value in known.items() if name not in NOT_LEARNT}
    shown = sorted(name for name in kept if name not in IDS and not name.startswith(("_", "transformers_")))
    if left_out:
        out.info(
            f"of the model's generation_config.json is left out, of which training knows nothing: {_listed(known, left_out)}"
        )
    if shown:
        out.info(f"its generation_config.json is followed by what generates: {_listed(kept, shown)}")
    return kept


def _listed(settings: Meta, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {json.dumps(settings[name])}"[:80] for name in names)


def generation_settings(config: Json, base: Meta | None, ends: Sequence[int] = (), pads: Sequence[int] = ()) -> Meta:
    """Return `generation_config.json`: the base model's without NOT_LEARNT, with the special tokens of `config` that it lacks.

    ends: ids of the tokens that end answers in training, which stand before the base's own; pads: of tokens for padding.
    """
    known = {name: value for name, value in (base or {}).items() if value is not None and name not in NOT_LEARNT}
    ids = {name: known.get(name, config.get(name)) for name in IDS}
    eos = ids["eos_token_id"]
    own = eos if isinstance(eos, list) else [] if eos is None else [eos]
    stops = [*dict.fromkeys([*ends, *own])]
    if stops != own:
        ids["eos_token_id"] = stops if len(stops) > 1 else stops[0]
    # a token that ends texts is padding only where there is no other
    padding = [
        number for number in (ids["pad_token_id"], config.get("pad_token_id"), *pads, *own) if number is not None
    ]
    ids["pad_token_id"] = min(padding, key=lambda number: (number in ends) + (number in stops), default=None)
    # where nothing is said, transformers' pipeline draws tokens, though generate takes the best one
    return {"do_sample": False, **known, **{name: value for name, value in ids.items() if value is not None}}


def end_ids(tokens: Meta) -> dict[str, list[int]]:
    """Return the arguments `ends` and `pads` of `generation_settings`. tokens: metadata of tokenize_text or pack_chunks."""
    return {"ends": [end["id"] for end in tokens.get("ends", ())], "pads": list(tokens.get("pads", ()))}


def write_tokenizer(
    folder: Path, to: Path, longest: int | None, inputs: Sequence[str] = (), pad: int | None = None
) -> None:
    """Copy the tokenizer's files, with `model_max_length` at most `longest`. inputs: what the tokenizer is to give, if
    not what its class does; pad: the id of the token that fills rows, which it names if it names none."""
    for file in sorted(folder.iterdir()):
        shutil.copyfile(file, to / file.name)
    settings = to / TOKENIZER_CONFIG
    document: Meta = read_json(settings) if settings.exists() else {}
    given: Meta = {"model_input_names": [*inputs]} if inputs else {}
    limit = document.get("model_max_length")
    # with a larger one, or none, a pipeline fails on a long text: `truncation=True` cuts nothing
    if longest is not None and (not isinstance(limit, int | float) or limit > longest):
        given["model_max_length"] = longest
    if pad is not None and (to / TOKENIZER_JSON).exists() and "pad_token" not in (special_tokens(to) or {}):
        given["pad_token"] = read_tokenizer(to).tokenizer.id_to_token(pad)
    if given:
        write_json(settings, {**document, **given})


def positions_of(model: Any) -> int | None:
    """Return the most tokens of a row that a model has positions for, or None."""
    from trnflow.tasks.training.model.pretrained import first_position

    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit - first_position(model) if isinstance(limit, int) and limit > 0 else None
