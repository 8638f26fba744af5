"""A model as StableHLO files, written and read without pickle.

    export.json             arguments of every graph in order, with shapes and dtypes
    <length>.mlirbc         one graph per static [batch, length], MLIR bytecode without source locations
    model*.safetensors      the consolidated weights, byte for byte, so that a content store holds them once
    constants.safetensors   the graphs' constants that are not among the weights, such as rotary frequencies, position ids

Any PJRT device runs the export. Equal models give equal bytes: the bytecode has no paths, times or process ids. Tied weights are
stored once. Lowering takes about a second for a small model. torch_xla 2.9 compiles a graph again at *every* call, so
call few times.

Raises `ModelError` for a folder that is no such export and for a shape that was not exported.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.artifact import Meta
from tasks.errors import ModelError
from tasks.stage import read_json, write_json

if TYPE_CHECKING:
    import torch

FORMAT = "trnflow-stablehlo"
VERSION = 1
INPUTS = ("input_ids", "attention_mask")

ENVIRON = {
    "PJRT_DEVICE": "CPU",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
}
"""The environment variables of a process that lowers a model or runs a few batches: XLA compiles without optimization, 3 to 6
times faster (on two cores a 2-layer BERT in 0.4 s instead of 1.2, a 5-layer Llama in 0.3 s instead of 2.2)."""

_WEIGHTS = "model*.safetensors"
_CONSTANTS = "constants.safetensors"


class Spec(NamedTuple):
    """The name, shape and dtype of a graph's input or output or of a stored tensor. dtype: as torch names it, such as
    `int64`."""

    name: str
    shape: list[int]
    dtype: str


@dataclass(frozen=True)
class Graph:
    """A model lowered to StableHLO for one static shape.

    Attributes:
        bytecode: the graph as MLIR bytecode.
        arguments: (`input` or `tensor`, spec) of each argument in order; a `tensor` is a weight or constant that is passed
            in.
        outputs: the results in order.
        tensors: {name: tensor} of all parameters, buffers and constants of the model.
    """

    bytecode: bytes
    arguments: list[tuple[str, Spec]]
    outputs: list[Spec]
    tensors: dict[str, torch.Tensor]


def lower(model: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Graph:
    """Lower a Hugging Face model with a head to a StableHLO graph that maps (input_ids, attention_mask) to logits.

    input_ids, attention_mask: int64 [batch, length]; only their shapes matter, which become the graph's static shape.
    """
    import torch
    from torch_xla.stablehlo import StableHLOExportOptions, exported_program_to_stablehlo

    with torch.no_grad():
        program = torch.export.export(logits_of(model), (input_ids, attention_mask), strict=False)
    # weights come from the program itself: on their way through torch_xla they become numpy, which has no bfloat16
    options = StableHLOExportOptions(include_human_readable_text=False, export_weights=False)
    bundle = exported_program_to_stablehlo(program, options)._bundle
    function = bundle.stablehlo_funcs[0]
    tensors = {_stored_name(name): tensor for name, tensor in {**program.constants, **program.state_dict}.items()}
    tensors |= {_constant(index): torch.from_numpy(value) for index, value in enumerate(bundle.additional_constants)}
    signature = zip(function.meta.input_locations, function.meta.input_signature, strict=True)
    return Graph(
        bytes(function.bytecode),
        [_argument(location, kind.shape, kind.dtype) for location, kind in signature],
        [Spec("logits", list(kind.shape), kind.dtype) for kind in function.meta.output_signature],
        tensors,
    )


def write_stablehlo(folder: Path, graphs: dict[int, Graph], weights: Path, about: Meta) -> None:
    """Write an exported model into `folder`: its graphs, its weights and export.json.

    Args:
        graphs: {length in tokens: the graph for rows of that length}.
        weights: the Hugging Face folder whose weight files are copied.
        about: entries for export.json, such as task, labels and batch.
    """
    from safetensors.torch import save

    for file in sorted(weights.glob(_WEIGHTS)):
        shutil.copyfile(file, folder / file.name)
    stored_tensors = _Tensors(folder)
    functions = {}
    for length, graph in sorted(graphs.items()):
        (folder / f"{length}.mlirbc").write_bytes(graph.bytecode)
        functions[str(length)] = {
            "bytecode": f"{length}.mlirbc",
            "stablehlo": producer(graph.bytecode),
            "arguments": [_described(kind, spec, graph, length, stored_tensors) for kind, spec in graph.arguments],
            "outputs": [spec._asdict() for spec in graph.outputs],
        }
    if stored_tensors.constants:
        (folder / _CONSTANTS).write_bytes(save(stored_tensors.constants))
    document = {"format": FORMAT, "version": VERSION, "inputs": list(INPUTS), "functions": functions, **about}
    write_json(folder / "export.json", document)


class StableHlo:
    """An exported model that was read from a folder; call it like a function.

    batch: the number of rows of each call; lengths: the row lengths, in tokens, that it has graphs for, ascending.
    """

    def __init__(self, folder: Path, document: Meta) -> None:
        self.folder = folder
        self.document = document
        self.batch = int(document["batch"])
        self.lengths = sorted(int(length) for length in document["functions"])
        self._stored_tensors = _Tensors(folder)

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the logits for (input_ids, attention_mask), int64 [batch, length], on the CPU. Compiles the graph at each
        call. ModelError when there is no graph of that shape."""
        rows, length = input_ids.shape
        if rows != self.batch or length not in self.lengths:
            raise ModelError(
                f"the exported model takes {self.batch} rows of {self.lengths} tokens, not {rows} of {length}",
                "export again with export.batch and export.length set to what is needed",
            )
        result = self._module(self.document["functions"][str(length)])(input_ids, attention_mask)
        logits: torch.Tensor = (result[0] if isinstance(result, list | tuple) else result).cpu()
        return logits

    def _module(self, function: Meta) -> Any:
        """Build torch_xla's module of a graph from JSON, safetensors and bytecode."""
        from torch_xla.stablehlo import StableHLOFunc, StableHLOGraphModule, StableHLOModelBundle

        arguments = function["arguments"]
        tensors = {
            item["name"]: self._stored_tensors.tensor(item["name"]) for item in arguments if item["kind"] == "tensor"
        }
        bytecode = (self.folder / function["bytecode"]).read_bytes()
        runnable = StableHLOFunc(_function_meta(function, self.document["inputs"]), bytecode, None)
        return StableHLOGraphModule(StableHLOModelBundle(tensors, [], [runnable]))


