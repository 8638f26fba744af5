"""What a tokenizer's folder says beside its vocabulary: special tokens and the chat template. Reads JSON alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.errors import ModelError


def special_tokens(folder: Path) -> dict[str, str] | None:
    """Role (`pad_token` ...) -> text, as the folder's configs name them; None when it has no config."""
    configs = [folder / "special_tokens_map.json", folder / "tokenizer_config.json"]
    if not any(path.exists() for path in configs):
        return None
    found = {}
    for path in configs:
        for role, token in read_object(path).items():
            text = token.get("content") if isinstance(token, dict) else token
            if role.endswith("_token") and isinstance(text, str):
                found[role] = text
    return found


def special_texts(folder: Path) -> tuple[str, ...]:
    """What tokenizer.json reads as special tokens; without one, what the configs name."""
    if not (folder / "tokenizer.json").exists():
        return tuple((special_tokens(folder) or {}).values())
    added = read_object(folder / "tokenizer.json").get("added_tokens") or []
    return tuple(token["content"] for token in added if token.get("special") and token.get("content"))


def chat_template(folder: Path) -> str | None:
    """Jinja: `chat_template.jinja`, else that of tokenizer_config.json (of several, the one named default)."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    found = read_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        found = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}.get("default")
    return found if isinstance(found, str) else None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where there is none."""
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path.parent.name}/{path.name} is not JSON: {error}", "save the tokenizer anew") from error
    return document if isinstance(document, dict) else {}
