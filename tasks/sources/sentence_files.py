"""What the files of sentence-transformers beside a model say of how its vectors are made."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from trnflow.tasks.artifact import Meta

MODULES = "modules.json"
TEXTS, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING = "Pooling"


def sentence_files(names: Collection[str], read: Callable[[str], Any]) -> Meta | None:
    """Return what the files say; None without `modules.json`. names: paths of the model's files; read: of a JSON file.

    {modules: names of classes, in order; pooling: `mean`, `cls` and others joined by "+", or null; max_seq_length: or null;
    do_lower_case; prompts: {name: text}}
    """
    if MODULES not in names:
        return None
    listed = [entry for entry in read(MODULES) if isinstance(entry, dict)]
    modules = [(str(entry.get("type")).rpartition(".")[2], str(entry.get("path"))) for entry in listed]
    texts, prompts = (read(name) if name in names else {} for name in (TEXTS, PROMPTS))
    pooling = next((f"{path}/config.json" for kind, path in modules if kind == POOLING), None)
    return {
        "modules": [kind for kind, _ in modules],
        "pooling": _pooling(read(pooling)) if pooling is not None and pooling in names else None,
        "max_seq_length": texts.get("max_seq_length"),
        "do_lower_case": bool(texts.get("do_lower_case")),
        "prompts": {name: text for name, text in (prompts.get("prompts") or {}).items() if text},
    }


def _pooling(config: Meta) -> str:
    """Return the name of a pooling, of the newer form (`pooling_mode: cls`) or of the older (`pooling_mode_cls_token: true`)."""
    newer = config.get("pooling_mode")
    older = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    names = [newer] if isinstance(newer, str) else newer or [name.removeprefix("pooling_mode_") for name in older]
    return "+".join(name.removesuffix("_token").removesuffix("_tokens") for name in names)
