"""The metadata that tasks/metadata.py types (mypy checks what stages return) are the ones that ARCHITECTURE.md lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

from trnflow.tasks import metadata

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
