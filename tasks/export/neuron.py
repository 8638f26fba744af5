"""Call AWS's Neuron compiler. This code follows AWS's documentation and optimum-neuron's sources; it has never been run.

The setting `export.neuron_python`, if given, names the Python whose optimum-neuron is used. Else the first compiler of
these that is installed is used: optimum-neuron in this environment, `optimum-cli` on the PATH, torch_neuronx in this
environment (for one core).
"""

from __future__ import annotations

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
from trnflow.tasks.evaluation.models import load_model
from trnflow.tasks.sources.model_source import TOKENIZER_FILES
from trnflow.tasks.stage import Workdir, read_json, write_json
from trnflow.tasks.system.compiler_flags import flags_around

if TYPE_CHECKING:
    from trnflow.tasks.export.config import ExportConfig

COMPILER = ("libneuronxla", "neuronx-cc", "neuronx-distributed", "optimum-neuron", "torch-neuronx", "transformers")
TASKS = {"classification": "text-classification", "causal_lm": "text-generation"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def compile_neuron(config: ExportConfig, weights: Input, lengths: list[int], out: Workdir) -> None:
    """Compile the model by AWS's Neuron compiler, once for each row length in tokens, into the folder
    `out.path/<length>`. weights: the consolidated Hugging Face folder.

    Raises:
        MissingDependency: no compiler is installed.
        CompileError: the compiler failed.
    """
    prefix = optimum_command(config)
    if prefix is None and find_spec("torch_neuronx") is None:
        raise MissingDependency(
            "export.target=neuron needs AWS's compiler, and neither optimum-neuron nor torch_neuronx is installed here",
            "install optimum-neuron or torch-neuronx with neuronx-cc as AWS's Neuron SDK documentation says (they come "
            "from its own package repository) and name that environment's Python in export.neuron_python; "
            "export.target=stablehlo works without",
        )
    for done, length in enumerate(lengths):
        out.progress(done, len(lengths), "graphs")
        folder = out.path / str(length)
        if prefix is not None:
            source = half_precision(config, weights, out.scratch)
            _run([*prefix, *optimum_arguments(config, source, length, folder)], out.scratch)
        else:
            _trace(config, weights, length, folder)
    out.progress(len(lengths), len(lengths), "graphs")


def compiler(config: ExportConfig) -> Meta:
    """Return the facts about the Neuron compiler, which become a part of the stage's cache key (the hash under which
    its result is cached): {"versions": {package: its version, or None if the package is not installed}, "flags":
    {"NEURON_CC_FLAGS": the flags in this environment variable}, empty without flags}. The packages are looked up in the
    environment of `export.neuron_python`, else in this one."""
    from importlib.metadata import distributions

    folders = sys.path
    if config.neuron_python:
        folders = [
            str(path) for path in Path(config.neuron_python).absolute().parents[1].glob("lib*/python*/site-packages")
        ]
    found = {name: next(iter(distributions(name=name, path=folders)), None) for name in COMPILER}
    versions = {name: item.version if item else None for name, item in found.items()}
    return {"versions": versions, "flags": flags_around(("NEURON_CC_FLAGS",))}


def optimum_command(config: ExportConfig) -> list[str] | None:
    """Return the first words of the command that runs optimum-neuron's exporter, or None when no exporter is installed.
    The Python of `export.neuron_python`, if this setting is given, is used without a check.

    `optimum-cli` is used only if nothing else is installed: it passes its arguments through a shell, where a space in a
    path breaks them.
    """
    module = ["-m", "optimum.exporters.neuron"]
    if config.neuron_python:
        return [config.neuron_python, *module]
    if find_spec("optimum") is not None and find_spec("optimum.neuron") is not None:
        return [sys.executable, *module]
    command = shutil.which("optimum-cli")
    return [command, "export", "neuron"] if command else None


def optimum_arguments(config: ExportConfig, weights: Input, length: int, folder: Path) -> list[str]:
    """Return the command-line arguments of optimum-neuron's exporter for one length. folder: where the exporter
    writes.

    For a language model the arguments give the dtype and the number of cores that the model is sharded over; for a
    classifier, which operations the compiler casts to which type."""
    task = weights.meta["task"]
    arguments = ["--model", str(weights.path), "--task", TASKS[task]]
    arguments += ["--batch_size", str(config.batch), "--sequence_length", str(length)]
    if task == "causal_lm":
        arguments += ["--tensor_parallel_size", str(config.cores), "--torch_dtype", DTYPES[config.auto_cast_type]]
    else:
        arguments += ["--auto_cast", config.auto_cast, "--auto_cast_type", config.auto_cast_type]
    if config.instance_type:
        arguments += ["--instance_type", config.instance_type]
    return [*arguments, str(folder)]


def half_precision(config: ExportConfig, weights: Input, scratch: Path) -> Input:
    """Return the model folder to give to optimum-neuron. For a language model this is a folder of links in
    `scratch`, whose config.json names the half precision of `auto_cast_type`; for a classifier, `weights` itself.

    optimum-neuron 0.4.5 takes the dtype of a language model from its config, and ignores `--torch_dtype`."""
    if weights.meta["task"] != "causal_lm":
        return weights
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
    """Run the exporter in the folder `scratch`: the compiler writes logs and working files into its working directory."""
    try:
        done = subprocess.run(command, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError as error:
        raise MissingDependency(
            f"export.neuron_python: there is no {command[0]}", "name the Python of an environment with optimum-neuron"
        ) from error
    if done.returncode and (missing := re.search(r"No module named '([\w.]+)'", done.stdout)):
        raise MissingDependency(
            f"the Neuron export needs the package {missing[1]}, which {command[0]} does not find",
            "install it there as AWS's Neuron SDK documentation says, or name another environment in export.neuron_python",
        )
    failed = logged_failure(done.stdout)
    if done.returncode == 0 and failed:
        raise CompileError(
            f"the Neuron export ended without an error code, but logged: {failed}", "look at the exporter's own output"
        )
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-20:])
        raise CompileError(
            f"the Neuron export ended with exit code {done.returncode}:\n{last}\n(command: {' '.join(command)})",
            "run that command by hand to see all of its output",
        )


def logged_failure(log: str) -> str | None:
    """Return the line of an exporter's log that says that the exporter's check of the export failed, or None.

    When optimum-neuron's check of the exported model finds an error other than a wrong shape, its exporter only logs
    the error, and exits with 0.
    """
    words = ("an error occured", "an error occurred", "but not close enough")
    return next((line.strip() for line in log.splitlines() if any(word in line.lower() for word in words)), None)


def _trace(config: ExportConfig, weights: Input, length: int, folder: Path) -> None:
    """Compile with torch_neuronx, for one core, to a TorchScript file with the NEFF inside."""
    import torch
    import torch_neuronx

    from trnflow.tasks.export.lowering import logits_of

    model = load_model(weights.path, weights.meta["task"])
    inputs = torch.ones((config.batch, length), dtype=torch.long)
    compiler = ["--auto-cast", config.auto_cast, "--auto-cast-type", config.auto_cast_type]
    traced = torch_neuronx.trace(logits_of(model), (inputs, inputs), compiler_args=compiler)
    folder.mkdir(parents=True)
    torch.jit.save(traced, folder / "model.neuron")  # type: ignore[no-untyped-call]
    for name in ("config.json", *TOKENIZER_FILES):
        if (weights.path / name).is_file():
            shutil.copyfile(weights.path / name, folder / name)
