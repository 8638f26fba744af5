"""Export the consolidated model for inference: as StableHLO or ONNX, or as NEFF for AWS Neuron.

StableHLO and ONNX are read back and compared with eager PyTorch; a small model takes two seconds a length. Neuron's code
**has never been run**. Raises ModelError when logits differ or a length is too long, MissingDependency without compiler.
"""

from __future__ import annotations

import gc
import math
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE
from trnflow.tasks.errors import ConfigError, ModelError
from trnflow.tasks.export.config import ExportConfig
from trnflow.tasks.export.readme import write_readme
from trnflow.tasks.export.targets import LOADERS, TARGETS, ExportedProgram, open_export
from trnflow.tasks.sources.model_source import TOKENIZER_FILES
from trnflow.tasks.stage import Known, Workdir, stage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trnflow.tasks.export.agreement import ExampleCall
    from trnflow.tasks.metadata import ExportedMeta, ModelMeta

M_MMAP_THRESHOLD = -3
"""Its number in glibc's malloc.h."""


def environ(config: ExportConfig) -> dict[str, str]:
    """Return the environment of the stage's process; all but Neuron's compiler trace and run on the CPU."""
    return TARGETS[config.target].environ()


def accelerator(config: ExportConfig) -> Meta:
    """Return versions and flags of what writes the export, where they are in no other part of the key."""
    return TARGETS[config.target].accelerator(config)


def needs(config: ExportConfig, known: Known) -> Iterator[str]:
    """Yield nothing; raise ModelError if the target can't hold the model, MissingDependency if what writes it is not here."""
    TARGETS[config.target].check_model(known)
    if known.here is not None:
        TARGETS[config.target].check(config)
    yield from ()


@stage(
    kind="exported",
    role="export",
    accel=accelerator,
    environ=environ,
    assets=tuple(f"trnflow/tasks/export/loaders/{name}" for name in LOADERS),
    needs=needs,
)
def export_neuron(config: ExportConfig, weights: Input[ModelMeta], out: Workdir) -> ExportedMeta:
    """Export the model as graphs from `input_names` to logits, of StableHLO one for each length.

    Returns metadata:
        batch: Rows of a call.
        lengths: Tokens of a row, ascending.
        rows_compared: With PyTorch; 0 for `neuron`.
        max_difference: Of their logits; null for `neuron`.
    """
    lengths = _lengths(config, weights)
    meta: ExportedMeta = {
        "target": config.target,
        "batch": config.batch,
        "lengths": lengths,
        "task": weights.meta["task"],
        "labels": weights.meta.get("labels"),
        "dtype": weights.meta.get("dtype"),
        "rows_compared": 0,
        "max_difference": None,
    }
    _free_large_tensors()
    model = TARGETS[config.target].write(config, weights, lengths, out)
    if model is None:
        return meta
    meta["dtype"] = str(model.dtype).removeprefix("torch.")
    calls = _eager_calls(model, config.batch, lengths, open_export(out.path).compiles_once, out)
    del model
    gc.collect()  # before the export brings the weights again: modules are in cycles
    rows, difference = _compared(config, calls, meta["dtype"], out)
    meta["rows_compared"], meta["max_difference"] = rows, difference
    for name in ("config.json", "generation_config.json", ROW_FORMAT_FILE, *TOKENIZER_FILES):
        if (weights.path / name).is_file():
            shutil.copyfile(weights.path / name, out.path / name)
    write_readme(out.path, meta)
    meta["metrics"] = {"max_difference": difference, "rows_compared": rows}
    return meta


def _free_large_tensors() -> None:
    """Make glibc give freed tensors of 1 MiB or more back to the system."""
    import ctypes

    with suppress(AttributeError, OSError):
        # 0.9 GB of weights take 1.23 times their size, else 1.32 to 1.65; MALLOC_MMAP_THRESHOLD_ would need a warm
        # parent of its own
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)


def _lengths(config: ExportConfig, weights: Input[ModelMeta]) -> list[int]:
    if config.length is not None:
        return [config.length]
    lengths = weights.meta.get("lengths")
    if not lengths:
        raise ConfigError("the model does not say what lengths its data was packed to", "set export.length")
    return sorted(int(length) for length in lengths)


def _compared(config: ExportConfig, calls: dict[int, list[ExampleCall]], dtype: str, out: Workdir) -> tuple[int, float]:
    """Return (rows compared, largest difference of logits from eager PyTorch's)."""
    from trnflow.tasks.export.agreement import TOLERANCE

    exported, tolerance = open_export(out.path), config.tolerance or TOLERANCE[dtype]
    worst = max(_largest_difference(exported, some, length, tolerance, out) for length, some in calls.items())
    return sum(call.rows for some in calls.values() for call in some), rounded_up(worst)


def _eager_calls(
    model: PreTrainedModel, batch: int, lengths: list[int], compiles_once: bool, out: Workdir
) -> dict[int, list[ExampleCall]]:
    """Return {length: calls of the PyTorch model with examples}."""
    from trnflow.tasks.export.agreement import calls_by_default, eager_call, positions_of_a_row
    from trnflow.tasks.export.examples import example

    parameters, vocabulary = model.num_parameters(), model.config.get_text_config().vocab_size
    count = calls_by_default(parameters, lengths, batch, compiles_once=True) if compiles_once else 1
    positions = positions_of_a_row(count * batch * len(lengths), vocabulary)
    calls_by_length: dict[int, list[ExampleCall]] = {length: [] for length in lengths}
    for length, calls in calls_by_length.items():
        for number in range(count):
            calls.append(eager_call(model, example(model, batch, length, number), batch, positions))
            out.progress(number + 1, count, f"calls of the weights, {length} tokens")
    return calls_by_length


def _largest_difference(
    exported: ExportedProgram, calls: list[ExampleCall], length: int, tolerance: float, out: Workdir
) -> float:
    """Return the largest difference of logits. Raises ModelError when it is above the tolerance."""
    from trnflow.tasks.export.agreement import compared_logits

    worst = largest = 0.0
    for number, call in enumerate(calls, 1):
        difference, _ = compared_logits(exported, call)
        largest = max(largest, float(call.logits.float().abs().max()))
        allowed = tolerance * max(1.0, largest)
        if not difference <= allowed:  # or not a number
            raise ModelError(
                f"the exported graph of length {length} gives logits {difference:.2g} away from eager PyTorch's, "
                f"more than {allowed:.2g}",
                "raise export.tolerance if the model's dtype explains it; else please report the model type",
            )
        worst = max(worst, difference)
        out.progress(number, len(calls), f"calls of the export, {length} tokens")
    return worst


def rounded_up(value: float) -> float:
    """Round up to one significant digit (2.3e-07 -> 3e-07)."""
    if value == 0:
        return 0.0
    # other processors differ in last bits: the metadata, and so the digest, should not
    exponent = math.floor(math.log10(value))
    return float(f"{math.ceil(round(value / 10.0**exponent, 6))}e{exponent}")
