"""Rewards that a model gives to the answers of pairs, as the objective of its training defines them, and their report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.evaluation.forward import fitting
from trnflow.tasks.evaluation.predictions import text_of, write_answers
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.evaluation.row_outputs import whole_batches
from trnflow.tasks.evaluation.scores import intervals_of, values_of
from trnflow.tasks.kinds.preference import Rewards
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.model.pretrained import first_position
from trnflow.tasks.training.preference_losses import PREFERENCES, Answers
from trnflow.tasks.training.shared_types import Built

WORST, LONGEST = 10, 500
"""Pairs that the report shows, and characters of their texts."""


def pair_rewards(
    model: Any, split: Split, task: str, settings: Meta, batch: int, report: Callable[[int], None]
) -> Rewards:
    """Return the rewards of a split, pair after pair in its chunks.

    settings: `preference` of the model's metadata; batch: the most chunks of a forward pass.
    """
    import torch

    from trnflow.tasks.training.pair_answers import answers

    built = Built(model, task, causal=True, first_position=first_position(model), config={})
    objective = PREFERENCES[settings["objective"]]
    parts: list[list[torch.Tensor]] = []
    rows = 0
    with torch.inference_mode():
        for part in whole_batches(split, fitting(model, split, batch)):
            arrays = (part.input_ids, part.targets, part.segment_ids, part.position_ids, part.reference)
            *columns, reference = (torch.from_numpy(array).to(model.device) for array in arrays)
            found = answers(built, columns, reference, whole=objective.whole)
            parts.append([column[found.there].cpu() for column in found])
            rows += part.samples
            report(rows)
        whole = Answers(*(torch.cat(column) for column in zip(*parts, strict=True)))
        loss, rewards = objective.loss(
            SimpleNamespace(**settings), whole._replace(surprise=whole.surprise * split.surprise_share)
        )
    likelier = whole.means[:, 0] > whole.means[:, 1]
    said = (rewards[:, 0], rewards[:, 1], likelier, loss)
    return Rewards(*(column.double().numpy() for column in said))


def report_pairs(found: Rewards, packed: Input, split: str, texts: Path, folder: Path) -> Meta:
    """Write predictions.parquet; return the report's entries, with all metrics. texts: the split's rows."""
    import numpy as np

    task, rows = packed.meta["task"], source_rows(packed, split)
    write_answers(kind_of(task).row_answers(found, []), found.loss, rows, texts, folder / "predictions.parquet")
    margins = found.chosen - found.rejected
    return {
        "metrics": values_of(task, found),
        "intervals": intervals_of(task, found),
        "tokens": packed.meta["supervised_tokens"][split],
        "worst": [
            {
                "row": int(rows[at]) + 1,
                "label": "chosen",
                "predicted": "rejected",
                "loss": float(found.loss[at]),
                "text": text_of(texts, int(rows[at]))[:LONGEST],
            }
            for at in np.argsort(margins, kind="stable")[:WORST]
            if margins[at] <= 0
        ],
    }
