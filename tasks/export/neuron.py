"""Call AWS's Neuron compiler. Written from AWS's documentation and optimum-neuron's sources; never run.

Uses the optimum-neuron of `export.neuron_python`, else the first installed of optimum-neuron, `optimum-cli`,
torch_neuronx.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import CompileError, MissingDependency
from trnflow.tasks.evaluation.models import input_names, load_model
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.sources.model_source import TOKENIZER_FILES
from trnflow.tasks.stage import Workdir, read_json, write_json
from trnflow.tasks.system.compiler_flags import flags_around

if TYPE_CHECKING:
    from trnflow.tasks.export.config import ExportConfig
    from trnflow.tasks.metadata import ModelMeta

COMPILER = ("libneuronxla", "neuronx-cc", "neuronx-distributed", "optimum-neuron", "torch-neuronx", "transformers")
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def compile_neuron(config: ExportConfig, weights: Input[ModelMeta], lengths: list[int], out: Workdir) -> None:
    """Compile the model for each length into `out.path/<length>`. Raises MissingDependency or CompileError."""
    check_compiler(config)
    prefix = optimum_command(config)
    for number, length in enumerate(lengths):
        out.progress(number, len(lengths), "graphs")
        folder = out.path / str(length)
        if prefix is not None:
            source = half_precision(config, weights, out.scratch)
            _run([*prefix, *optimum_arguments(config, source, length, folder)], out.scratch)
        else:
            _trace(config, weights, length, folder)
    out.progress(len(lengths), len(lengths), "graphs")


def check_compiler(config: ExportConfig) -> None:
    """Raise MissingDependency if no compiler is installed."""
    if optimum_command(config) is None and find_spec("torch_neuronx") is None:
        raise MissingDependency(
            "export.target=neuron needs AWS's compiler, and neither optimum-neuron nor torch_neuronx is installed here",
            "install optimum-neuron or torch-neuronx with neuronx-cc as AWS's Neuron SDK documentation says (they come "
            "from its own package repository) and name that environment's Python in export.neuron_python; "
            "export.target=stablehlo works without",
        )


def compiler(config: ExportConfig) -> Meta:
    """Return {"versions": {package: version or None}, "flags"} for the key, of the environment that compiles."""
    from importlib.metadata import distributions

    folders = sys.path
    if config.neuron_python:
        folders = [
            str(path) for path in Path(config.neuron_python).absolute().parents[1].glob("lib*/python*/site-packages")
        ]
    installed = {name: next(iter(distributions(name=name, path=folders)), None) for name in COMPILER}
    versions = {name: package.version if package else None for name, package in installed.items()}
    return {"versions": versions, "flags": flags_around(("NEURON_CC_FLAGS",))}


def optimum_command(config: ExportConfig) -> list[str] | None:
    """Return the command of optimum-neuron's exporter without arguments, or None."""
    module = ["-m", "optimum.exporters.neuron"]
    if config.neuron_python:
        return [config.neuron_python, *module]
    if find_spec("optimum") is not None and find_spec("optimum.neuron") is not None:
        return [sys.executable, *module]
    # last: it passes its arguments through a shell, where a space in a path breaks them
    command = shutil.which("optimum-cli")
    return [command, "export", "neuron"] if command else None


def optimum_arguments(config: ExportConfig, weights: Input[ModelMeta], length: int, folder: Path) -> list[str]:
    """Return the exporter's arguments for one length."""
    task = weights.meta["task"]
    arguments = ["--model", str(weights.path), "--task", kind_of(task).pipeline]
    arguments += ["--batch_size", str(config.batch), "--sequence_length", str(length)]
    if not kind_of(task).per_row:
        arguments += ["--tensor_parallel_size", str(config.cores), "--torch_dtype", DTYPES[config.auto_cast_type]]
    else:
        arguments += ["--auto_cast", config.auto_cast, "--auto_cast_type", config.auto_cast_type]
    if config.instance_type:
        arguments += ["--instance_type", config.instance_type]
    return [*arguments, str(folder)]


def half_precision(config: ExportConfig, weights: Input[ModelMeta], scratch: Path) -> Input[ModelMeta]:
    """Return the folder to give to optimum-neuron: of a language model, links with a config in half precision."""
    if kind_of(weights.meta["task"]).per_row:
        return weights
    # optimum-neuron 0.4.5 ignores `--torch_dtype` and takes the dtype of the config
    folder, dtype = scratch / "half", DTYPES[config.auto_cast_type]
    folder.mkdir(exist_ok=True)
    for file in weights.path.iterdir():
        if file.name != "config.json" and not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.resolve())
    write_json(
        folder / "config.json", {**read_json(weights.path / "config.json"), "dtype": dtype, "torch_dtype": dtype}
    )
    return replace(weights, path=folder)


def _run(command: list[str], scratch: Path) -> None:
    try:
        # in scratch: the compiler writes logs and working files into its working directory, of which none is imported.
        # By a variable: Python 3.10, of AWS's environments, has no -P
        completed = subprocess.run(
            command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )  # fmt: skip
    except FileNotFoundError as error:
        raise MissingDependency(
            f"export.neuron_python: there is no {command[0]}", "name the Python of an environment with optimum-neuron"
        ) from error
    if completed.returncode and (missing := re.search(r"No module named '([\w.]+)'", completed.stdout)):
        raise MissingDependency(
            f"the Neuron export needs the package {missing[1]}, which {command[0]} does not find",
            "install it there as AWS's Neuron SDK documentation says, or name another environment in export.neuron_python",
        )
    failed = logged_failure(completed.stdout)
    if completed.returncode == 0 and failed:
        raise CompileError(
            f"the Neuron export ended without an error code, but logged: {failed}", "look at the exporter's own output"
        )
    if completed.returncode:
        last = "\n".join(completed.stdout.strip().splitlines()[-20:])
        raise CompileError(
            f"the Neuron export ended with exit code {completed.returncode}:\n{last}\n(command: {' '.join(command)})",
            "run that command by hand to see all of its output",
        )


def logged_failure(log: str) -> str | None:
    """Return the line of an exporter's log that reports a failed check, or None."""
    # of errors other than a wrong shape, the exporter only logs its check's failure and exits with 0
    words = ("an error occured", "an error occurred", "but not close enough")
    return next((line.strip() for line in log.splitlines() if any(word in line.lower() for word in words)), None)


def _trace(config: ExportConfig, weights: Input[ModelMeta], length: int, folder: Path) -> None:
    """Compile with torch_neuronx, for one core, to a TorchScript file with the NEFF inside."""
    import torch
    import torch_neuronx

    from trnflow.tasks.export.lowering import logits_of

    model = load_model(weights.path, weights.meta["task"])
    inputs = torch.ones((config.batch, length), dtype=torch.long)
    compiler = ["--auto-cast", config.auto_cast, "--auto-cast-type", config.auto_cast_type]
    traced = torch_neuronx.trace(logits_of(model), (inputs,) * len(input_names(model)), compiler_args=compiler)
    folder.mkdir(parents=True)
    torch.jit.save(traced, folder / "model.neuron")  # type: ignore[no-untyped-call]
    for name in ("config.json", *TOKENIZER_FILES):
        if (weights.path / name).is_file():
            shutil.copyfile(weights.path / name, folder / name)
