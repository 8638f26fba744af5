"""What transformers' tables say of a model's type, read without importing transformers, which takes seconds."""

from __future__ import annotations

import ast
import difflib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import Known

LANGUAGE, MASKED, CLASSIFIER = "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_MASKED_LM", "MODEL_FOR_SEQUENCE_CLASSIFICATION"
TABLES = {"auto_mappings.py": ("CONFIG",), "modeling_auto.py": (LANGUAGE, MASKED, CLASSIFIER)}
KNOWN_TYPE = "set model.source to a model whose model_type transformers knows"


def refuse_unknown_architecture(known: Known) -> None:
    """Raise ModelError if the model's config.json alone shows that transformers, or training here, can't take it."""
    identity = known.sources["model"].identity["config"]
    fields = {**(identity["pretrained"] or {}), **identity["overrides"]}
    tables, model_type = _tables(), fields.get("model_type")
    if "CONFIG" not in tables:
        return
    if model_type not in tables["CONFIG"]:
        raise _unknown(str(model_type), fields, tables["CONFIG"])
    task = known.of("chunks").get("task")
    if task == "classification" and model_type not in tables[CLASSIFIER]:
        raise ModelError(
            f"transformers has no classifier of model_type {model_type}", "choose another model, such as BERT"
        )
    if task == "causal_lm":
        _refuse_no_language_model(str(model_type), fields, tables)


def _unknown(model_type: str, fields: Meta, types: frozenset[str]) -> ModelError:
    if "auto_map" in fields:
        return ModelError(
            f"the model needs its own code for model_type {model_type!r}, which trnflow does not run because no key "
            "would contain it",
            KNOWN_TYPE,
        )
    near = difflib.get_close_matches(model_type, types, n=1)
    return ModelError(f"transformers knows no model_type {model_type!r}", f"use {near[0]}" if near else KNOWN_TYPE)


def _refuse_no_language_model(model_type: str, fields: Meta, tables: dict[str, frozenset[str]]) -> None:
    text = fields.get("text_config") if isinstance(fields.get("text_config"), dict) else fields
    assert isinstance(text, dict)
    encodes = model_type in tables[MASKED] and model_type != "xlm" and not fields.get("is_decoder")
    if model_type not in tables[LANGUAGE] or encodes or text.get("use_bidirectional_attention"):
        raise ModelError(
            f"a {model_type} attends in both directions, or generates no text", "use a causal model, such as Llama"
        )


@cache
def _tables() -> dict[str, frozenset[str]]:
    """Return {table: model types}; without the tables that this version of transformers has elsewhere."""
    package = find_spec("transformers")
    if package is None or package.origin is None:
        return {}
    folder = Path(package.origin).parent / "models/auto"
    types: dict[str, frozenset[str]] = {}
    for name, tables in TABLES.items():
        try:
            tree = ast.parse((folder / name).read_bytes())
        except OSError:
            return {}
        wanted = {f"{table}_MAPPING_NAMES": table for table in tables}
        for node in tree.body:
            table = wanted.get(ast.unparse(node.targets[0])) if isinstance(node, ast.Assign) else None
            if table and isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                types[table] = frozenset(model_type for model_type, _ in ast.literal_eval(node.value.args[0]))
    if len(types) < sum(map(len, TABLES.values())):
        return {}
    # this file adds a few types to the table; a word too many in it does no harm here
    added = ast.walk(ast.parse((folder / "configuration_auto.py").read_bytes()))
    types["CONFIG"] |= {node.value for node in added if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return types
