"""Read special tokens and chat templates from a tokenizer's JSON files, without `tokenizers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_sizes import CHAT_TEMPLATE, TEMPLATE, TOOL_TEMPLATE


def special_tokens(folder: Path) -> dict[str, str] | None:
    """Return {role such as `pad_token`: text} from the tokenizer's config files; None without any."""
    configs = [folder / "special_tokens_map.json", folder / "tokenizer_config.json"]
    if not any(path.exists() for path in configs):
        return None
    texts = {}
    for path in configs:
        for role, token in read_object(path).items():
            text = token.get("content") if isinstance(token, dict) else token
            if role.endswith("_token") and isinstance(text, str):
                texts[role] = text
    return texts


def special_texts(folder: Path) -> tuple[str, ...]:
    """Return the texts of all special tokens, such as `</s>`: of tokenizer.json, else of the config files."""
    if not (folder / "tokenizer.json").exists():
        return tuple((special_tokens(folder) or {}).values())
    added = read_object(folder / "tokenizer.json").get("added_tokens") or []
    return tuple(token["content"] for token in added if token.get("special") and token.get("content"))


def chat_templates(folder: Path) -> dict[str, str]:
    """Return {name such as `default`: Jinja template} from the files of templates, else tokenizer_config.json."""
    files = {"default": folder / CHAT_TEMPLATE, "tool_use": folder / TOOL_TEMPLATE}
    if files["default"].exists():
        return {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.exists()}
    stored = read_object(folder / "tokenizer_config.json").get("chat_template")
    entries = stored if isinstance(stored, list) else [{"name": "default", "template": stored}]
    named = {entry.get("name"): entry.get("template") for entry in entries if isinstance(entry, dict)}
    if sum(len(template) for template in named.values() if isinstance(template, str)) > TEMPLATE:
        raise ModelError(
            f"{folder.name}/tokenizer_config.json: chat_template has more than {TEMPLATE >> 20} MiB", "shorten it"
        )
    return {str(name): template for name, template in named.items() if isinstance(template, str)}


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; {} without file or object. Raises ModelError for a file that is not JSON."""
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.parent.name}/{path.name} is not JSON: {error}", "save the tokenizer anew") from error
    return document if isinstance(document, dict) else {}
