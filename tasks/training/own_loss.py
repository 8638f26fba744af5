"""The user's own loss (`train.loss`): proved on random targets in processes of its own, then called in training's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.limited_process import PLAIN, call_own
from trnflow.tasks.data.proof import OTHER, go_elsewhere
from trnflow.tasks.errors import CodeError, DataError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.own_functions import function_of, own_errors, shown_file
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.batches.sampler import IGNORED
from trnflow.tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from torch import Tensor

    from trnflow.tasks.metadata import PackedMeta

HOOK = "train.loss"
FIX = "correct it, or leave train.loss out"
CLASSES = 7
"""Classes of the random logits of a language model."""

CLOSE = 1e-4
"""By how much of its size a sum of 8 rows may differ from that of its halves, in float32."""


def imported(config: TrainConfig, code: Source, packed: PackedMeta, out: Workdir, rank: int = 0) -> TrainConfig:
    """Return the config with the function that `train.loss` names, proved once for each code and task.

    Raises DataError with the user's line, CodeError.
    """
    if rank == 0:
        _prove(code, packed, weighted=config.class_weights is not None, out=out)
    function, kind = function_of(code, HOOK), kind_of(packed["task"])

    def loss_sum(logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> Any:
        with own_errors(code, "in training", FIX):
            return _call(function, kind, logits, targets, weights)

    return config.with_loss_function(loss_sum)


def _call(function: Callable[..., Any], kind: Kind, logits: Tensor, targets: Tensor, weights: Tensor | None) -> Any:
    if kind.target_type == "float32":
        return function(logits, targets, weights)
    return function(logits.flatten(0, -2), targets.flatten().long(), weights)


def _prove(code: Source, packed: PackedMeta, *, weighted: bool, out: Workdir) -> None:
    """Compute losses and gradients twice, the second time in another process, hash seed, folder, zone and on another day."""
    asked = {"task": packed["task"], "outputs": len(packed["labels"] or ()) or CLASSES, "weighted": weighted}
    mark = Path(code.location["proofs"], digest_of({**code.identity, **asked}).removeprefix("sha256:"))
    if mark.exists():
        return
    away, given = out.scratch / "elsewhere", {**asked, "hook": HOOK, "code": vars(code)}
    away.mkdir(parents=True, exist_ok=True)
    function = f"{__name__}:checked"
    first = call_own(function, {**given, "elsewhere": False}, PLAIN)
    if first != call_own(function, {**given, "elsewhere": True}, OTHER, away):
        raise CodeError(
            f"{code.location['functions'][HOOK]} gives two losses of the same logits, the second in another process, folder, "
            "zone and on another day",
            "let it depend on logits, targets and weights alone: on no date, random number, or state kept between calls",
        )
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def checked(arguments: Meta, limit: Any) -> Meta:
    """Return {"loss", "gradient"} of 8 random rows. Raises DataError for what is no sum over targets."""
    import torch

    if arguments["elsewhere"]:
        go_elsewhere()
    limit("8 random rows")
    # sums of several threads may differ in their last bits
    torch.set_num_threads(1)
    code, kind, outputs = Source(**arguments["code"]), kind_of(arguments["task"]), arguments["outputs"]
    function, random = function_of(code, HOOK), torch.Generator().manual_seed(0)
    logits = torch.randn(10, outputs, generator=random).requires_grad_()
    weights = torch.rand(outputs, generator=random) + 0.5 if arguments["weighted"] else None
    targets = _targets(kind, outputs, random)
    body = function.__code__
    at = f"{shown_file(code, body.co_filename)}:{body.co_firstlineno} in {body.co_name}"

    def loss(rows: slice) -> Tensor:
        with own_errors(code, f"on random logits [{len(logits[rows])}, {outputs}]", FIX):
            return _scalar(_call(function, kind, logits[rows], targets[rows], weights), at)

    whole, halves, masked = loss(slice(8)), (loss(slice(4)), loss(slice(4, 8))), loss(slice(10))
    if not _are_close(whole, sum(halves)):
        (first, second), both = (half.item() for half in halves), f"of 8 rows it returns {whole.item():.6g}"
        raise DataError(
            f"{at}: it is no sum over targets: {both}, of 4 and 4 of them {first:.6g} and {second:.6g}",
            "return a sum (reduction='sum'), not a mean, and let no row's loss depend on another row: batches are divided",
        )
    if not _are_close(whole, masked):
        raise DataError(
            f"{at}: rows without a target change the loss from {whole.item():.6g} to {masked.item():.6g}",
            "leave out targets that are NaN"
            if kind.target_type == "float32"
            else f"leave out targets of {IGNORED} (ignore_index)",
        )
    # equal losses may hide other gradients, as of a dropout in the backward pass
    (gradient,) = torch.autograd.grad(whole, logits)
    if not gradient.isfinite().all():
        raise DataError(f"{at}: its gradient is not finite on random logits", "let it give finite gradients")
    return {"loss": whole.item(), "gradient": gradient.tolist()}


def _targets(kind: Kind, outputs: int, random: Any) -> Tensor:
    """Return targets of 8 rows, and of 2 more that have none."""
    import torch

    if kind.target_type == "float32":
        bits = torch.randint(0, 2, (10, outputs), generator=random).float()
        bits[8:] = float("nan")
        return bits
    classes = torch.randint(0, outputs, (10,), generator=random)
    classes[8:] = IGNORED
    return classes


def _scalar(value: Any, at: str) -> Tensor:
    import torch

    if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
        kind = f"a tensor {[*value.shape]}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise DataError(f"{at}: it returned {kind}, no scalar of floats", "return the sum of the losses of all targets")
    if not value.requires_grad:
        raise DataError(
            f"{at}: its loss has no gradient", "compute it of the logits by torch's functions, without detach"
        )
    if not value.isfinite():
        raise DataError(f"{at}: its loss is {value.item()} on random logits", "return a finite loss")
    return value


def _are_close(first: Any, second: Any) -> bool:
    return bool(abs(first - second) <= CLOSE * max(abs(first.item()), 1.0))
