"""A model as portable StableHLO on disk, written and read without pickle.

    export.json             arguments of every graph in order, with shapes and dtypes
    <length>.mlirbc         one graph per static [batch, length], MLIR bytecode without source locations
    model*.safetensors      the consolidated weights, byte for byte, so that a content store holds them once
    constants.safetensors   what the graphs need and the weights do not hold: rotary frequencies, position ids

Any PJRT device runs it. Equal models give equal bytes, from whatever folder (nothing of paths, times or processes is in
the bytecode; tested). Costs: lowering takes about a second for a small model; the runtime compiles anew on *every* call
(there is no handle to a compiled graph in torch_xla 2.9), so run few batches. Tied weights are stored once.

Fails with `ModelError` for a folder that is not such an export, and for a shape that was not exported.
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
"""Of a process that lowers, or runs a few batches to check them: compiling 3 to 6 times faster (measured on two cores, a
2-layer BERT from 1.2 to 0.4 s, a 5-layer Llama from 2.2 to 0.3 s) is worth more there than a faster program."""

_WEIGHTS = "model*.safetensors"
_CONSTANTS = "constants.safetensors"


class Spec(NamedTuple):
    """name: of an input, an output or a stored tensor; shape; dtype: torch's name, such as `int64`."""

    name: str
    shape: list[int]
    dtype: str


@dataclass(frozen=True)
class Graph:
    """One static graph. arguments: what the program takes, in its order: (`input` or `tensor`, spec); tensors: by name,
    all the model's parameters and buffers and the graph's own constants."""

    bytecode: bytes
    arguments: list[tuple[str, Spec]]
    outputs: list[Spec]
    tensors: dict[str, torch.Tensor]


def lower(model: torch.nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Graph:
    """A Hugging Face model with a head -> its graph, for inputs of these shapes (int64 [batch, length]), to logits."""
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
    """Write `graphs` (by length) below `folder`, with the weights of the Hugging Face folder `weights`.

    about: merged into export.json (task, labels, batch).
    """
    from safetensors.torch import save

    for file in sorted(weights.glob(_WEIGHTS)):
        shutil.copyfile(file, folder / file.name)
    shelf = _Shelf(folder)
    functions = {}
    for length, graph in sorted(graphs.items()):
        (folder / f"{length}.mlirbc").write_bytes(graph.bytecode)
        functions[str(length)] = {
            "bytecode": f"{length}.mlirbc",
            "stablehlo": producer(graph.bytecode),
            "arguments": [_described(kind, spec, graph, length, shelf) for kind, spec in graph.arguments],
            "outputs": [spec._asdict() for spec in graph.outputs],
        }
    if shelf.constants:
        (folder / _CONSTANTS).write_bytes(save(shelf.constants))
    document = {"format": FORMAT, "version": VERSION, "inputs": list(INPUTS), "functions": functions, **about}
    write_json(folder / "export.json", document)


class StableHlo:
    """An export, read back. lengths: ascending; batch: rows of each call."""

    def __init__(self, folder: Path, document: Meta) -> None:
        self.folder = folder
        self.document = document
        self.batch = int(document["batch"])
        self.lengths = sorted(int(length) for length in document["functions"])
        self._shelf = _Shelf(folder)

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """int64 [batch, length] both -> logits on the CPU. Compiles each time. ModelError for another shape."""
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
        """The graph as torch_xla's own runnable, rebuilt from JSON, safetensors and bytecode."""
        from torch_xla.stablehlo import StableHLOFunc, StableHLOGraphModule, StableHLOModelBundle

        arguments = function["arguments"]
        tensors = {item["name"]: self._shelf.tensor(item["name"]) for item in arguments if item["kind"] == "tensor"}
        bytecode = (self.folder / function["bytecode"]).read_bytes()
        runnable = StableHLOFunc(_function_meta(function, self.document["inputs"]), bytecode, None)
        return StableHLOGraphModule(StableHLOModelBundle(tensors, [], [runnable]))


def load_stablehlo(folder: Path) -> StableHlo:
    """Open an export; the weights are read when first needed. ModelError when the folder holds none of ours."""
    file = folder / "export.json"
    document = read_json(file) if file.is_file() else {}
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise ModelError(
            f"{folder} holds no StableHLO export that this version reads (format {FORMAT} {VERSION})",
            "export again with export.target=stablehlo",
        )
    return StableHlo(folder, document)


def producer(bytecode: bytes) -> str:
    """What wrote MLIR bytecode, by its header: `StableHLO_v1.13.0`. Runtimes read those of their own age or older."""
    # "ML\xefR", one byte of bytecode version, then the producer, zero-terminated
    return bytecode[5 : bytecode.index(0, 5)].decode(errors="replace") if bytecode.startswith(b"ML\xefR") else "unknown"


class _Shelf:
    """The tensors of a folder by name: those of the weights and, while writing, constants put beside them."""

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

    def place(self, names: list[str], tensor: torch.Tensor, length: int) -> str:
        """The name under which `tensor` is kept; it is put among the constants if no file has it under `names`."""
        for name in [*names, f"{names[0]}.{length}"]:
            if (name in self._stored or name in self.constants) and _same(self.tensor(name), tensor):
                return name
        free = names[0] if names[0] not in self._stored and names[0] not in self.constants else f"{names[0]}.{length}"
        self.constants[free] = tensor.detach().clone().contiguous()
        return free


def _same(stored: torch.Tensor, tensor: torch.Tensor) -> bool:
    import torch

    return stored.dtype == tensor.dtype and stored.shape == tensor.shape and torch.equal(stored, tensor)


def _described(kind: str, spec: Spec, graph: Graph, length: int, shelf: _Shelf) -> Meta:
    """An argument for export.json. A tied tensor has several names; the weights hold it under one of them."""
    if kind == "tensor":
        tensor = graph.tensors[spec.name]
        tied = [name for name, other in sorted(graph.tensors.items()) if _is_tied(tensor, other)]
        names = [spec.name, *(name for name in tied if name != spec.name)]
        spec = spec._replace(name=shelf.place(names, tensor, length))
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
    """A Hugging Face model with a head as a module from (input_ids, attention_mask) to logits."""
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
            return logits

    return Logits()
