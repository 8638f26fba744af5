"""Write and read a model as StableHLO files, without pickle; equal models give equal bytes.

export.json             arguments of every graph, with shapes and dtypes
<length>.mlirbc         one graph a length, for [batch, length]
model*.safetensors      the consolidated weights, byte for byte
constants.safetensors   constants that are no weights, such as rotary frequencies
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import safe_open
from safetensors.torch import save

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.export.lowering import Graph, Spec
from trnflow.tasks.export.program_runners import JaxRunner, ProgramRunner, TorchXlaRunner
from trnflow.tasks.stage import read_json, write_json
from trnflow.tasks.system.optional_packages import export_runner

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
    """Write graphs, weights and export.json into `folder`.

    Args:
        graphs: {tokens of a row: graph}.
        weights: The Hugging Face folder.
        about: Further entries of export.json, with `inputs`.
        renamed: {name in the graphs: name in the weight files}.
    """
    for file in sorted(weights.glob(_WEIGHTS)):
        # byte for byte, so that the store holds the weights once
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
    document = {"format": FORMAT, "version": VERSION, "functions": functions, **about}
    write_json(folder / "export.json", document)


class StableHlo:
    """An exported model: its inputs, int64 [batch, length] each, -> logits, on the CPU.

    document: the content of `export.json`; lengths: tokens of a row, ascending; runner: `jax` where installed, else
    `torch_xla`.
    """

    fixed = True

    def __init__(self, folder: Path, document: Meta, *, optimised: bool = False) -> None:
        self.folder = folder
        self.document = document
        self.batch, self.inputs = int(document["batch"]), document["inputs"]
        self.lengths = sorted(int(length) for length in document["functions"])
        self.runner = export_runner()
        self._optimised = optimised
        self._stored_tensors = _Tensors(folder)
        self._runner: ProgramRunner | None = None

    @property
    def compiles_once(self) -> bool:
        """Whether a graph is compiled at its first call alone."""
        # torch_xla 2.9 compiles a graph again at every call
        return self.runner == "jax"

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits. Raises ModelError when there is no graph of that shape."""
        rows, length = inputs[0].shape
        if rows != self.batch or length not in self.lengths:
            raise ModelError(
                f"the exported model takes {self.batch} rows of {self.lengths} tokens, not {rows} of {length}",
                "export again with export.batch and export.length set to what is needed",
            )
        if self._runner is None:
            read = self._stored_tensors.tensor
            if self.compiles_once:
                self._runner = JaxRunner(self.folder, read, optimised=self._optimised)
            else:
                self._runner = TorchXlaRunner(self.folder, read)
        given = dict(zip(self.inputs, inputs, strict=True))
        return self._runner(self.document["functions"][str(length)], given)


def load_stablehlo(folder: Path, *, optimised: bool = False) -> StableHlo:
    """Open an export; its weights are read at the first call. Raises ModelError for a folder that is none.

    optimised: let jax compile with XLA's optimisation whatever XLA_FLAGS says.
    """
    file = folder / "export.json"
    document = read_json(file) if file.is_file() else {}
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise ModelError(
            f"{folder} holds no StableHLO export that this version reads (format {FORMAT} {VERSION})",
            "export again with export.target=stablehlo",
        )
    return StableHlo(folder, document, optimised=optimised)


def producer(bytecode: bytes) -> str:
    """Return the producer of MLIR bytecode, such as `StableHLO_v1.13.0`, or `unknown`."""
    # "ML\xefR", one byte of bytecode version, then the producer, zero-terminated
    return bytecode[5 : bytecode.index(0, 5)].decode(errors="replace") if bytecode.startswith(b"ML\xefR") else "unknown"


class _Tensors:
    """The tensors of an export by name: weights on disk, and constants while writing."""

    def __init__(self, folder: Path) -> None:
        self.constants: dict[str, torch.Tensor] = {}
        self._files: dict[str, Path] = {}
        for file in [*sorted(folder.glob(_WEIGHTS)), *folder.glob(_CONSTANTS)]:
            with safe_open(file, framework="pt") as opened:
                self._files |= dict.fromkeys(opened.keys(), file)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor, of a file a view of mapped pages. Raises ModelError when no file holds it."""
        if name in self.constants:
            return self.constants[name]
        if name not in self._files:
            raise ModelError(f"the export names the tensor {name}, which none of its files holds", "export again")
        # no file stays open: a tensor's pages leave memory with the tensor
        with safe_open(self._files[name], framework="pt") as opened:
            stored: torch.Tensor = opened.get_tensor(name)
        return stored

    def name_of(self, names: list[str], tensor: torch.Tensor, length: int) -> str:
        """Return the name of an equal tensor among `names`, or store this one as a constant."""
        for name in [*names, f"{names[0]}.{length}"]:
            if (name in self._files or name in self.constants) and _same(self.tensor(name), tensor):
                return name
        free = names[0] if names[0] not in self._files and names[0] not in self.constants else f"{names[0]}.{length}"
        self.constants[free] = tensor.detach().clone().contiguous()
        return free


def _same(stored: torch.Tensor, tensor: torch.Tensor) -> bool:
    return stored.dtype == tensor.dtype and stored.shape == tensor.shape and torch.equal(stored, tensor)


def _described(
    kind: str, spec: Spec, graph: Graph, length: int, stored_tensors: _Tensors, renamed: Mapping[str, str]
) -> Meta:
    """Return an argument's entry in export.json."""
    if kind == "tensor":
        tensor = graph.tensors[spec.name]
        tied = [name for name, other in sorted(graph.tensors.items()) if _is_tied(tensor, other)]
        # a tied tensor has several names; the weights have one of them, or the one that transformers publishes
        names = [spec.name, *(name for name in tied if name != spec.name)]
        names += [renamed[name] for name in names if name in renamed]
        spec = spec._replace(name=stored_tensors.name_of(names, tensor, length))
    return {"kind": kind, **spec._asdict()}


def _is_tied(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.data_ptr() == other.data_ptr() and tensor.shape == other.shape and tensor.dtype == other.dtype
