"""Lower a PyTorch model to a StableHLO graph of one static shape, without a copy of its weights.

Takes about a second for a small model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._decomp import get_decompositions
from torch.export import ExportedProgram

from trnflow.tasks.errors import ModelError
from trnflow.tasks.evaluation.models import INPUTS

ERF_LIMIT = 3.832506856900711
"""Beyond this, erf is 1 in single precision."""
ERF_ABOVE = (
    0.00022905065861350646,
    0.0034082910107109506,
    0.050955695062380861,
    0.18520832239976145,
    1.128379143519084,
)
ERF_BELOW = (
    -1.1791602954361697e-7,
    0.000023547966471313185,
    0.0010179625278914885,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067538,
    1.0,
)
"""Coefficients of erf(x) = x p(x²) / q(x²), highest power first, as in XLA's expansion; largest error 4e-7."""


class Spec(NamedTuple):
    """Name, shape and dtype (as torch names it) of an input, output or stored tensor."""

    name: str
    shape: list[int]
    dtype: str


@dataclass(frozen=True)
class Graph:
    """A model lowered for one static shape.

    Attributes:
        bytecode: MLIR.
        arguments: ("input" or "tensor", spec) of each; weights and constants are passed in too.
        outputs: The logits.
        tensors: {name: tensor} of parameters, buffers and constants.
    """

    bytecode: bytes
    arguments: list[tuple[str, Spec]]
    outputs: list[Spec]
    tensors: dict[str, torch.Tensor]


def lower(model: torch.nn.Module, *inputs: torch.Tensor) -> Graph:
    """Lower a Hugging Face model with a head; the inputs, int64 [batch, length], give the static shape.

    Raises ModelError when an operator has no StableHLO form, or only a custom call.
    """
    try:
        with torch.no_grad(), experts_of_one_shape(model):
            program = torch.export.export(logits_of(model), inputs, strict=False)
            program = program.run_decompositions(_decompositions())
            if missing := _not_lowered(program):
                raise _cannot(model, f"XLA has no form of {', '.join(missing)}")
            graph = _lowered(program)
    except RuntimeError as error:
        raise _cannot(model, str(error).strip().partition("\n")[0]) from error
    # other runtimes, such as IREE, could not compile a custom call
    if custom := custom_calls(graph.bytecode):
        raise _cannot(model, f"its graph has custom calls, which only XLA could run: {', '.join(custom)}")
    return graph


@contextmanager
def experts_of_one_shape(model: Any) -> Iterator[None]:
    """Let a mixture of experts compute by its own weights for each token: the default groups tokens by expert, in shapes
    that depend on them, of which XLA and ONNX have no form."""
    can = getattr(model, "_can_set_experts_implementation", lambda: False)()
    before = model.get_experts_implementation() if can else None
    if can:
        model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        if can:
            model.set_experts_implementation(before)


def custom_calls(bytecode: bytes) -> list[str]:
    """Return the targets of a graph's custom calls, such as `mhlo.erf`."""
    if b"custom_call_v" not in bytecode:  # bytecode names only the operations that the graph has
        return []
    targets = {name.decode() for name in re.findall(rb"(?:mhlo|chlo|xla|stablehlo)\.[a-z]\w*", bytecode)}
    return sorted(targets) or ["unknown"]


def logits_of(model: torch.nn.Module) -> torch.nn.Module:
    """Wrap a model as a module from `INPUTS` to its logits alone."""

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
        ) -> torch.Tensor:
            types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **types).logits
            return logits

    return Logits()


def erf(value: torch.Tensor) -> torch.Tensor:
    """Return erf of a tensor by basic operations, computed in float32."""
    x = value.to(torch.float32).clamp(-ERF_LIMIT, ERF_LIMIT)
    result = x * _polynomial(x * x, ERF_ABOVE) / _polynomial(x * x, ERF_BELOW)
    return result.clamp(-1.0, 1.0).to(value.dtype)


