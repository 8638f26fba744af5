"""Export the consolidated model at static shapes: as portable StableHLO, or as a NEFF (compiled graph) for AWS Neuron.

stablehlo (the default): one graph for each length. The written export is read back and run on a batch, of which half is
padding; `max_difference` in the metadata is the largest difference between its logits and those of eager PyTorch. A small
model takes about two seconds for each length. The weights are in memory once: mapped from their files, then on the device.
`tasks/export/stablehlo.py` describes the files.

neuron: AWS's compiler, through optimum-neuron (in an environment of its own, since it pins other versions of libraries) or,
for one core, torch_neuronx in this environment. The code follows their documentation and sources and **has never been
run**. The logits are not compared, and `max_difference` is null.

Raises:
    ModelError: the logits differ by more than `tolerance`, or a length exceeds the model's positions.
    MissingDependency: no Neuron compiler is installed for `target: neuron`.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.artifact import Input, Meta
from tasks.data.format.row_format import FILE
from tasks.errors import ConfigError, ModelError
from tasks.evaluation.models import EAGER, load_model, longest_sequence
from tasks.export.config import ExportConfig
from tasks.export.stablehlo import ENVIRON
from tasks.sources.model_source import TOKENIZER_FILES
from tasks.stage import Workdir, stage

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""The largest accepted difference of logits by the dtype of the weights, times the largest logit if that is above one."""


def environ(config: ExportConfig) -> dict[str, str]:
    """Return the environment variables of the exporting process. For StableHLO they make tracing and checking run on the
    CPU of any machine, and glibc gives freed tensors of 1 MiB or more back to the system: 0.9 GB of weights take 1.23 times
    their size, else 1.32 to 1.65 times, as threads happen to run."""
    return {**EAGER, **ENVIRON, "MALLOC_MMAP_THRESHOLD_": "1048576"} if config.target == "stablehlo" else EAGER


def accelerator(config: ExportConfig) -> Meta:
    """Return the accelerator part of the stage's key.

    For the target `neuron` it holds the compiler's versions and flags. For StableHLO it is empty: the libraries are in
    another part of the key, and the flags are fixed.
    """
    if config.target == "stablehlo":
        return {}
    from tasks.export.neuron import compiler

    return compiler(config)


LOADERS = ("load_jax.py", "load_iree.py")
"""Programs for those who use the export, in `tasks/export/loaders`; the artifact has copies. Each says at its top what
to install."""


@stage(
    kind="exported",
    accel=accelerator,
    environ=environ,
    assets=tuple(f"tasks/export/loaders/{name}" for name in LOADERS),
)
def export_neuron(config: ExportConfig, weights: Input, out: Workdir) -> Meta:
    """Export the model of a Hugging Face folder as graphs from (input_ids, attention_mask) to logits, one for each static
    shape [batch, length].

    weights: the artifact of consolidate. Returns: the artifact's metadata.
    """
    lengths = _lengths(config, weights)
    meta = {
        "target": config.target,
        "batch": config.batch,
        "lengths": lengths,
        **{name: weights.meta.get(name) for name in ("task", "labels", "dtype")},
    }
    if config.target == "neuron":
        from tasks.export.neuron import compile_neuron

        out.warn("the Neuron export has never been run by this project: check its logits before use")
        compile_neuron(config, weights, lengths, out)
        return {**meta, "max_difference": None}
    difference = _export_stablehlo(config, weights, lengths, meta, out)
    _copy_companions(weights.path, out.path)
    for name in LOADERS:
        shutil.copyfile(Path(__file__).parent / "export" / "loaders" / name, out.path / name)
    return {**meta, "max_difference": difference, "metrics": {"max_difference": difference}}


def example(model: PreTrainedModel, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs to trace and check a model with: (input_ids, attention_mask), int64 [batch, length].

    The tokens are random; in every second row, beginning with the first, half of the tokens are padding.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    input_ids = torch.randint(0, model.config.vocab_size, (batch, length), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[::2, (length + 1) // 2 :] = 0
    padding = model.config.pad_token_id
    return input_ids.masked_fill(attention_mask == 0, padding if padding is not None else 0), attention_mask


def _lengths(config: ExportConfig, weights: Input) -> list[int]:
    if config.length is not None:
        return [config.length]
    lengths = weights.meta.get("lengths")
    if not lengths:
        raise ConfigError("the model does not say what lengths its data was packed to", "set export.length")
    return sorted(int(length) for length in lengths)


def _export_stablehlo(config: ExportConfig, weights: Input, lengths: list[int], meta: Meta, out: Workdir) -> float:
    """Write, read back, run; the largest difference from eager, rounded up to one digit so that it repeats."""
    import gc

    import torch

    from tasks.export.lowering import lower
    from tasks.export.stablehlo import load_stablehlo, write_stablehlo

    model = load_model(weights.path, weights.meta["task"])
    _check_positions(model, lengths)
    graphs, expected = {}, {}
    for done, length in enumerate(lengths):
        out.progress(done, 2 * len(lengths), "graphs")
        inputs = example(model, config.batch, length)
        graphs[length] = lower(model, *inputs)
        with torch.no_grad():
            expected[length] = (inputs, model(input_ids=inputs[0], attention_mask=inputs[1]).logits)
    write_stablehlo(out.path, graphs, weights.path, {name: meta[name] for name in ("batch", "task", "labels")})
    dtype = str(model.dtype).removeprefix("torch.")
    del graphs, model
    gc.collect()  # before the export brings the weights again: modules are in cycles
    exported = load_stablehlo(out.path)
    worst = 0.0
    for done, (length, (inputs, logits)) in enumerate(expected.items(), len(lengths)):
        out.progress(done, 2 * len(lengths), "graphs")
        difference = _difference(logits, exported(*inputs), inputs[1])
        _check_difference(difference, logits, length, config.tolerance or TOLERANCE[dtype])
        worst = max(worst, difference)
    out.progress(2 * len(lengths), 2 * len(lengths), "graphs")
    return rounded_up(worst)


def _difference(eager: torch.Tensor, exported: torch.Tensor, attention_mask: torch.Tensor) -> float:
    """The largest absolute difference of logits, without padding; NaN if one is NaN."""
    apart = (eager.float() - exported.float()).abs()
    return float((apart[attention_mask.bool()] if eager.ndim == 3 else apart).max())


def _check_difference(difference: float, logits: torch.Tensor, length: int, tolerance: float) -> None:
    allowed = tolerance * max(1.0, float(logits.float().abs().max()))
    if not difference <= allowed:
        raise ModelError(
            f"the exported graph of length {length} gives logits {difference:.2g} away from eager PyTorch's, "
            f"more than {allowed:.2g}",
            "raise export.tolerance if the model's dtype explains it; else please report the model type",
        )


def _check_positions(model: PreTrainedModel, lengths: list[int]) -> None:
    limit = longest_sequence(model)
    if limit is not None and lengths[-1] > limit:
        raise ModelError(
            f"the model has positions for {limit} tokens, and the export is for {lengths[-1]}",
            f"set export.length to {limit} or less",
        )


def rounded_up(value: float) -> float:
    """Round a number up to one significant digit (2.3e-07 -> 3e-07), so that the exported difference is nearly always the
    same on other processors."""
    if value == 0:
        return 0.0
    exponent = math.floor(math.log10(value))
    return float(f"{math.ceil(round(value / 10.0**exponent, 6))}e{exponent}")


def _copy_companions(weights: Path, folder: Path) -> None:
    for name in ("config.json", "generation_config.json", FILE, *TOKENIZER_FILES):
        if (weights / name).is_file():
            shutil.copyfile(weights / name, folder / name)
