"""Write and read a model as StableHLO files, without pickle. An export is a folder with these files:

    export.json             arguments of every graph in order, with shapes and dtypes
    <length>.mlirbc         one graph per row length in tokens, for the static shape [batch, length]: MLIR bytecode
    model*.safetensors      the consolidated weights, byte for byte, so that a content store holds them once
    constants.safetensors   the graphs' constants that are not among the weights, such as rotary frequencies, position ids

Any PJRT device runs the export. Equal models give equal bytes: the bytecode has no source locations, paths, times or
process ids. Tied weights are stored once. Weights are read one tensor at a time.

Raises `ModelError` for a folder that is no such export and for a shape that was not exported.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.export.lowering import INPUTS, Graph, Spec
from trnflow.tasks.stage import read_json, write_json
from trnflow.tasks.system.model_process import ENVIRON as ENVIRON

if TYPE_CHECKING:
    import torch

    from trnflow.tasks.export.program_runners import ProgramRunner

FORMAT = "trnflow-stablehlo"
VERSION = 1

_WEIGHTS = "model*.safetensors"
_CONSTANTS = "constants.safetensors"


def write_stablehlo(
    folder: Path,
    graphs: dict[int, Graph],
    weights: Path,
    about: Meta,
    renamed: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write an exported model into `folder`: its graphs, its weights and export.json.

    Args:
        graphs: {length in tokens: the graph for rows of that length}.
        weights: the Hugging Face folder whose weight files are copied.
        about: further entries for export.json, such as task, labels and batch (the rows of a call).
        renamed: {name in the graphs: name in the weight files} of weights whose two names differ.
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
            "arguments": [
                _described(kind, spec, graph, length, stored_tensors, renamed) for kind, spec in graph.arguments
            ],
            "outputs": [spec._asdict() for spec in graph.outputs],
        }
    if stored_tensors.constants:
        (folder / _CONSTANTS).write_bytes(save(stored_tensors.constants))
    document = {"format": FORMAT, "version": VERSION, "inputs": list(INPUTS), "functions": functions, **about}
    write_json(folder / "export.json", document)


class StableHlo:
    """An exported model (StableHLO graphs and weights) that was read from a folder. Call it like a function:
    (input_ids, attention_mask), int64 [batch, length], -> logits. It runs on the CPU.

    Attributes:
        document: the content of `export.json`.
        batch: the number of rows of each call.
        lengths: the row lengths, in tokens, for which there are graphs, ascending.
        runner: the library that compiles and runs the graphs, `jax` where it is installed, else `torch_xla`.

    optimised: whether jax compiles with XLA's optimisation whatever XLA_FLAGS says."""

    def __init__(self, folder: Path, document: Meta, *, optimised: bool = False) -> None:
        self.folder = folder
        self.document = document
        self.batch = int(document["batch"])
        self.lengths = sorted(int(length) for length in document["functions"])
        self.runner = "jax" if find_spec("jax") else "torch_xla"
        self._optimised = optimised
        self._stored_tensors = _Tensors(folder)
        self._runner: ProgramRunner | None = None

    @property
    def compiles_once(self) -> bool:
        """Whether each graph is compiled at its first call only, as jax does. torch_xla 2.9 compiles a graph again at
        every call."""
        return self.runner == "jax"

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the logits for (input_ids, attention_mask), int64 [batch, length]. ModelError when there is no graph of
        that shape."""
        rows, length = input_ids.shape
        if rows != self.batch or length not in self.lengths:
            raise ModelError(
                f"the exported model takes {self.batch} rows of {self.lengths} tokens, not {rows} of {length}",
                "export again with export.batch and export.length set to what is needed",
            )
        if self._runner is None:
            from trnflow.tasks.export.program_runners import JaxRunner, TorchXlaRunner

            read = self._stored_tensors.tensor
            if self.compiles_once:
                self._runner = JaxRunner(self.folder, read, optimised=self._optimised)
            else:
                self._runner = TorchXlaRunner(self.folder, read)
        given = dict(zip(self.document["inputs"], (input_ids, attention_mask), strict=True))
        return self._runner(self.document["functions"][str(length)], given)


def load_stablehlo(folder: Path, *, optimised: bool = False) -> StableHlo:
    """Open the exported model (StableHLO graphs and weights) in `folder`, to be called like a function. Its weights are
    read at the first call. optimised: let jax compile with XLA's optimisation whatever XLA_FLAGS says. ModelError when
    `folder` holds no export of this format."""
    file = folder / "export.json"
    document = read_json(file) if file.is_file() else {}
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise ModelError(
            f"{folder} holds no StableHLO export that this version reads (format {FORMAT} {VERSION})",
            "export again with export.target=stablehlo",
        )
    return StableHlo(folder, document, optimised=optimised)


def producer(bytecode: bytes) -> str:
    """Return the name and version of the program that wrote MLIR bytecode, such as `StableHLO_v1.13.0`; `unknown` when the
    header has none. A runtime can read bytecode of its own version and of older ones."""
    # "ML\xefR", one byte of bytecode version, then the producer, zero-terminated
    return bytecode[5 : bytecode.index(0, 5)].decode(errors="replace") if bytecode.startswith(b"ML\xefR") else "unknown"


class _Tensors:
    """The tensors of an export by name: the weights on disk and, while writing, the constants.

    No file stays open, so that pages of a tensor that was read leave this process's memory with the tensor."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self.constants: dict[str, torch.Tensor] = {}
        self._files: dict[str, Path] = {}
        for file in [*sorted(folder.glob(_WEIGHTS)), *folder.glob(_CONSTANTS)]:
            with safe_open(file, framework="pt") as opened:
                self._files |= dict.fromkeys(opened.keys(), file)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor; one from a file is a view of the file's mapped pages. ModelError when no file holds it."""
        from safetensors import safe_open

        if name in self.constants:
            return self.constants[name]
        if name not in self._files:
            raise ModelError(f"the export names the tensor {name}, which none of its files holds", "export again")
        with safe_open(self._files[name], framework="pt") as opened:
            stored: torch.Tensor = opened.get_tensor(name)
        return stored

    def name_of(self, names: list[str], tensor: torch.Tensor, length: int) -> str:
        """Return the name of an equal stored tensor among `names`; store the tensor as a constant if there is none."""
        for name in [*names, f"{names[0]}.{length}"]:
            if (name in self._files or name in self.constants) and _same(self.tensor(name), tensor):
                return name
        free = names[0] if names[0] not in self._files and names[0] not in self.constants else f"{names[0]}.{length}"
        self.constants[free] = tensor.detach().clone().contiguous()
        return free


def _same(stored: torch.Tensor, tensor: torch.Tensor) -> bool:
    import torch

    return stored.dtype == tensor.dtype and stored.shape == tensor.shape and torch.equal(stored, tensor)


def _described(
    kind: str, spec: Spec, graph: Graph, length: int, stored_tensors: _Tensors, renamed: Mapping[str, str]
) -> Meta:
    """The entry of an argument in export.json. A tied tensor has several names, and the weights have it under one of them,
    or under the name that transformers publishes."""
    if kind == "tensor":
        tensor = graph.tensors[spec.name]
        tied = [name for name, other in sorted(graph.tensors.items()) if _is_tied(tensor, other)]
        names = [spec.name, *(name for name in tied if name != spec.name)]
        names += [renamed[name] for name in names if name in renamed]
        spec = spec._replace(name=stored_tensors.name_of(names, tensor, length))
    return {"kind": kind, **spec._asdict()}


def _is_tied(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.dtype == other.dtype
