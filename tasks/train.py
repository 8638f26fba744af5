"""Fine-tune a model on packed rows: one loop (`tasks.training.loop`) over an engine, `xla` or `native`.

Promises: the losses depend on neither the mesh, ZeRO-1, FSDP, sequence parallelism, remat nor accumulation (to 1e-5 in fp32
without dropout); a run killed and resumed on the same layout ends in the same bytes; no graph is compiled that
`precompile` did not list. Costs: three copies of the parameters in fp32 beside the gradients, a fourth in bf16.
Fails with CompileError (a graph not listed), NonFiniteLoss (the weights are not touched), ModelError, MissingDependency,
and Interrupted on SIGTERM or Ctrl-C, after saving its state.
"""

from __future__ import annotations

from tasks.artifact import Artifact, Input, Meta, Source
from tasks.stage import Keyed, Workdir, stage
from tasks.training.config import TrainConfig, accelerator, environ, ranks

SCHEMA = 1


def train_inputs(config: TrainConfig, inputs: Keyed) -> Meta:
    """Packed rows by digest, the model by architecture and weights: its tokenizer is already in the packed rows. Of the graphs
    what they say of micro_batch auto."""
    model, packed = inputs["model"], inputs["packed"]
    assert isinstance(model, Source) and isinstance(packed, Artifact)
    keyed = {"model": {part: model.identity[part] for part in ("config", "weights")}, "packed": packed.digest}
    graphs = inputs.get("graphs")  # an input for micro_batch auto alone
    return {**keyed, "micro_batch": graphs.meta["micro_batch"]} if isinstance(graphs, Artifact) else keyed


@stage(kind="checkpoint", process=True, inputs=train_inputs, accel=accelerator, environ=environ, ranks=ranks)
def train(config: TrainConfig, model: Source, packed: Input, out: Workdir, graphs: Input) -> Meta:
    """Train, and write the final parameters in fp32, sharded as on the mesh: `shard-*.safetensors`, `index.json` (slices),
    `config.json` and the tokenizer. graphs: the inventory of `precompile`, which need not be made again to reuse a result."""
    from tasks.training.loop import fit

    if config.micro_batch == "auto":
        config = config.settled(graphs.meta["micro_batch"])
    return fit(config, model, packed, graphs, out)
