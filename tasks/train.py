"""Stage `train`: fine-tune a model on packed rows, by the loop in `trnflow.tasks.training.loop` on the engine `xla` or `native`.

Promises: the losses do not depend on the mesh, ZeRO-1, FSDP, sequence parallelism, remat or accumulation (within 1e-5 in
fp32 without dropout). A run that was killed and resumed on the same devices writes the same bytes as an uninterrupted run.
Only graphs that `precompile` listed are compiled. Parameters that `train.method` freezes do not change.
Memory with AdamW: the gradients, and for each trained parameter three fp32 numbers (weight and two moments). With
`train.dtype=bfloat16` a bf16 copy of the weight is added, and with `train.stochastic_rounding` the fp32 weight is dropped.
A frozen parameter takes one number of `train.dtype`.
Fails with CompileError (a graph is not in precompile's list), NonFiniteLoss (the weights are unchanged), ModelError,
MissingDependency, and, after saving its state, with Interrupted on SIGTERM or Ctrl-C.
"""

from __future__ import annotations

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.stage import Keyed, Workdir, stage
from trnflow.tasks.training.config import TrainConfig, ranks
from trnflow.tasks.training.environment import accelerator, environ

SCHEMA = 1


def train_inputs(config: TrainConfig, inputs: Keyed) -> Meta:
    """Return JSON that describes the inputs of `train` in the stage's cache key, the hash of all that determines the
    result.

    It contains the digests of the packed rows and of a warm start's model (whose weights training begins with), and
    the architecture and weights of the model; the model's tokenizer is part of the packed rows. With `micro_batch:
    auto` it also contains the number of rows that precompile found to fit into the device's memory."""
    model, packed, start = inputs["model"], inputs["packed"], inputs.get("warm_start")
    assert isinstance(model, Source) and isinstance(packed, Artifact)
    keyed = {"model": {part: model.identity[part] for part in ("config", "weights")}, "packed": packed.digest}
    if isinstance(start, Artifact):
        keyed["warm_start"] = start.digest
    graphs = inputs.get("graphs")  # an input only for micro_batch: auto
    return {**keyed, "micro_batch": graphs.meta["micro_batch"]} if isinstance(graphs, Artifact) else keyed


@stage(kind="checkpoint", inputs=train_inputs, accel=accelerator, environ=environ, ranks=ranks, resumable=True)
def train(
    config: TrainConfig, model: Source, packed: Input, warm_start: Input | None = None, *, out: Workdir, graphs: Input
) -> Meta:
    """Train the model and write the trained parameters in fp32.

    Files: `shard-*.safetensors`, `index.json` (where each slice of a tensor is), `config.json`, the tokenizer, and for
    LoRA `adapter_config.json`.

    Args:
        model: the model's source.
        packed: the artifact of `pack_chunks`.
        warm_start: the artifact whose weights replace those of `model`, or None.
        graphs: the artifact of `precompile`, which lists the graphs (programs that a device runs, such as a training
            step for one sequence length) that may be compiled. The artifact is part of the stage's cache key only with
            `micro_batch: auto`.

    Returns metadata: task, labels (names by id, or null), lengths (of the chunks, in tokens), method (`train.method`),
    steps (the number of updates made), metrics {name: value}, data (the digest of `packed`), settings (those that the
    model card shows), and best_step if the weights of the best step were kept.
    """
    from trnflow.tasks.training.checkpoint.starting_weights import starting_from
    from trnflow.tasks.training.fit import fit

    if config.micro_batch == "auto":
        config = config.with_micro_batch(graphs.meta["micro_batch"])
    return fit(config, starting_from(model, warm_start), packed, graphs, out)
