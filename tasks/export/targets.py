"""What a trained model can be exported as: a class here and a module for each value of `export.target`.

Nothing heavy is imported before it is needed, because `plan` asks targets, too.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import ConfigError, MissingDependency, ModelError
from trnflow.tasks.evaluation.models import input_names, load_model, longest_sequence
from trnflow.tasks.export.config import ExportConfig
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Known, Workdir, read_json
from trnflow.tasks.system.compiler_flags import NEURON_COMPILER
from trnflow.tasks.system.model_process import EAGER, model_environ
from trnflow.tasks.system.optional_packages import export_runner, require_torch_xla

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from trnflow.tasks.metadata import ModelMeta

LOADERS = ("load_jax.py", "load_iree.py")
"""Programs for those who use a StableHLO export; the artifact has copies."""
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
GGUF_PACKAGES = ("gguf", "jinja2", "tokenizers")


class ExportedProgram(Protocol):
    """An exported model: its inputs, int64 [rows, length] each, -> logits, on the CPU.

    Attributes:
        inputs: Names of what it takes.
        batch, lengths: Rows and tokens of a call, the lengths ascending.
        fixed: Whether calls have exactly these; else fewer or more rows and tokens, up to the longest, will do.
        compiles_once: Whether a graph is compiled at its first call alone.
    """

    inputs: list[str]
    batch: int
    lengths: list[int]
    fixed: bool

    @property
    def compiles_once(self) -> bool: ...

    def __call__(self, *inputs: Tensor) -> Tensor: ...


class Target(ABC):
    """A form of export."""

    name: str
    runs_here = True
    """Whether its logits are compared with PyTorch's, and `predict --export` takes it."""

    def environ(self) -> dict[str, str]:
        """Return the environment of the process that exports."""
        return model_environ()

    def accelerator(self, config: ExportConfig) -> Meta:
        """Return what shapes the result and is no code, library or setting: versions and flags of a compiler."""
        return {}

    @abstractmethod
    def check(self, config: ExportConfig) -> None:
        """Raise MissingDependency if this environment can't make it."""

    def check_model(self, known: Known) -> None:  # noqa: B027 (most targets hold any model)
        """Raise ModelError for a model that it can't hold."""

    @abstractmethod
    def check_runner(self) -> None:
        """Raise MissingDependency if this environment can't run it, ConfigError if no environment of this kind can."""

    @abstractmethod
    def write(
        self, config: ExportConfig, weights: Input[ModelMeta], lengths: list[int], out: Workdir
    ) -> PreTrainedModel | None:
        """Write the model to `out.path`; return what to compare it with, None if it can't run here. Raises ModelError,
        CompileError."""

    @abstractmethod
    def open(self, folder: Path, document: Meta, *, optimised: bool = False) -> ExportedProgram:
        """Open an export; its weights are read at the first call. document: of export.json."""


class StableHloTarget(Target):
    name = "stablehlo"

    def check(self, config: ExportConfig) -> None:
        require_torch_xla("export.target is stablehlo", "export.target=onnx or export.target=none")

    def check_runner(self) -> None:
        export_runner()

    def write(
        self, config: ExportConfig, weights: Input[ModelMeta], lengths: list[int], out: Workdir
    ) -> PreTrainedModel | None:
        from trnflow.tasks.export.examples import example
        from trnflow.tasks.export.lowering import lower
        from trnflow.tasks.export.stablehlo import write_stablehlo
        from trnflow.tasks.model_folder.published_weights import renamed_parameters

        model = _loaded(weights, lengths)
        graphs = {length: lower(model, *example(model, config.batch, length)) for length in lengths}
        write_stablehlo(out.path, graphs, weights.path, _about(config, model, weights), renamed_parameters(model))
        for name in LOADERS:
            shutil.copyfile(Path(__file__).parent / "loaders" / name, out.path / name)
        return model

    def open(self, folder: Path, document: Meta, *, optimised: bool = False) -> ExportedProgram:
        from trnflow.tasks.export.stablehlo import load_stablehlo

        return load_stablehlo(folder, optimised=optimised)


class OnnxTarget(Target):
    name = "onnx"

    def accelerator(self, config: ExportConfig) -> Meta:
        return _versions(ONNX_PACKAGES)

    def check(self, config: ExportConfig) -> None:
        _require(self.name, ONNX_PACKAGES)

    def check_runner(self) -> None:
        if find_spec("onnxruntime") is None:
            raise MissingDependency(
                "an ONNX export is run by onnxruntime, which is not installed",
                "pip install 'trnflow[onnx]', or set evaluate.export_rows=0",
            )

    def write(
        self, config: ExportConfig, weights: Input[ModelMeta], lengths: list[int], out: Workdir
    ) -> PreTrainedModel | None:
        from trnflow.tasks.export.onnx import write_onnx

        model = _loaded(weights, lengths)
        write_onnx(out.path, model, {**_about(config, model, weights), "lengths": lengths})
        return model

    def open(self, folder: Path, document: Meta, *, optimised: bool = False) -> ExportedProgram:
        from trnflow.tasks.export.onnx import OnnxProgram

        return OnnxProgram(folder, document)


