"""Write the files of a model folder that are not weights: how texts are generated, and the tokenizer."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.stage import read_json, write_json


def generation_settings(config: Json, base: Meta | None) -> Meta:
    """Return `generation_config.json`: the base model's, with the special tokens of `config` where it lacks them."""
    known: Meta = {name: value for name, value in (base or {}).items() if value is not None}
    ids = {name: config.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if ids["pad_token_id"] is None:
        # the end token takes the place of a missing padding token
        eos = known.get("eos_token_id", ids["eos_token_id"])
        ids["pad_token_id"] = eos[0] if isinstance(eos, list) else eos
    return {**{name: value for name, value in ids.items() if value is not None}, **known}


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
