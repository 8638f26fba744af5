"""Which rows have baselines, and what is in the keys: light, because scoring imports this, too."""

from __future__ import annotations

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.evaluation.config import PredictConfig, base_weights
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Keyed

BASELINE, BEFORE = "baseline", "before"
"""End the names of metrics, as in `accuracy_baseline`: of a simple method, and of the model before training."""


def before_settings(config: PredictConfig) -> Meta:
    """Return the settings that `predict_before` reads."""
    return config.model_dump(include={"split", "batch"}, mode="json")


def has_baseline(inputs: Keyed) -> bool:
    """Return whether rows have something that a simple method predicts: all but those of a language model."""
    kind = kind_of(_meta(inputs)["task"])
    return kind.per_row or kind.pairs


def is_told_before(inputs: Keyed) -> bool:
    """Return whether the model before training says something about the rows: the next token, or how alike two texts are."""
    meta, start = _meta(inputs), inputs.get("warm_start")
    assert not isinstance(start, Source)
    base = inputs.get("base")
    if not isinstance(base, Source) or base_weights(base, start) is None:
        return False
    kind = kind_of(meta["task"])
    is_alike = kind.queries or (kind.name == "regression" and meta.get("pair", False))
    return is_alike or not (kind.per_row or kind.pairs)


def before_inputs(config: StageConfig, inputs: Keyed) -> Meta:
    """Return the table `inputs` of the key of `predict_before`: rows, architecture and weights before training."""
    base, start = inputs["base"], inputs.get("warm_start")
    assert isinstance(base, Source) and not isinstance(start, Source)
    rows = {name: item.digest for name in ("texts", "packed") if isinstance(item := inputs[name], Artifact)}
    return {**rows, "base": {"config": base.identity["config"], "weights": base_weights(base, start)}}


def _meta(inputs: Keyed) -> Meta:
    packed = inputs["packed"]
    assert isinstance(packed, Artifact | Input)
    return packed.meta
