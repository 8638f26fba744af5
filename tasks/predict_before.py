"""Predict the evaluated rows by the model that training starts from: what `evaluate_model` compares with, kept under a key of
its own, without trained weights.

Of a language model these are losses; of two texts the scores of the model's own head, where it brings one, else the texts'
cosine. Costs a forward pass over the split, and is left out where that would take more than a tenth of a pass over train.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.evaluation.baselines.config import before_inputs, before_settings
from trnflow.tasks.evaluation.baselines.result import Baseline, save_baseline
from trnflow.tasks.evaluation.config import PredictConfig, accelerator, environ, split_of
from trnflow.tasks.stage import Workdir, stage

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta
    from trnflow.tasks.training.batches.sampler import Split
    from trnflow.tasks.training.shared_types import Built

SHARE = 0.3
"""Tokens of the split for each token of train, at most: a forward pass takes a third of a training step."""
OPERATIONS = 2e12
"""Floating point operations that a forward pass may take all the same, two for each parameter and token: 15 s of two cores."""
MODEL, UNIT = "the model before training", "rows before training"


@stage(kind="evaluation.shard", params=before_settings, inputs=before_inputs, accel=accelerator, environ=environ)
def predict_before(
    config: PredictConfig,
    texts: Input,
    packed: Input[PackedMeta],
    base: Source,
    warm_start: Input | None = None,
    *,
    out: Workdir,
) -> Meta:
    """Write the arrays of a `Baseline`.

    Returns metadata: as `save_baseline`, of a language model also `total` (nats); or left_out, why nothing was predicted.
    """
    split = split_of(config, packed.meta["rows"])
    built = _built(base, warm_start, packed)
    if why := _too_long(built, packed, split):
        return {"left_out": why}
    built.model.to(config.device or "cpu").eval()
    if not built.kind.per_row:
        return _language(config, built, packed, split, out)
    # `lacking` names what training begins with at random
    own_head = not built.kind.apart and not built.lacking
    predict = _scores if own_head else _cosines
    return save_baseline(predict(config, built, texts, packed, split, out), out)


def _built(base: Source, warm_start: Input | None, packed: Input[PackedMeta]) -> Built:
    """Build the model with the values with which training begins, in the type of its files."""
    from trnflow.tasks.training.checkpoint.started_model import build_started
    from trnflow.tasks.training.checkpoint.starting_weights import starting_from
    from trnflow.tasks.training.model.pretrained import takes_token_types

    known = base.identity["config"]["pretrained"] or {}
    dtype = str(known.get("dtype") or known.get("torch_dtype") or "float32")
    built = build_started(starting_from(base, warm_start), packed, seed=0, dtype=dtype)
    built.model.reads_types = built.pair and takes_token_types(built.model)
    return built


def _too_long(built: Built, packed: Input[PackedMeta], split: str) -> str:
    tokens, train = (packed.meta["real_tokens"].get(name, 0) for name in (split, "train"))
    operations = 2.0 * built.model.num_parameters() * tokens
    if tokens <= SHARE * train or operations <= OPERATIONS:
        return ""
    return f"{tokens:,} tokens of {split} would take more than a tenth of a pass over the {train:,} of train"


def _language(config: PredictConfig, built: Built, packed: Input[PackedMeta], split: str, out: Workdir) -> Meta:
    from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
    from trnflow.tasks.evaluation.forward import token_losses
    from trnflow.tasks.evaluation.row_losses import row_losses
    from trnflow.tasks.training.batches.sampler import Split

    rows = Split(packed, split)
    losses = token_losses(built.model, rows, config.batch, _report(rows, out))
    nll = row_losses(losses, packed, split, read_tokenizer(packed.path / "tokenizer")).nll
    return {**save_baseline(Baseline(MODEL, 0, {"nll": nll}), out), "total": float(losses.nll.sum())}


def _scores(
    config: PredictConfig, built: Built, texts: Input, packed: Input[PackedMeta], split: str, out: Workdir
) -> Baseline:
    """Predict by the head that the model brings. Its numbers may have another range than the rows'."""
    from trnflow.tasks.evaluation.row_outputs import row_outputs
    from trnflow.tasks.training.batches.sampler import Split

    rows = Split(packed, split)
    outputs = row_outputs(built.model, rows, built.task, config.batch, {}, _report(rows, out))
    return Baseline(f"{MODEL}, by its own head", 0, {"values": outputs.values}, orders=True)


def _cosines(
    config: PredictConfig, built: Built, texts: Input, packed: Input[PackedMeta], split: str, out: Workdir
) -> Baseline:
    import numpy as np

    from trnflow.tasks.evaluation.baselines.alike import of_vectors, texts_apart
    from trnflow.tasks.evaluation.baselines.examples import read_examples
    from trnflow.tasks.evaluation.baselines.model_vectors import model_vectors

    rows = read_examples(texts, packed, split)
    vectors = model_vectors(built, packed, texts_apart(rows), config.batch, partial(out.progress, unit=UNIT))
    expected = np.array([row["label"] for row in rows], np.float32)
    return Baseline(f"cosine of texts by {MODEL}", 0, of_vectors(built.task, expected, vectors), orders=True)


def _report(rows: Split, out: Workdir) -> Callable[[int], None]:
    total = sum(rows.rows.values())
    return lambda done: out.progress(done, total, UNIT)
