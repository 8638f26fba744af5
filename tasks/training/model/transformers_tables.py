"""Which classes transformers has for a type of model, read without importing transformers, which takes seconds."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from trnflow.tasks.training.model.transformers_classes import ClassCode, class_code, words_in

CONFIG, MODULE = "CONFIG", "SPECIAL_MODEL_TYPE_TO_MODULE"
LANGUAGE, MASKED, CLASSIFIER = "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_MASKED_LM", "MODEL_FOR_SEQUENCE_CLASSIFICATION"
TAGGER = "MODEL_FOR_TOKEN_CLASSIFICATION"
TABLES = {
    "auto_mappings.py": {"CONFIG_MAPPING_NAMES": CONFIG, "SPECIAL_MODEL_TYPE_TO_MODULE_NAME": MODULE},
    "modeling_auto.py": {f"{table}_MAPPING_NAMES": table for table in (LANGUAGE, MASKED, CLASSIFIER, TAGGER)},
}
"""{file: {variable: table}}"""


@cache
def tables() -> dict[str, dict[str, str]]:
    """Return {table: {model type: name of its class, of MODULE its folder}}; {} if transformers has them elsewhere."""
    folder = _models() / "auto"
    found: dict[str, dict[str, str]] = {}
    for name, wanted in TABLES.items():
        try:
            tree = ast.parse((folder / name).read_bytes())
        except OSError:
            return {}
        for node in tree.body:
            table = wanted.get(ast.unparse(node.targets[0])) if isinstance(node, ast.Assign) else None
            if table and isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                pairs = ast.literal_eval(node.value.args[0])
                found[table] = {key: name if isinstance(name, str) else name[0] for key, name in pairs}
    if len(found) < sum(map(len, TABLES.values())):
        return {}
    # this file adds a few types to the table; a word too many in it does no harm here
    added = ast.walk(ast.parse((folder / "configuration_auto.py").read_bytes()))
    words = {node.value for node in added if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found[CONFIG] |= dict.fromkeys(words - found[CONFIG].keys(), "")
    return found


def config_code(model_type: str) -> ClassCode:
    """Return the code of a type's configuration class."""
    return class_code(code_file(model_type, "configuration"), tables()[CONFIG].get(model_type, ""))


def words_of_all_configs() -> set[str]:
    """Return the names and texts in the file of the base of all configurations."""
    code = ast.parse((_models().parent / "configuration_utils.py").read_bytes())
    return {word for part in ast.walk(code) for word in words_in(part)}


def model_code(model_type: str, table: str) -> ClassCode:
    """Return the code of a type's model class in a table."""
    return class_code(code_file(model_type, "modeling"), tables()[table].get(model_type, ""))


def code_file(model_type: str, kind: str) -> Path:
    """Return the file with a type's classes. kind: "configuration" or "modeling"."""
    name = tables()[MODULE].get(model_type, model_type.replace("-", "_"))
    return _models() / name / f"{kind}_{name}.py"


def _models() -> Path:
    package = find_spec("transformers")
    return Path(package.origin).parent / "models" if package and package.origin else Path()