def _polynomial(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    total = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        total = total * x + coefficient
    return total


def _decompositions() -> Any:
    """Return torch_xla's table of decompositions with GELU and erf."""
    aten = torch.ops.aten
    table: dict[Any, Any] = dict(torch.export.default_decompositions())
    table.update(get_decompositions([aten.gelu, aten.grid_sampler_2d]))
    # torch_xla lowers erf to `custom_call @mhlo.erf`, which only XLA knows
    table[aten.erf.default] = erf
    table[aten._safe_softmax.default] = torch.softmax
    return table


def _not_lowered(program: ExportedProgram) -> list[str]:
    """Return the operators that torch_xla would run on the CPU: on a placeholder that ends the process."""
    import torch_xla  # noqa: F401 - it registers its kernels

    kernels = ("XLA", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    operators = {node.target for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    names = [str(operator._name) for operator in operators]
    return sorted(name for name in names if not any(has_kernel(name, key) for key in kernels))


def _lowered(program: ExportedProgram) -> Graph:
    """Trace the program with lazy tensors and read the graph; nothing runs."""
    import torch_xla
    from torch_xla.core.xla_model import get_stablehlo_bytecode
    from torch_xla.stablehlo import XLAExportInterpreter

    stored = {**program.constants, **program.state_dict}
    names, traced = _placeholders(program)
    device = torch_xla.device()
    torch_xla.sync()  # nothing of an earlier trace may be part of this one
    torch_xla._XLAC._set_xla_all_numbers_special_scalars(True)  # numbers become part of the graph, not arguments
    try:
        with torch.no_grad():
            results = XLAExportInterpreter(program.graph_module, device, set(), None).run(
                *traced, enable_io_processing=False
            )[len(program.graph_signature.buffers_to_mutate) :]
        ids, values = torch_xla._XLAC._get_tensors_xla_device_data_node(results)
        bytecode = bytes(get_stablehlo_bytecode(results))
        known = {torch_xla._XLAC._xla_get_tensor_id(tensor): name for tensor, name in zip(traced, names, strict=True)}
        unknown = [value for identity, value in zip(ids, values, strict=True) if identity not in known]
        constants = {f"constant.{index}": value.detach().cpu() for index, value in enumerate(unknown)}
        unnamed = iter(constants)
        arguments = [
            _argument(known.get(identity) or next(unnamed), value) for identity, value in zip(ids, values, strict=True)
        ]
        outputs = [Spec("logits", list(result.shape), _dtype(result)) for result in results]
    finally:
        torch_xla._XLAC._set_xla_all_numbers_special_scalars(False)
        torch_xla._XLAC._clear_pending_irs(str(device))
    tensors = {stored_name(name): tensor for name, tensor in stored.items()}
    return Graph(bytecode, arguments, outputs, tensors | constants)


def _placeholders(program: ExportedProgram) -> tuple[list[str], list[torch.Tensor]]:
    """Return the names of the program's arguments, and tensors of their shapes without bytes."""
    from torch_xla.core.xla_builder import create_placeholder_tensor

    names, tensors = [], []
    inputs = iter(INPUTS)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, given in zip(nodes, program.graph_signature.input_specs, strict=True):
        names.append(next(inputs) if given.target is None else stored_name(given.target))
        # torch_xla's own exported_program_to_stablehlo copies every weight to the XLA device first
        tensors.append(create_placeholder_tensor(node.meta["val"].shape, node.meta["val"].dtype))
    return names, tensors


def _argument(name: str, value: torch.Tensor) -> tuple[str, Spec]:
    return "input" if name in INPUTS else "tensor", Spec(name, list(value.shape), _dtype(value))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def stored_name(name: str) -> str:
    """Return a tensor's name in the weight files."""
    # the module of `logits_of` adds the prefix
    return name.removeprefix("model.")


def _cannot(model: torch.nn.Module, why: str) -> ModelError:
    return ModelError(
        f"{type(model).__name__} can't be lowered to StableHLO: {why}",
        "stop before the export with --until consolidate, or report the model type",
    )
