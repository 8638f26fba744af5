"""Read the task files of `evaluate.harness` as a plan does: none of their functions and templates runs.

`harness_source` loads the tasks, and runs both: it is called where a run begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.evaluation.harness import HarnessConfig, harness_version, task_files
from trnflow.tasks.evaluation.harness_process import HOLD, MOST, READERS
from trnflow.tasks.sources.resolver import Resolver

YAML_ERRORS = (yaml.YAMLError, OSError, ValueError, RecursionError)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML in which the name after `!function` is a text."""


_Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))


def harness_files(config: HarnessConfig, resolver: Resolver) -> Source:
    """Return the same source as `harness_source`, from files that are only read; their tasks are checked where lm-eval is
    installed. Raises ConfigError without a folder or task, DataError for a task that names no file of data."""
    folder, identity = task_files(config, resolver)
    if harness_version():
        _check_tasks(config, folder, [name for name in identity["files"] if name.endswith(".yaml")])
    return Source("harness", identity, {"folder": str(folder.resolve())})


def _check_tasks(config: HarnessConfig, folder: Path, names: list[str]) -> None:
    """Raise ConfigError for a name that no file defines, DataError for a file or task that lm-eval would not evaluate."""
    defined: dict[str, Meta] = {}
    tagged: dict[str, list[str]] = {}
    broken: DataError | None = None
    for name in names:
        try:
            task = _read(folder / name, ())
        except YAML_ERRORS as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:MOST]}"
            broken = broken or DataError(f"evaluate.harness: {name}: {said}", "correct the task's file")
            continue
        own = task.get("group", task.get("task"))
        if isinstance(own, str):
            defined.setdefault(own, task)
        for tag in _listed(task.get("tag")):
            tagged.setdefault(tag, []).append(str(own))
    for name in config.tasks:
        if broken and name not in defined | tagged:
            raise broken
        if name not in defined | tagged:
            there = ", ".join(sorted(defined | tagged)) or "none"
            raise ConfigError(
                f"evaluate.harness.tasks: no file of {folder} defines {name} (it has: {there})",
                "correct the name, or add the task's file",
            )
        for leaf in _leaves({"task": name}, defined, tagged):
            _check_data(leaf, broken)


def _read(file: Path, above: tuple[Path, ...]) -> Meta:
    """Return a task's settings with those of the files that it includes, which they replace."""
    if file in above:
        raise ValueError(f"{file.name} includes itself")
    task = yaml.load(file.read_bytes(), Loader=_Loader)  # a safe loader
    if not isinstance(task, dict):
        raise ValueError("a task's file is a mapping")
    merged: Meta = {}
    for name in _listed(task.pop("include", None)):
        merged |= _read((file.parent / name).resolve(), (*above, file))
    return merged | task


def _leaves(
    given: Meta, defined: dict[str, Meta], tagged: dict[str, list[str]], above: tuple[str, ...] = ()
) -> Iterator[Meta]:
    """Yield the settings of each task that a group's entry stands for. above: the groups around it."""
    name = str(given.get("group", given.get("task")))
    own = defined.get(name, given)
    members = tagged[name] if name in tagged and name not in defined else own.get("task")
    if not isinstance(members, list) or name in above:
        yield {**own, **given, "task": name}
        return
    # a group's settings replace those of its tasks, and an entry's those of its group
    shared = {key: value for key, value in (own | given).items() if key.startswith("dataset_")}
    for member in members:
        entry = member if isinstance(member, dict) else {"task": member}
        yield from _leaves(shared | entry, defined, tagged, (*above, name))


def _check_data(task: Meta, broken: DataError | None) -> None:
    """Raise DataError for a task whose data are not named as files. broken: of a file that can't be read."""
    where, path = f"evaluate.harness: the task {task['task']}", task.get("dataset_path")
    if "class" in task:
        raise DataError(f"{where} is a class, whose data no key knows", "write the task in YAML")
    if "custom_dataset" in task:
        raise DataError(f"{where} reads data by a function (custom_dataset), whose files no key knows", HOLD)
    if path is None:
        raise broken or DataError(f"{where} names no data (dataset_path)", HOLD)
    if path not in READERS:
        raise DataError(f"{where} reads {path} from the hub (dataset_path), and there is no network here", HOLD)
    kwargs = task.get("dataset_kwargs")
    if not isinstance(kwargs, dict) or not kwargs.get("data_files"):
        raise DataError(f"{where} names no file (dataset_kwargs.data_files)", HOLD)


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(entry) for entry in value] if isinstance(value, list) else []
