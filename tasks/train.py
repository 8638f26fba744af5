"""Fine-tune a model on packed rows: one loop (`tasks.training.loop`) over an engine, `xla` or `native`.

Promises: the losses depend on neither the mesh, ZeRO-1, FSDP, sequence parallelism, remat nor accumulation (to 1e-5 in fp32
without dropout); a run killed and resumed on the same layout ends in the same bytes; no graph is compiled that
`precompile` did not list; what `train.method` freezes stays as it was, to the bit. Costs: three copies in fp32 of what is
trained beside its gradients, a fourth in bf16 (with `train.stochastic_rounding` two, and that one); one of what is frozen,
in `train.dtype`.
Fails with CompileError (a graph not listed), NonFiniteLoss (the weights are not touched), ModelError, MissingDependency,
and Interrupted on SIGTERM or Ctrl-C, after saving its state.
"""

from __future__ import annotations

from tasks.artifact import Artifact, Input, Meta, Source
from tasks.stage import Keyed, Workdir, stage
from tasks.training.config import TrainConfig, accelerator, environ, ranks

SCHEMA = 1


def train_inputs(config: TrainConfig, inputs: Keyed) -> Meta:
    """Packed rows by digest, the model by architecture and weights: its tokenizer is already in the packed rows. What training
    starts from, if it is another model, by digest; of the graphs what they say of micro_batch auto."""
    model, packed, start = inputs["model"], inputs["packed"], inputs.get("warm_start")
    assert isinstance(model, Source) and isinstance(packed, Artifact)
    keyed = {"model": {part: model.identity[part] for part in ("config", "weights")}, "packed": packed.digest}
    if isinstance(start, Artifact):
        keyed["warm_start"] = start.digest
    graphs = inputs.get("graphs")  # an input for micro_batch auto alone
    return {**keyed, "micro_batch": graphs.meta["micro_batch"]} if isinstance(graphs, Artifact) else keyed


@stage(kind="checkpoint", process=True, inputs=train_inputs, accel=accelerator, environ=environ, ranks=ranks)
def train(
    config: TrainConfig, model: Source, packed: Input, warm_start: Input | None = None, *, out: Workdir, graphs: Input
) -> Meta:
    """Train, and write what was trained in fp32, sharded as on the mesh: `shard-*.safetensors`, `index.json` (slices),
    `config.json`, of LoRA `adapter_config.json`, and the tokenizer. warm_start: the model to start from instead of `model`'s
    weights; graphs: the inventory of `precompile`, which need not be made again to reuse a result."""
    from tasks.training.fit import fit
    from tasks.training.warm_start import starting_from

    if config.micro_batch == "auto":
        config = config.settled(graphs.meta["micro_batch"])
    return fit(config, starting_from(model, warm_start), packed, graphs, out)
