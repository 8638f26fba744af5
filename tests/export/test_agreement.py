"""How many rows and positions of a model and its export are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import small_models
from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluation import report_page
from trnflow.tasks.export import agreement
from trnflow.tasks.export.agreement import (
    HELD,
    ExampleCall,
    calls_by_default,
    eager_call,
    eager_calls,
    positions_of_a_row,
)
from trnflow.tasks.export.examples import example

MINILM, BERT, LLAMA = 22_700_000, 109_000_000, 7_000_000_000


@pytest.mark.parametrize(
    ("parameters", "lengths", "batch", "once", "calls"),
    [
        (MINILM, [128], 1, True, 256),
        (MINILM, [32, 64, 128], 1, True, 86),
        (BERT, [512], 1, True, 215),
        (MINILM, [128], 32, True, 8),
        (LLAMA, [2048], 1, True, 1),
        (10_000, [16], 1, False, 6),
        (MINILM, [128], 1, False, 2),
        (MINILM, [32, 64, 128], 1, False, 1),
        (BERT, [512], 1, False, 1),
        (LLAMA, [2048], 1, False, 1),
    ],
)
def test_the_number_of_calls_follows_from_the_model(
    parameters: int, lengths: list[int], batch: int, once: bool, calls: int
) -> None:
    assert calls_by_default(parameters, lengths, batch, compiles_once=once) == calls


def test_the_logits_of_all_rows_fit_the_limit() -> None:
    for rows, vocabulary in ((256, 512), (256, 32_000), (86, 151_936)):
        assert rows * positions_of_a_row(rows, vocabulary) * vocabulary * 4 <= HELD
    assert positions_of_a_row(256, 10**6) == 1


def test_examples_have_many_paddings(tmp_path: Path) -> None:
    from trnflow.tasks.evaluation.models import load_model

    model = load_model(small_models.bert(tmp_path / "bert").path, "classification")
    masks = [example(model, 2, 16, number)[1] for number in range(20)]
    assert masks[0].sum(-1).tolist() == [8, 16]
    assert len({tuple(mask.sum(-1).tolist()) for mask in masks}) > 15
    assert all(1 <= count <= 16 for mask in masks for count in mask.sum(-1).tolist())


def test_positions_are_spread_over_what_is_not_padding(tmp_path: Path) -> None:
    import torch

    from trnflow.tasks.evaluation.models import load_model

    model = load_model(small_models.llama(tmp_path / "llama").path, "causal_lm")
    input_ids, attention_mask = torch.ones(3, 16, dtype=torch.long), torch.ones(3, 16, dtype=torch.long)
    attention_mask[1, 9:] = 0
    call = eager_call(model, (input_ids, attention_mask), 2, 3)
    assert [row.nonzero().flatten().tolist() for row in call.compared] == [[0, 8, 15], [0, 4, 8], []]
    assert (call.rows, tuple(call.logits.shape)) == (2, (6, small_models.VOCABULARY))
    assert eager_call(model, (input_ids, attention_mask), 3, 100).compared.equal(attention_mask.bool())


def test_each_row_of_a_split_is_compared_once_at_most(tmp_path: Path) -> None:
    from trnflow.tasks.evaluation.models import load_model
    from trnflow.tasks.training.batches.sampler import Split

    rows = [[row] for row in small_models.random_rows(7, "classification", longest=16)]
    packed = small_models.packed_rows(tmp_path / "rows", "classification", {"test": {16: rows}})
    model = load_model(small_models.bert(tmp_path / "bert").path, "classification")
    exported = Input(tmp_path, "exported", {"task": "classification", "batch": 2, "lengths": [16]}, "sha256:0")
    calls = eager_calls(model, Split(packed, "test"), exported, 100, lambda done, calls: None)
    assert [call.rows for call in calls] == [2, 2, 2, 1]
    assert [len(call.logits) for call in calls] == [2, 2, 2, 1]
    assert not eager_calls(model, Split(packed, "test"), exported, 0, lambda done, calls: None)


def test_the_difference_of_an_export_is_that_of_its_worst_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exported program is played here by a function: `test_evaluate_model.py` has a real one, which takes seconds."""
    import torch

    ids, compared = torch.ones(2, 16, dtype=torch.long), torch.tensor([True, True])
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    monkeypatch.setattr(agreement, "open_export", lambda path: lambda input_ids, attention_mask: logits)
    calls = [ExampleCall((ids, ids), compared, logits + shift) for shift in (0.25, 1.0, 0.5)]
    exported = Input(Path(), "exported", {"task": "classification", "batch": 2, "lengths": [16]}, "sha256:0")
    counts, metrics = agreement.compare(exported, calls, lambda done, calls: None)
    assert metrics == {"export_max_difference": 1.0, "export_agreement": 1.0}
    assert counts == {"calls": 3, "batch": 2, "rows": 6, "compared": 6}


@pytest.mark.parametrize(
    ("task", "counts", "rows"),
    [
        ("classification", {"compared": 200}, "200 rows"),
        ("causal_lm", {"compared": 4000, "rows": 20}, "4,000 tokens of 20 chunks"),
    ],
)
def test_the_page_shows_agreement_as_a_percentage(task: str, counts: dict[str, int], rows: str) -> None:
    metrics = {"export_agreement": 0.995, "export_max_difference": 0.25}
    report: Any = {"task": task, "export": {"target": "onnx", **counts}, "metrics": metrics}
    assert report_page._export(report) == (
        f"onnx: the same prediction as the weights' for 99.5% of {rows}; the largest difference of two logits is 0.25."
    )
