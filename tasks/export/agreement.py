"""Compare an exported model with the same model in eager PyTorch.

`eager_calls` runs the PyTorch model first, then `compare` the exported one: two copies of the weights are never in
memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.evaluation.models import input_names
from trnflow.tasks.evaluation.row_outputs import plain_inputs
from trnflow.tasks.export.targets import ExportedProgram, open_export
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training.batches.sampler import BatchAddress, Split

if TYPE_CHECKING:
    from trnflow.tasks.metadata import ExportedMeta

ROWS = 256
"""Rows compared unless the recipe says otherwise, if they take at most SECONDS_COMPILED."""

SECONDS_COMPILED = 600
"""Most seconds of comparison, by estimate, where a graph is compiled once."""

SECONDS = 1
"""Most seconds where a graph is compiled at every call, unless one call of each length takes more."""

# measured: 0.15 s a call for 1 M parameters and 64 tokens, 0.3 for 23 M and 128, 3.8 for 109 M and 512
COMPILING, COMPILING_WEIGHT, WEIGHT_AND_TOKEN = 0.15, 5e-9, 5e-11
"""Seconds on two cores: to compile a graph, for each parameter, and to run it for each parameter and token."""

TIMED = 50
"""Most calls of each length that are timed."""

HELD = 1 << 28
"""Most bytes of logits kept of all calls, unless one position of each row takes more."""

TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""The largest accepted difference of logits by the dtype of the weights, times the largest logit if that is above one."""


class ExampleCall(NamedTuple):
    """The inputs of one call, and eager PyTorch's logits.

    Attributes:
        inputs: int64 [batch, length] each, as `input_names` of the model.
        compared: bool [batch]; of a language model [batch, length].
        logits: float [compared, labels or vocabulary].
    """

    inputs: tuple[Tensor, ...]
    compared: Tensor
    logits: Tensor

    @property
    def rows(self) -> int:
        """Rows of which something is compared."""
        return int((self.compared.any(-1) if self.compared.ndim == 2 else self.compared).sum())


def calls_by_default(parameters: int, lengths: Sequence[int], batch: int, *, compiles_once: bool) -> int:
    """Return how many calls of each length to compare: ROWS rows in all, or as many as fit into the time, at least one."""
    wanted = math.ceil(ROWS / (batch * len(lengths)))
    # an estimate, not a clock: the same model is always compared on the same rows
    running = sum(parameters * WEIGHT_AND_TOKEN * batch * length for length in lengths)
    if compiles_once:
        return max(min(wanted, int(SECONDS_COMPILED / running)), 1)
    compiling = (COMPILING + parameters * COMPILING_WEIGHT) * len(lengths)
    return max(min(wanted, int(SECONDS / (compiling + running))), 1)