def load_stablehlo(folder: Path) -> StableHlo:
    """Open an exported model. Its weights are read at the first call. ModelError when `folder` holds no export of this
    format."""
    file = folder / "export.json"
    document = read_json(file) if file.is_file() else {}
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise ModelError(
            f"{folder} holds no StableHLO export that this version reads (format {FORMAT} {VERSION})",
            "export again with export.target=stablehlo",
        )
    return StableHlo(folder, document)


def producer(bytecode: bytes) -> str:
    """Return the name and version of the program that wrote MLIR bytecode, such as `StableHLO_v1.13.0`; `unknown` when the
    header has none. A runtime can read bytecode of its own version and of older ones."""
    # "ML\xefR", one byte of bytecode version, then the producer, zero-terminated
    return bytecode[5 : bytecode.index(0, 5)].decode(errors="replace") if bytecode.startswith(b"ML\xefR") else "unknown"


class _Tensors:
    """The tensors of an export by name: the weights on disk and, while writing, the constants."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self.constants: dict[str, torch.Tensor] = {}
        files = [*sorted(folder.glob(_WEIGHTS)), *folder.glob(_CONSTANTS)]
        handles: list[Any] = [safe_open(file, framework="pt") for file in files]
        self._stored = {name: handle for handle in handles for name in handle.keys()}  # noqa: SIM118 - no mapping

    def tensor(self, name: str) -> torch.Tensor:
        if name in self.constants:
            return self.constants[name]
        if name not in self._stored:
            raise ModelError(f"the export names the tensor {name}, which none of its files holds", "export again")
        stored: torch.Tensor = self._stored[name].get_tensor(name)
        return stored

    def name_of(self, names: list[str], tensor: torch.Tensor, length: int) -> str:
        """Return the name of an equal stored tensor among `names`; store the tensor as a constant if there is none."""
        for name in [*names, f"{names[0]}.{length}"]:
            if (name in self._stored or name in self.constants) and _same(self.tensor(name), tensor):
                return name
        free = names[0] if names[0] not in self._stored and names[0] not in self.constants else f"{names[0]}.{length}"
        self.constants[free] = tensor.detach().clone().contiguous()
        return free


def _same(stored: torch.Tensor, tensor: torch.Tensor) -> bool:
    import torch

    return stored.dtype == tensor.dtype and stored.shape == tensor.shape and torch.equal(stored, tensor)


def _described(kind: str, spec: Spec, graph: Graph, length: int, stored_tensors: _Tensors) -> Meta:
    """The entry of an argument in export.json. A tied tensor has several names, and the weights have it under one of them."""
    if kind == "tensor":
        tensor = graph.tensors[spec.name]
        tied = [name for name, other in sorted(graph.tensors.items()) if _is_tied(tensor, other)]
        names = [spec.name, *(name for name in tied if name != spec.name)]
        spec = spec._replace(name=stored_tensors.name_of(names, tensor, length))
    return {"kind": kind, **spec._asdict()}


def _is_tied(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.dtype == other.dtype


def _argument(location: Any, shape: list[int], dtype: str) -> tuple[str, Spec]:
    if location.type_.value == "input_arg":
        return "input", Spec(INPUTS[location.position], list(shape), dtype)
    name = _constant(location.position) if location.type_.value == "constant" else _stored_name(location.name)
    return "tensor", Spec(name, list(shape), dtype)


def _function_meta(function: Meta, inputs: list[str]) -> Any:
    from torch_xla.stablehlo import InputLocation, StableHLOFunctionMeta, VariableSignature

    arguments = function["arguments"]
    return StableHLOFunctionMeta(
        name="forward",
        stablehlo_version=function["stablehlo"],
        input_signature=[VariableSignature(item["shape"], item["dtype"]) for item in arguments],
        output_signature=[VariableSignature(item["shape"], item["dtype"]) for item in function["outputs"]],
        input_locations=[
            InputLocation.parameter(item["name"])
            if item["kind"] == "tensor"
            else InputLocation.input_arg(inputs.index(item["name"]))
            for item in arguments
        ],
        unused_inputs=[],
    )


def _constant(index: int) -> str:
    return f"constant.{index}"


def _stored_name(name: str) -> str:
    return name.removeprefix("model.")


def logits_of(model: torch.nn.Module) -> torch.nn.Module:
    """Wrap a Hugging Face model with a head as a module that takes (input_ids, attention_mask) and returns only the
    logits."""
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
            return logits

    return Logits()
