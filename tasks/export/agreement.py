"""Compare an exported model with the same model in eager PyTorch.

The comparison has two steps, so that the two copies of the weights need not be in memory at once: `eager_calls` runs
the PyTorch model, then `compare` runs the exported one. For a language model with long rows and a large vocabulary,
only some positions of each row are compared, so that the logits kept between the steps take at most 256 MiB, or those
of one position of each row if they take more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.evaluation.forward import plain_inputs
from trnflow.tasks.export.stablehlo import StableHlo, load_stablehlo
from trnflow.tasks.training.batches.sampler import BatchAddress, Split

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 256
"""The rows that are compared unless the recipe says otherwise, where that takes at most SECONDS_COMPILED."""

SECONDS_COMPILED = 600
"""The most seconds of comparison, by estimate, where a graph is compiled once."""

SECONDS = 30
"""The most seconds of comparison, by estimate, where a graph is compiled again at every call."""

COMPILING, COMPILING_WEIGHT, WEIGHT_AND_TOKEN = 0.3, 5e-9, 5e-11
"""Estimated seconds on two cores: to compile a graph, to compile it for each parameter, and to run it for each parameter and
token. Measured: 0.25 s a call for 1 M parameters and 64 tokens, 0.5 for 23 M and 128, 3.8 for 109 M and 512."""

HELD = 1 << 28
"""The most bytes of logits that are kept of all calls, unless one position of each row takes more."""

TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
"""The largest accepted difference of logits by the dtype of the weights, times the largest logit if that is above one."""


class ExampleCall(NamedTuple):
    """The inputs of one call of a model, and the logits that eager PyTorch computed for them.

    Attributes:
        input_ids, attention_mask: int64 [batch, length].
        compared: bool: for a classifier [batch], True for each row that is compared; for a language model
            [batch, length], True for each position that is compared.
        logits: PyTorch's logits of the compared rows, float [compared rows, labels]; for a language model those of the
            compared positions, float [compared positions, vocabulary].
    """

    input_ids: Tensor
    attention_mask: Tensor
    compared: Tensor
    logits: Tensor

    @property
    def rows(self) -> int:
        """The number of rows that are compared; for a language model, of rows with at least one compared position."""
        return int((self.compared.any(-1) if self.compared.ndim == 2 else self.compared).sum())


def calls_by_default(parameters: int, lengths: Sequence[int], batch: int, *, compiles_once: bool) -> int:
    """Return how many calls of an exported model to compare with PyTorch, for each row length: enough calls to compare
    256 rows over all lengths. If by estimate they would take more than 600 seconds (30 seconds without
    `compiles_once`), return as many calls as fit into that time, at least one.

    parameters: the number of the model's parameters; lengths: the row lengths in tokens; batch: the rows of a call;
    compiles_once: whether a graph is compiled at its first call only, and not at every call. The estimate reads no
    clock, so that the same model is always compared on the same number of rows."""
    wanted = math.ceil(ROWS / (batch * len(lengths)))
    running = sum(parameters * WEIGHT_AND_TOKEN * batch * length for length in lengths)
    if compiles_once:
        return max(min(wanted, int(SECONDS_COMPILED / running)), 1)
    compiling = (COMPILING + parameters * COMPILING_WEIGHT) * len(lengths)
    return max(min(wanted, int(SECONDS / (compiling + running))), 1)


def positions_of_a_row(rows: int, vocabulary: int) -> int:
    """Return how many positions of each row of a language model to compare, so that the logits of `rows` rows (all rows
    that are compared) take at most 256 MiB in float32; at least 1. vocabulary: the number of logits a position."""
    return max(HELD // (4 * vocabulary * rows), 1)


def eager_call(model: Any, input_ids: Tensor, attention_mask: Tensor, rows: int, positions: int) -> ExampleCall:
    """Call the PyTorch model with one batch. Return the inputs, and the logits that will be compared with those of the
    exported model.

    input_ids, attention_mask: int64 [batch, length]; rows: how many rows of the batch to compare, from the first on;
    positions: for a language model, how many positions of each row to compare, spread evenly over the positions that
    are not padding."""
    import torch

    with torch.inference_mode():
        logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
        compared = torch.arange(len(input_ids)) < rows
        if logits.ndim == 3:
            compared = _evenly(attention_mask.bool() & compared[:, None], positions)
        return ExampleCall(input_ids, attention_mask, compared, logits[compared])


def eager_calls(
    model: Any, split: Split, exported: Input, rows: int | None, report: Callable[[int, int], None]
) -> list[ExampleCall]:
    """Call the PyTorch model with rows of a split, in the shapes for which the export has graphs. Return, for each
    call, the inputs and the logits to compare.

    Args:
        split: the rows of tokens of one split, such as the test split, read from the first on.
        exported: the artifact of the stage export_neuron.
        rows: about how many rows to compare, divided among the lengths: at least one call of each length, and each
            row of the split at most once for each length. None: 256, or fewer where that would take too long by
            estimate (`calls_by_default`); 0: none.
        report: called after each call with the number of calls done and the number of all calls.
    """
    batch, lengths = exported.meta["batch"], exported.meta["lengths"]
    if rows is None:
        once = load_stablehlo(exported.path).compiles_once
        calls = calls_by_default(model.num_parameters(), lengths, batch, compiles_once=once)
    else:
        calls = math.ceil(rows / (batch * len(lengths)))
    inputs = [one for length in lengths for one in _inputs(split, length, batch, calls)]
    positions = positions_of_a_row(max(len(inputs), 1) * batch, model.config.get_text_config().vocab_size)
    found = []
    for done, one in enumerate(inputs, 1):
        found.append(eager_call(model, *one, positions))
        report(done, len(inputs))
    return found


def compare(exported: Input, calls: list[ExampleCall], report: Callable[[int, int], None]) -> tuple[Meta, Meta]:
    """Call the exported model with the inputs of `calls`, and compare its logits with PyTorch's, which `calls` hold.
    Return (counts, metrics).

    counts: {"calls": the number of calls, "batch": the rows of one call, "rows": the number of compared rows,
    "compared": the number of compared rows of a classifier, or of compared tokens of a language model}. Padding is not
    compared. metrics: {"export_max_difference": the largest absolute difference between the two models' logits,
    "export_agreement": the share of compared rows or tokens for which both models predict the same class (or token)}.

    exported: the artifact of the stage export_neuron; report: called after each call with the number of calls done and
    the number of all calls. Raise ModelError when a difference of logits is not a finite number."""
    program = load_stablehlo(exported.path)
    worst, agreed, compared = 0.0, 0, 0
    for done, call in enumerate(calls, 1):
        apart, same = compared_logits(program, call)
        if not math.isfinite(apart):
            raise ModelError("the exported model's logits are not finite", "export again; check the weights' dtype")
        worst, agreed, compared = max(worst, apart), agreed + same, compared + len(call.logits)
        report(done, len(calls))
    metrics = {"export_max_difference": worst, "export_agreement": agreed / compared}
    rows = sum(call.rows for call in calls)
    return {"calls": len(calls), "batch": exported.meta["batch"], "rows": rows, "compared": compared}, metrics


def compared_logits(program: StableHlo, call: ExampleCall) -> tuple[float, int]:
    """Call the exported model `program` with the inputs of `call`, and compare its logits with PyTorch's. Return (the
    largest absolute difference between the two models' logits, NaN if a logit is NaN; the number of compared rows or
    tokens for which both models predict the same class or token)."""
    ran = program(call.input_ids, call.attention_mask)[call.compared]
    apart = float((ran.float() - call.logits.float()).abs().max())
    return apart, int((ran.argmax(-1) == call.logits.argmax(-1)).sum())


def _evenly(real: Tensor, most: int) -> Tensor:
    """Of the positions that are true in each row, keep `most`, evenly spaced, among them the first and the last.
    real: bool [rows, length]."""
    import torch

    kept = torch.zeros_like(real)
    for row, here in zip(kept, real, strict=True):
        at = here.nonzero().flatten()
        if len(at):
            row[at[torch.linspace(len(at) - 1, 0, min(most, len(at))).round().long()]] = True
    return kept


def _inputs(split: Split, length: int, batch: int, calls: int) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield the first rows of a split as (input_ids, attention_mask, rows), of shape [batch, length]: rows packed to that
    length, else rows of the greatest length, cut or padded. rows: how many of them are new; the last batch is filled up with
    rows that came before."""
    import numpy as np
    import torch

    packed = length if length in split.rows else max(split.rows)
    there = split.rows[packed]
    for start in range(0, min(calls * batch, there), batch):
        rows = np.arange(start, start + batch) % there
        whole = plain_inputs(split.read(BatchAddress(packed, rows)))
        input_ids, attention_mask = (torch.nn.functional.pad(item, (0, max(length - packed, 0))) for item in whole)
        new = min(batch, there - start)
        yield input_ids[:, :length].contiguous(), attention_mask[:, :length].contiguous(), new
