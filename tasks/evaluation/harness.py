"""lm-evaluation-harness (`evaluate.harness`): its settings, its task files as a source, and calls of its process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Annotated, Literal

from pydantic import Field

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.config import NOT_KEYED, RUNS_CODE, BatchRows, NonNegativeCount, Positive, StageConfig
from trnflow.tasks.data.limited_process import PASSED_ON, PLAIN
from trnflow.tasks.errors import ConfigError, ProcessFailed, from_json
from trnflow.tasks.evaluation.harness_process import harness_process
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.launch.python import python
from trnflow.tasks.sources.paths import in_folder
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.system.model_process import model_environ
from trnflow.tasks.system.process import ATTEMPT, STARTER, how_ended
from trnflow.tasks.system.redaction import fill_variables

PATH = "evaluate.harness.include_path"
PACKAGES = ("lm-eval", "datasets", "jinja2", "tokenizers", "torch", "transformers")
"""Distributions whose versions are in the key."""
MOST_FILES = 10_000
OFFLINE = {"HF_DATASETS_OFFLINE": "1", "USE_TORCH_XLA": "0", "TOKENIZERS_PARALLELISM": "false"}

TaskName = Annotated[str, Field(pattern=r"^[\w.:+-]+$")]


class HarnessConfig(StageConfig):
    """Tasks of EleutherAI's lm-evaluation-harness, which a language model is evaluated on, under its own command's names.
    Needs `pip install 'trnflow[harness]'`."""

    tasks: Annotated[tuple[TaskName, ...], Field(min_length=1)]
    """The names of tasks, groups or tags that files in `include_path` define."""
    include_path: Annotated[str, NOT_KEYED, RUNS_CODE]
    """The folder with the task files (YAML), their data and their Python functions. Paths in task files are relative to it.
    Each file in it, hidden ones apart, is in the key by its content."""
    num_fewshot: NonNegativeCount | None = None
    """The number of examples before each question. Default: the task's own."""
    limit: Positive | None = None
    """The number of documents of a task that are read, below 1 their share. Default: all."""
    apply_chat_template: bool = False
    """Whether questions are written by the model's chat template, as a model that was trained on chats expects."""
    batch_size: BatchRows = 1
    """The rows of a forward pass."""
    device: Literal["cpu", "cuda"] | None = None
    """The device that computes. Default: that of `evaluate.device`."""


def harness_version() -> str | None:
    """Return the version of lm-eval, or None where it is not installed."""
    try:
        return version("lm-eval")
    except PackageNotFoundError:
        return None


def harness_source(config: HarnessConfig, resolver: Resolver) -> Source:
    """Return the files of `include_path` as a source, with the identity {"files": {path: digest}}.

    Where lm-eval is installed, its process loads the tasks and builds their requests, once for the same files.

    Raises ConfigError without a folder or task, DataError for a task that can't be evaluated.
    """
    folder, identity = task_files(config, resolver)
    asked = {"tasks": [*config.tasks], "limit": config.limit, "num_fewshot": config.num_fewshot}
    checked = digest_of({**identity, **asked, "lm-eval": (installed := harness_version())})
    if installed and not resolver.memo.get("harness", folder, checked):
        with TemporaryDirectory(prefix="trnflow-harness-") as cache:
            call_harness({**asked, "model": None}, folder, Path(cache))
        resolver.memo.put("harness", folder, checked, True)
    return Source("harness", identity, {"folder": str(folder.resolve())})


def task_files(config: HarnessConfig, resolver: Resolver) -> tuple[Path, Meta]:
    """Return the folder of the task files, and its identity {"files": {path: digest}}. Raises ConfigError without a folder."""
    given = fill_variables(config.include_path, PATH)
    folder = resolver.folder(PATH) / Path(given).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"{PATH}: there is no folder {given}{in_folder(given, resolver.folder(PATH))}",
            "name the folder with the task files",
        )
    names = [*_files(folder)]
    digests = resolver.memo.digests(folder / name for name in names)
    return folder, {"files": dict(zip(names, digests, strict=True))}


def _files(folder: Path) -> Iterator[str]:
    """Yield the paths of the files in a folder, sorted, without hidden ones and bytecode."""
    count = 0
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(name for name in names if not name.startswith(".")):
            count += 1
            if count > MOST_FILES:
                raise ConfigError(
                    f"{PATH}: {folder} holds more than {MOST_FILES:,} files", "name a folder that holds the tasks alone"
                )
            yield Path(above, name).relative_to(folder).as_posix()


def call_harness(asked: Meta, folder: Path, cache: Path) -> Meta:
    """Return what `harness_process` answers, called in `folder`, with no network, no secrets and an empty cache.

    Raises:
        ConfigError, DataError, ModelError: Of the process.
        ProcessFailed: The process ended without an answer.
    """
    variables = {
        name: os.environ[name] for name in (*PASSED_ON, ATTEMPT, STARTER, "CUDA_VISIBLE_DEVICES") if name in os.environ
    }
    environment = {**variables, **PLAIN, **model_environ(), **OFFLINE, "HF_HOME": str(cache)}
    command = python(f"{harness_process.__module__}:{harness_process.__name__}")
    with TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, text=True, cwd=folder, env=environment)
        with process:
            assert process.stdin and process.stdout
            try:
                process.stdin.write(json.dumps(asked) + "\n")
                process.stdin.flush()
                line = process.stdout.read()
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        said = errors.read()
    if not line:
        last = said.strip().rpartition("\n")[2] or how_ended(process.returncode)
        raise ProcessFailed(f"evaluate.harness: the process of lm-eval ended: {last}", "run again with --debug")
    answer: Meta = json.loads(line)
    if "error" in answer:
        raise from_json(answer["error"])
    if asked["model"]:
        sys.stderr.write(said)
    return answer
