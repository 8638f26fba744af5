"""docs/training.md has the estimate's GPU memory by model size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.training.memory.sizes import METHODS, MODELS, cell
from tests.training.toys import scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.training.model.build import build

PAGE = (PROJECT / "docs/training.md").read_text()
HEAD = "| estimated GiB a GPU |"


def shown(model: str) -> dict[str, str]:
    """Return {method: cell} of a model's row on the page."""
    head, _, *rows = (HEAD + PAGE.partition(HEAD)[2].partition("\n\n")[0]).splitlines()
    (row,) = (row for row in rows if row.startswith(f"| {model} |"))
    _, *methods = (part.strip() for part in head.strip("|").split("|"))
    _, *cells = (part.strip() for part in row.strip("|").split("|"))
    assert methods == [*METHODS]
    return dict(zip(methods, cells, strict=True))


def check(model: str, method: str) -> None:
    page, now = ([float(part) for part in text.split("; ")] for text in (shown(model)[method], cell(model, method)))
    # another version of torch may count some buffers otherwise
    assert page == pytest.approx(now, rel=0.02), "python -m tests.training.memory.sizes prints the table"


@pytest.mark.slow
def test_the_page_has_what_is_estimated_for_the_smallest_model() -> None:
    check("Llama 3.2 1B", "QLoRA")


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_the_page_has_what_is_estimated(model: str, method: str) -> None:
    check(model, method)


@pytest.mark.parametrize("model", MODELS)
def test_the_models_are_as_large_as_their_publishers_say(model: str) -> None:
    known = MODELS[model]
    rows = {"task": "causal_lm", "lengths": [8], "labels": None, "vocab_size": known.fields["vocab_size"]}
    packed = Input[Any](Path(), "packed", {**rows, "pad_id": 0, "bos_id": 1, "eos_id": 2}, "")
    parameters = build(scratch(**known.fields), packed, seed=0, weights=False).parameters().values()
    assert sum(each.numel() for each in parameters) == pytest.approx(known.parameters, rel=0.005)
