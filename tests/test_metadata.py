"""The metadata that tasks/metadata.py types (mypy checks what stages return) are the ones that ARCHITECTURE.md lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from trnflow.tasks import metadata
from trnflow.tasks.system.json_objects import misfit

TABLE = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
KINDS = {
    "rows": metadata.RowsMeta,
    "texts": metadata.TextsMeta,
    "tokens": metadata.TokensMeta,
    "packed": metadata.PackedMeta,
    "graphs": metadata.GraphsMeta,
    "checkpoint": metadata.CheckpointMeta,
    "model": metadata.ModelMeta,
    "exported": metadata.ExportedMeta,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_of_artifacts_has_each_fact(kind: str) -> None:
    listed = next(line for line in TABLE.splitlines() if re.match(rf"\| \w+ \| `{kind}` \|", line)).split("|")[4]
    named = {text.split(" ")[0] for text in re.findall(r"`([^`]+)`", listed)}
    facts = {*get_type_hints(KINDS[kind])} - {"metrics"}
    if kind == "packed":
        assert "as tokens" in listed
        facts -= {*get_type_hints(metadata.TokensMeta)}
    assert facts <= named


def test_an_export_that_was_compared_on_no_rows_has_no_difference() -> None:
    exported = {
        "task": "classification", "labels": ["a", "b"], "lengths": [8], "target": "onnx", "batch": 1, "dtype": "float32",
        "rows_compared": 0, "max_difference": None,
    }  # fmt: skip
    assert misfit(exported, metadata.ExportedMeta) == ""
    assert "max_difference" in misfit({**exported, "max_difference": "0"}, metadata.ExportedMeta)
