"""Fine-tune a model on packed rows.

Losses do not depend on the mesh (1e-5 in fp32 without dropout). A run killed and resumed on the same devices writes the
same bytes. Raises CompileError, NonFiniteLoss (the weights are unchanged), ModelError and, after saving, Interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.stage import Keyed, Known, Workdir, stage
from trnflow.tasks.training.config import TrainConfig, ranks
from trnflow.tasks.training.environment import accelerator, environ

if TYPE_CHECKING:
    from trnflow.tasks.metadata import CheckpointMeta, GraphsMeta, PackedMeta

SCHEMA = 1


def train_inputs(config: TrainConfig, inputs: Keyed) -> Meta:
    """Return what is keyed: packed rows, architecture and weights, a warm start's model, an automatic micro-batch."""
    model, packed, start = inputs["model"], inputs["packed"], inputs.get("warm_start")
    assert isinstance(model, Source) and isinstance(packed, Artifact)
    # the tokenizer is part of the packed rows
    keyed: Meta = {"model": {part: model.identity[part] for part in ("config", "weights")}, "packed": packed.digest}
    if isinstance(start, Artifact):
        keyed["warm_start"] = start.digest
    if isinstance(reference := inputs.get("reference"), Artifact):
        keyed["reference"] = reference.digest
    graphs = inputs.get("graphs")  # an input only for micro_batch: auto
    # inputs only for a metric that reads them: an own one columns and texts, one of answers texts
    keyed |= {name: read.digest for name in ("rows", "texts") if isinstance(read := inputs.get(name), Artifact)}
    if "texts" in keyed and "rows" not in keyed:
        keyed["generation"] = model.identity.get("generation")
    return {**keyed, "micro_batch": graphs.meta["micro_batch"]} if isinstance(graphs, Artifact) else keyed


def needs(config: TrainConfig, known: Known) -> Iterable[str]:
    """Return remarks. Raises ModelError, ConfigError, DataError or MissingDependency if training is bound to fail."""
    from trnflow.tasks.training.needs import needs

    return needs(config, known)


@stage(
    kind="checkpoint",
    role="training",
    inputs=train_inputs,
    accel=accelerator,
    environ=environ,
    ranks=ranks,
    resumable=True,
    needs=needs,
    resolve="trnflow.tasks.training.automatic:resolved",
)
def train(
    config: TrainConfig,
    model: Source,
    packed: Input[PackedMeta],
    warm_start: Input | None = None,
    metric: Source | None = None,
    code: Source | None = None,
    rows: Input | None = None,
    texts: Input | None = None,
    reference: Input | None = None,
    *,
    out: Workdir,
    graphs: Input[GraphsMeta],
) -> CheckpointMeta:
    """Train the model and write the trained parameters in fp32.

    graphs: those that may be compiled; metric, code: of `best_metric` and `loss`; rows, texts: of load_data and
    format_prompts, for a metric that reads them; reference: of compute_reference, for an objective that compares with it.

    Returns metadata: task, labels, lengths, method, steps, metrics, data (digest of `packed`), settings, curves, best_step if
    its weights were kept, scratch if training began without weights.
    """
    from trnflow.tasks.training.checkpoint.starting_weights import has_weights, starting_from
    from trnflow.tasks.training.fit import fit
    from trnflow.tasks.training.own_head import remarks_of_start
    from trnflow.tasks.training.selection import chosen_metric

    if config.micro_batch == "auto":
        config = config.with_micro_batch(graphs.meta["micro_batch"])
    config = config.with_own_loss(code, packed=packed.meta, out=out, rank=int(os.environ.get("RANK", "0")))
    read = {"packed": packed, "rows": rows, "texts": texts, "model": model, "warm_start": warm_start}
    chosen = chosen_metric(config, metric, **read, out=out)
    start = starting_from(model, warm_start)
    for text in remarks_of_start(warm_start.meta, packed.meta) if warm_start else ():
        out.warn(text)
    meta = fit(config, start, packed, graphs, out, chosen, reference)
    if not has_weights(start):
        meta["scratch"] = True
    return meta
