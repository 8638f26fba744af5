"""Predict the evaluated rows by a simple method, learnt from the rows of train: what `evaluate_model` compares with, kept under
a key of its own, of rows alone. No model is read.

Costs at most 15 s of one core for 20,000 short rows. What would cost much more, by numbers of rows, is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.evaluation.baselines import alike, linear, tags
from trnflow.tasks.evaluation.baselines.examples import Examples
from trnflow.tasks.evaluation.baselines.result import Baseline, LeftOut, save_baseline
from trnflow.tasks.evaluation.config import SplitConfig, split_of
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.system.devices import device_kind
from trnflow.tasks.system.model_process import model_environ

METHODS: dict[str, Callable[[Examples], Baseline]] = {
    "classification": linear.classes,
    "multi_label": linear.labels,
    "regression": linear.numbers,
    "token_classification": tags.words,
    "reranker": alike.passages,
    "embedding": alike.belonging,
    "preference": linear.pairs,
    "unpaired_preference": linear.marked,
}
"""{task of packed rows: its simple method}. A regression of two texts has `scored_pairs`."""


@stage(
    kind="evaluation.shard", accel=lambda config: {"device": device_kind("cpu")}, environ=lambda config: model_environ()
)
def fit_baseline(config: SplitConfig, texts: Input, packed: Input, *, out: Workdir) -> Meta:
    """Write the arrays of a `Baseline`. Returns metadata: as `save_baseline`; or left_out, why there is no baseline."""
    from threadpoolctl import threadpool_limits

    split = split_of(config, packed.meta["rows"])
    method = METHODS[packed.meta["task"]]
    if method is linear.numbers and packed.meta.get("pair"):
        method = alike.scored_pairs
    try:
        rows = Examples(texts, packed, split)
        # sums in one order, whatever the number of cores
        with threadpool_limits(1):
            baseline = method(rows)
    except LeftOut as why:
        return {"left_out": str(why)}
    return save_baseline(baseline, out)
