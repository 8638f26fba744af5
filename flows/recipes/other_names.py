"""Other training tools' names for settings, for hints in errors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from trnflow.flows.recipes.schema import config_in


@cache
def _tables() -> dict[str, dict[str, str]]:
    return dict(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")))


def suggested(path: tuple[str, ...], root: Any) -> str:
    """Return the setting that an unknown name probably means; several are joined by `or`."""
    name, tables = path[-1], _tables()
    wanted = tables["names"].get(name, name)
    matches = [known for known in _names(root) if known == wanted or known.endswith(f".{wanted}")]
    inside = [known for known in matches if known.split(".")[0] in ("train", path[0])]
    choice = " or ".join(inside if len(inside) == 1 else matches)
    note = tables["notes"].get(name)
    return f"{choice} ({note})" if choice and note else choice


def missing(name: str) -> str:
    """Return what comes nearest to a setting of another tool that has no counterpart here; "" for any other name."""
    nearest = _tables()["missing"].get(name)
    return f"trnflow has no {name}: {nearest}" if nearest else ""


def suggested_option(option: str, root: Any) -> str:
    """Return what to give instead of an unknown option such as `--learning_rate`; "" for one that no tool has."""
    name = option.lstrip("-").partition("=")[0]
    known = _tables()["options"].get(name) or missing(name.replace("-", "_"))
    setting = "" if known else suggested((name.replace("-", "_"),), root)
    return known or (f"settings are given without dashes: {setting.partition(' ')[0]}=VALUE" if setting else "")


def _names(kind: Any, above: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings of a config class, sections included."""
    for name, field in kind.model_fields.items():
        yield f"{above}{name}"
        inner = config_in(field.annotation)
        if inner is not None:
            yield from _names(inner, f"{above}{name}.")