class NeuronTarget(Target):
    name = "neuron"
    runs_here = False

    def environ(self) -> dict[str, str]:
        return EAGER | NEURON_COMPILER

    def accelerator(self, config: ExportConfig) -> Meta:
        from trnflow.tasks.export.neuron import compiler

        return compiler(config)

    def check(self, config: ExportConfig) -> None:
        from trnflow.tasks.export.neuron import check_compiler

        check_compiler(config)

    def check_model(self, known: Known) -> None:
        if (task := known.of("chunks").get("task")) and kind_of(task).apart:
            raise ModelError(
                f"optimum-neuron compiles no model that gives vectors of texts, and the task is {task}",
                "set export.target to stablehlo, onnx or none",
            )

    def check_runner(self) -> None:
        raise ConfigError(
            "a Neuron export runs on Neuron only", "leave --export out, or set export.target to stablehlo or onnx"
        )

    def write(
        self, config: ExportConfig, weights: Input[ModelMeta], lengths: list[int], out: Workdir
    ) -> PreTrainedModel | None:
        from trnflow.tasks.export.neuron import compile_neuron

        out.warn("the Neuron export has never been run by this project: check its logits before use")
        compile_neuron(config, weights, lengths, out)
        return None

    def open(self, folder: Path, document: Meta, *, optimised: bool = False) -> ExportedProgram:
        raise ModelError(f"{folder} holds an export for Neuron, which does not run here", "export to another target")


class GgufTarget(Target):
    name = "gguf"
    runs_here = False

    def accelerator(self, config: ExportConfig) -> Meta:
        return _versions(GGUF_PACKAGES)

    def check(self, config: ExportConfig) -> None:
        _require(self.name, GGUF_PACKAGES)

    def check_model(self, known: Known) -> None:
        from trnflow.tasks.export.gguf import refuse_family, refuse_task

        config = known.sources["model"].identity["config"]
        refuse_family({**(config["pretrained"] or {}), **config["overrides"]})
        if task := known.of("chunks").get("task"):
            refuse_task(task)

    def check_runner(self) -> None:
        raise ConfigError(
            "a GGUF export is run by llama.cpp, not by trnflow", "leave --export out, or give the file to llama.cpp"
        )

    def write(
        self, config: ExportConfig, weights: Input[ModelMeta], lengths: list[int], out: Workdir
    ) -> PreTrainedModel | None:
        from trnflow.tasks.export.gguf import refuse_task, write_gguf

        refuse_task(weights.meta["task"])
        for remark in write_gguf(out.path, _loaded(weights, lengths), weights.path, config.gguf_type):
            out.warn(remark)
        return None

    def open(self, folder: Path, document: Meta, *, optimised: bool = False) -> ExportedProgram:
        raise ModelError(f"{folder} holds a GGUF file, which llama.cpp runs", "export to another target")


TARGETS: dict[str, Target] = {
    target.name: target for target in (StableHloTarget(), OnnxTarget(), GgufTarget(), NeuronTarget())
}


def open_export(folder: Path, *, optimised: bool = False) -> ExportedProgram:
    """Open an export that runs here. Raises ModelError for a folder that holds none.

    optimised: let jax compile with XLA's optimisation whatever XLA_FLAGS says.
    """
    file = folder / "export.json"
    document = read_json(file) if file.is_file() else {}
    target = TARGETS.get(str(document.get("format", "")).removeprefix("trnflow-"))
    if target is None:
        raise ModelError(f"{folder} holds no export that this version reads", "export again")
    return target.open(folder, document, optimised=optimised)


def _versions(packages: Sequence[str]) -> Meta:
    from importlib.metadata import version

    return {"versions": {name: version(name) if find_spec(name) else None for name in packages}}


def _require(target: str, packages: Sequence[str]) -> None:
    """Raise MissingDependency for packages of the extra of the target's name."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"export.target is {target}, and {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            f"pip install 'trnflow[{target}]', or set export.target=none",
        )


def _about(config: ExportConfig, model: PreTrainedModel, weights: Input[ModelMeta]) -> Meta:
    """Return what export.json says of a program's calls."""
    named = {"task": weights.meta["task"], "labels": weights.meta["labels"]}
    return {"inputs": list(input_names(model)), "batch": config.batch, **named}


def _loaded(weights: Input[ModelMeta], lengths: list[int]) -> PreTrainedModel:
    """Load the model. Raises ModelError if it has no positions for the longest row."""
    model = load_model(weights.path, weights.meta["task"])
    limit = longest_sequence(model)
    if limit is not None and lengths[-1] > limit:
        raise ModelError(
            f"the model has positions for {limit} tokens, and the export is for {lengths[-1]}",
            f"set export.length to {limit} or less",
        )
    return model
