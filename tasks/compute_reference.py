"""Compute the log-probabilities that the model from which training starts gives to the answers of all packed pairs.

Made once for a model and packed rows: training then holds one model, and other settings of training do not compute them
again. A forward pass over all splits, on one device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.stage import Keyed, Workdir, stage
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.environment import accelerator
from trnflow.tasks.training.environment import environ as training_environ

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta
    from trnflow.tasks.training.shared_types import Built

TOKENS = 1 << 13
"""Tokens of a forward pass, unless a chunk has more."""


def reference_settings(config: TrainConfig) -> Meta:
    """Return what of the settings changes the reference: LoRA's is the base, in the type in which training holds it."""
    base = config.lora.base_dtype if config.lora else None
    return {"dtype": config.dtype, "attention": config.attention, **({"base_dtype": base} if base else {})}


def reference_inputs(config: TrainConfig, inputs: Keyed) -> Meta:
    """Return what is keyed: packed rows, architecture and weights."""
    model, packed, start = inputs["model"], inputs["packed"], inputs.get("warm_start")
    assert isinstance(model, Source) and isinstance(packed, Artifact)
    keyed = {"model": {part: model.identity[part] for part in ("config", "weights")}, "packed": packed.digest}
    if isinstance(start, Artifact):
        return {**keyed, "warm_start": start.digest}
    return keyed if model.identity["weights"] is not None else {**keyed, "seed": config.seed}


def _alone(config: TrainConfig) -> TrainConfig:
    """Return the settings of one device of engine native, so that every engine and mesh has the same reference."""
    one = {"devices": 1, "tensor_parallel_size": 1, "sequence_parallel": False, "compile": False, "optimizer": "adamw"}
    on = {"engine": "native", "device": "cpu"} if config.engine == "xla" else {}
    return config.model_copy(update={**one, **on})


def environ(config: TrainConfig) -> dict[str, str]:
    """Return the environment of a training on one device."""
    return training_environ(_alone(config))


@stage(
    kind="reference",
    role="reference",
    params=reference_settings,
    inputs=reference_inputs,
    accel=lambda config: accelerator(_alone(config)),
    environ=environ,
)
def compute_reference(
    config: TrainConfig, model: Source, packed: Input[PackedMeta], warm_start: Input | None = None, *, out: Workdir
) -> Meta:
    """Write `<split>/<length>.npy`, float32 [chunks, documents]: summed log-probabilities of each document's answer, 0 where
    a chunk has fewer documents.

    Returns metadata: task, splits {split: pairs}.
    """
    import numpy as np
    import torch

    from trnflow.tasks.training.batches.sampler import Split
    from trnflow.tasks.training.checkpoint.starting_weights import starting_from
    from trnflow.tasks.training.device_kinds import KINDS
    from trnflow.tasks.training.devices import check_device
    from trnflow.tasks.training.native.determinism import choose_kernels

    config = _alone(config)
    check_device(config)
    choose_kernels(config)
    built = _built(config, starting_from(model, warm_start), packed)
    kind, pairs = KINDS[config.device], dict[str, int]()
    built.model.to(kind.torch_device()).eval()
    splits = {name: Split(packed, name, config.shape_unit) for name in packed.meta["rows"]}
    total, done = sum(sum(split.rows.values()) for split in splits.values()), 0
    for name, split in splits.items():
        (out.path / name).mkdir()
        pairs[name] = 0
        for length, chunks in sorted(split.rows.items()):
            parts: list[Any] = []
            for address in split.of_length(length, max(TOKENS // length, 1)):
                batch = split.read(address)
                with torch.inference_mode():
                    parts.append(_logps(config, built, batch)[: batch.samples])
                pairs[name] += batch.supervised
                done += batch.samples
                out.progress(done, total, "chunks")
            whole = np.zeros((chunks, max(part.shape[1] for part in parts)), np.float32)
            at = 0
            for part in parts:
                whole[at : at + len(part), : part.shape[1]] = part
                at += len(part)
            np.save(out.path / name / f"{length}.npy", whole)
    return {"task": packed.meta["task"], "splits": pairs}


def _built(config: TrainConfig, model: Source, packed: Input[PackedMeta]) -> Built:
    """Build the model as training holds it before the first update."""
    import torch

    from trnflow.tasks.training.checkpoint.started_model import build_started
    from trnflow.tasks.training.model.adapters import adapt, loaded_dtype
    from trnflow.tasks.training.model.attention import with_attention

    built = build_started(model, packed, seed=config.seed, dtype=loaded_dtype(config, packed.meta["task"]))
    if config.lora is not None and config.lora.base_dtype is not None:
        built = adapt(config, built)  # which quantises; its matrices add nothing yet
    for parameter in built.parameters().values():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(getattr(torch, config.dtype))
    return with_attention(config, built)


def _logps(config: TrainConfig, built: Built, batch: Any) -> Any:
    import torch

    from trnflow.tasks.training.chunked_loss import chunk_positions
    from trnflow.tasks.training.device_kinds import KINDS
    from trnflow.tasks.training.pair_answers import answers

    arrays = (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids, batch.reference)
    *columns, blank = KINDS[config.device].sent([torch.from_numpy(array) for array in arrays])
    return answers(built, columns, blank, chunk=chunk_positions(config, built)).logps.flatten(1).cpu().numpy()
