"""What may be told to a tracking server: settings without secrets, flat and within MLflow's limits."""

from __future__ import annotations

import json
import re
from typing import Any

from tasks.artifact import Json, Meta

_SPECIAL = "".join(
    f"(?<!{kind}_)" for kind in ("pad", "eos", "bos", "unk", "cls", "sep", "mask")
)  # pad_token: no secret
_WORDS = (
    f"{_SPECIAL}token|secret|pass(word|wd|phrase)|credentials?|pat|environment|((api|access|private|secret)[._-]?)?key"
)
_SECRET = re.compile(rf"(^|[._-])({_WORDS})($|[._-])", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_IN_QUERY = re.compile(
    r"(?<=[?&])([^=&\s]*(?:token|sig|key|secret|password|credential)[^=&\s]*=)[^&\s]+", re.IGNORECASE
)
_NOT_IN_A_NAME = re.compile(r"[^\w./ -]")

PARAM_LENGTH = 6000


def redact(value: Json) -> Json:
    """Without entries whose names speak of secrets (and without environment variables), and without credentials in URLs."""
    if isinstance(value, dict):
        return {name: redact(item) for name, item in value.items() if not _SECRET.search(str(name))}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    if isinstance(value, str):
        return _IN_QUERY.sub(r"\1***", _IN_URL.sub("***@", value))
    return value


def flatten(settings: Meta, prefix: str = "") -> dict[str, str]:
    """Dotted names and texts of at most 6000 characters: `{"train": {"learning_rate": 3e-5}}` -> `train.learning_rate: 3e-05`."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[plain_name(f"{prefix}{name}")] = _text(value)
    return flat


def numbers(values: Meta, prefix: str = "") -> dict[str, float]:
    """The numbers among `values`, those of nested groups under `group/name`; texts, lists and switches are left out."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[plain_name(f"{prefix}{name}")] = float(value)
    return flat


def plain_name(name: str) -> str:
    """`name` with only what MLflow takes in names."""
    return _NOT_IN_A_NAME.sub("_", name)[:250]


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - 1] + "…"