def positions_of_a_row(rows: int, vocabulary: int) -> int:
    """Return how many positions of each row to compare, so that the logits of `rows` rows take at most HELD bytes."""
    return max(HELD // (4 * vocabulary * rows), 1)


def eager_call(model: Any, inputs: Sequence[Tensor], rows: int, positions: int) -> ExampleCall:
    """Call the PyTorch model with one batch [batch, length]; compare its first `rows` rows.

    positions: Of a language model's row, spread evenly over those without padding.
    """
    with torch.inference_mode():
        logits = model(**dict(zip(input_names(model), inputs, strict=True))).logits
        compared = torch.arange(len(inputs[0])) < rows
        if logits.ndim == 3:
            compared = _evenly(inputs[1].bool() & compared[:, None], positions)
        return ExampleCall(tuple(inputs), compared, logits[compared])


def eager_calls(
    model: Any, split: Split, exported: Input[ExportedMeta], rows: int | None, report: Callable[[int, int], None]
) -> list[ExampleCall]:
    """Call the PyTorch model with rows of a split, in the shapes of the export's graphs.

    rows: About how many to compare; None: by `calls_by_default`; 0: none. report: gets (calls so far, all).
    """
    batch, lengths = exported.meta["batch"], exported.meta["lengths"]
    if rows is None:
        once = open_export(exported.path).compiles_once
        calls = calls_by_default(model.num_parameters(), lengths, batch, compiles_once=once)
    else:
        calls = math.ceil(rows / (batch * len(lengths)))
    inputs = [inputs_of_call for length in lengths for inputs_of_call in _inputs(split, model, length, batch, calls)]
    positions = positions_of_a_row(max(len(inputs), 1) * batch, model.config.get_text_config().vocab_size)
    examples = []
    for number, inputs_of_call in enumerate(inputs, 1):
        examples.append(eager_call(model, *inputs_of_call, positions))
        report(number, len(inputs))
    return examples


def compare(
    exported: Input[ExportedMeta], calls: list[ExampleCall], report: Callable[[int, int], None]
) -> tuple[Meta, Meta]:
    """Compare the exported model's logits with those in `calls`.

    Returns ({"calls", "batch", "rows", "compared"}, {"export_max_difference", "export_agreement"}); padding is not
    compared. Raises ModelError when a logit is not finite.
    """
    program, kind = open_export(exported.path), kind_of(exported.meta["task"])
    worst, agreed, compared = 0.0, 0, 0
    for number, call in enumerate(calls, 1):
        apart, logits = compared_logits(program, call)
        if not math.isfinite(apart):
            raise ModelError("the exported model's logits are not finite", "export again; check the weights' dtype")
        same = int(kind.agree(logits, call.logits).sum())
        worst, agreed, compared = max(worst, apart), agreed + same, compared + len(call.logits)
        report(number, len(calls))
    metrics = {"export_max_difference": worst, "export_agreement": agreed / compared}
    rows = sum(call.rows for call in calls)
    return {"calls": len(calls), "batch": exported.meta["batch"], "rows": rows, "compared": compared}, metrics


def compared_logits(program: ExportedProgram, call: ExampleCall) -> tuple[float, Tensor]:
    """Return (largest absolute difference, NaN if one is; the program's logits, as those of the call)."""
    ran = program(*call.inputs)[call.compared]
    apart = float((ran.float() - call.logits.float()).abs().max())
    return apart, ran


def call_seconds(exported: Input[ExportedMeta], calls: list[ExampleCall]) -> list[float]:
    """Return the wall-clock seconds of each timed call, the shortest length first; [] where each call compiles."""
    # with XLA's optimisation, as on a server, though stages turn it off elsewhere
    program = open_export(exported.path, optimised=True)
    if not program.compiles_once:
        return []
    seconds = []
    for length in sorted({call.inputs[0].shape[1] for call in calls}):
        chosen = [call for call in calls if call.inputs[0].shape[1] == length][:TIMED]
        # the first call compiles, so it is made twice and timed once
        for call in [chosen[0], *chosen]:
            begun = time.perf_counter()
            program(*call.inputs).sum().item()  # waits for the result
            seconds.append(time.perf_counter() - begun)
        del seconds[-len(chosen) - 1]
    return seconds


def _evenly(real: Tensor, most: int) -> Tensor:
    """Keep `most` positions of each row of `real`, bool [rows, length], evenly spaced."""
    kept = torch.zeros_like(real)
    for row, here in zip(kept, real, strict=True):
        at = here.nonzero().flatten()
        if len(at):
            row[at[torch.linspace(len(at) - 1, 0, min(most, len(at))).round().long()]] = True
    return kept


def _inputs(split: Split, model: Any, length: int, batch: int, calls: int) -> Iterator[tuple[list[Tensor], int]]:
    """Yield a split's first rows as (the model's inputs, new rows), cut or padded to [batch, length]."""
    packed = length if length in split.rows else max(split.rows)
    there = split.rows[packed]
    for start in range(0, min(calls * batch, there), batch):
        # the last batch is filled up with rows that came before
        rows = np.arange(start, start + batch) % there
        whole = plain_inputs(split.read(BatchAddress(packed, rows)), model).values()
        padded = [torch.nn.functional.pad(column, (0, max(length - packed, 0))) for column in whole]
        yield [column[:, :length].contiguous() for column in padded], min(batch, there - start)
