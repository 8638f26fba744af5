"""Write the files of a model folder that are not weights: how texts are generated, and the tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.stage import read_json, write_json


def generation_settings(config: Json, base: Meta | None, ends: Sequence[int] = (), pads: Sequence[int] = ()) -> Meta:
    """Return `generation_config.json`: the base model's, with the special tokens of `config` where it lacks them.

    ends: ids of the tokens that end answers in training, which stand before the base's own; pads: of tokens for padding.
    """
    known: Meta = {name: value for name, value in (base or {}).items() if value is not None}
    ids = {name: known.get(name, config.get(name)) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
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
    return known | {name: value for name, value in ids.items() if value is not None}


def end_ids(tokens: Meta) -> dict[str, list[int]]:
    """Return the arguments `ends` and `pads` of `generation_settings`. tokens: metadata of tokenize_text or pack_chunks."""
    return {"ends": [end["id"] for end in tokens.get("ends", ())], "pads": list(tokens.get("pads", ()))}


def write_tokenizer(folder: Path, to: Path, positions: int | None, inputs: Sequence[str] = ()) -> None:
    """Copy the tokenizer's files, with `model_max_length` at most `positions`. inputs: what the tokenizer is to give, if
    not what its class does."""
    for file in sorted(folder.iterdir()):
        shutil.copyfile(file, to / file.name)
    settings = to / "tokenizer_config.json"
    document: Meta = read_json(settings) if settings.exists() else {}
    given: Meta = {"model_input_names": [*inputs]} if inputs else {}
    limit = document.get("model_max_length")
    # with a larger one, or none, a pipeline fails on a long text: `truncation=True` cuts nothing
    if positions is not None and (not isinstance(limit, int | float) or limit > positions):
        given["model_max_length"] = positions
    if given:
        write_json(settings, {**document, **given})


def positions_of(model: Any) -> int | None:
    """Return the most tokens of a row that a model has positions for, or None."""
    from trnflow.tasks.training.model.pretrained import first_position

    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit - first_position(model) if isinstance(limit, int) and limit > 0 else None
