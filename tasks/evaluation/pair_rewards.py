"""Rewards that a model gives to the answers of pairs, as the objective of its training defines them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.forward import fitting
from trnflow.tasks.evaluation.row_outputs import whole_batches
from trnflow.tasks.kinds.preference import Preference
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.model.pretrained import first_position
from trnflow.tasks.training.preference_losses import PREFERENCES, Answers
from trnflow.tasks.training.shared_types import Built


def pair_rewards(model: Any, split: Split, task: str, settings: Meta, batch: int, report: Callable[[int], None]) -> Any:
    """Return `Rewards` of a split, or `MarkedRewards`, pair after pair in its chunks.

    settings: `preference` of the model's metadata; batch: the most chunks of a forward pass.
    """
    import torch

    from trnflow.tasks.training.pair_answers import answers

    built = Built(model, task, causal=True, first_position=first_position(model), config={})
    objective, kind = PREFERENCES[settings["objective"]], kind_of(task)
    assert isinstance(kind, Preference)
    parts: list[list[torch.Tensor]] = []
    rows = 0
    with torch.inference_mode():
        for part in whole_batches(split, fitting(model, split, batch)):
            arrays = (part.input_ids, part.targets, part.segment_ids, part.position_ids, part.reference, part.marks)
            given = [torch.from_numpy(array).to(model.device) for array in arrays if array is not None]
            found = answers(built, given[:4], *given[4:], whole=objective.whole)
            parts.append([column[found.there].cpu() for column in found])
            rows += part.samples
            report(rows)
        whole = Answers(*(torch.cat(column) for column in zip(*parts, strict=True)))
        gain = (whole.logps - whole.reference)[:, 1].mean().clamp(min=0)
        # marks of 1 and -1 leave each reward as it is
        whole = whole._replace(surprise=whole.surprise * split.surprise_share, marks=whole.marks.sign(), kl=gain)
        loss, rewards = objective.loss(SimpleNamespace(**settings), whole)
        said = kind.outputs(whole, rewards, loss)
    return type(said)(*(column.double().numpy() for column in said))
