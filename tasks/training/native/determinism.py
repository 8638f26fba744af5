"""Deterministic kernels for engine native: a resumed training promises the bits of an uninterrupted one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from trnflow.tasks.errors import CompileError, ModelError
from trnflow.tasks.training.config import TrainConfig

REFUSED = re.compile(r"(\S+) does not have a deterministic implementation")  # PyTorch's text
EXPLAINED = re.compile(r"^ *Explanation: (.+)$", re.MULTILINE)
FASTEST = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
COMPILERS = ("torch._dynamo", "torch._inductor")


def choose_kernels(config: TrainConfig) -> None:
    """Set this process's threads and the precision of fp32 products, and allow only deterministic kernels; any with
    `train.deterministic=false`."""
    torch.set_num_threads(config.resolved_threads)
    # flush denormals to zero: moments of unused embedding rows decay to denormal numbers, which are slow
    torch.set_flush_denormal(True)

    if config.device == "cuda":
        # TF32 where narrow models compute in fp32 (attention without a fused kernel); float32 keeps all its digits
        narrow = config.dtype != "float32"
        torch.set_float32_matmul_precision("high" if narrow else "highest")
        torch.backends.cudnn.allow_tf32 = narrow
        # attention by cuDNN is the fastest, but not deterministic, and varlen_attn chooses it all the same
        torch.backends.cuda.enable_cudnn_sdp(not config.deterministic)
        sdpa_kernel([*FASTEST[config.deterministic :]], set_priority=True).__enter__()

    # not warn_only: some operators (memory-efficient attention) then vary from run to run
    torch.use_deterministic_algorithms(config.deterministic)
    # not needed: no code here reads uninitialised memory
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def explain_refusal(config: TrainConfig) -> Iterator[None]:
    """Turn PyTorch's refusal of an operator without a deterministic kernel into a ModelError that names the operator,
    and torch.compile's failure into a CompileError that names the line of the model."""
    try:
        yield
    except RuntimeError as error:
        refused = REFUSED.search(str(error))
        if refused is not None:
            raise ModelError(
                f"{refused[1]} has no deterministic kernel on device {config.device}, and train.deterministic is true",
                "set train.deterministic=false; then two runs, and a resumed one, may differ in the last bits",
            ) from error
        if config.compile and type(error).__module__.startswith(COMPILERS):
            raise CompileError(
                f"torch.compile failed{_place(error)}: {_why(error)}",
                "set train.compile=false: the losses are the same, up to rounding",
            ) from error
        raise


def _why(error: RuntimeError) -> str:
    """Return the line of the error that says why."""
    text = str(error).strip()
    explained = EXPLAINED.search(text)  # by PyTorch 2.15, whose first line is a heading
    return explained[1] if explained else text.partition("\n")[0]


def _place(error: RuntimeError) -> str:
    """Return the layer that failed, and the line of the model at which Dynamo stopped, where they are known."""
    stack, block = getattr(error, "real_stack", None), getattr(error, "block", None)
    line = f" at {Path(stack[-1].filename).name}:{stack[-1].lineno}, in {stack[-1].name}" if stack else ""
    return (f" in {block}" if block else "") + line
