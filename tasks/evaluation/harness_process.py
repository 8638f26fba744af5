"""The process that runs lm-evaluation-harness on task files and data of its working folder.

lm_eval is imported by its name alone: an import statement would put its version into the key of evaluations without it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.framed import framing
from trnflow.tasks.data.limited_process import Timer, call_limited, keep_servers
from trnflow.tasks.errors import ConfigError, DataError, ModelError, TrnflowError

MOST = 400
"""Characters of another program's error that are shown."""
READERS = ("json", "csv", "parquet", "text", "arrow")
"""Values of `dataset_path` that read local files."""
CHAT_TEMPLATE = "evaluate.harness: the model's chat template"
"""Where an error is that ends its rendering."""
RENDERER = "transformers.utils.chat_template_utils"
HOLD = (
    "hold the data in files of the folder, and name them: dataset_path: json, dataset_kwargs: {data_files: {test: ...}}"
)


def harness_process() -> None:
    """Answer the line of JSON on stdin by one on stdout: {"rows", "version"}, or {"error"}.

    asked: "tasks", "limit", "num_fewshot"; "model": a folder, or None to check the tasks alone; with it
    "apply_chat_template", "batch_size" and "device".
    """
    asked, told = json.loads(sys.stdin.readline()), os.dup(1)
    os.dup2(2, 1)  # what lm-eval prints is no answer
    Thread(target=_end_with_the_caller, daemon=True).start()
    try:
        answer = _evaluated(asked) if asked["model"] else _checked(asked)
    except TrnflowError as error:
        answer = {"error": error.to_json()}
    with os.fdopen(told, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(answer))
    sys.stderr.flush()
    os._exit(0)  # at once: unloading torch takes a second


def _end_with_the_caller() -> None:
    # not by sys.stdin: processes that lm-eval forks to estimate errors close it, and would wait for its lock
    while os.read(0, 1):
        pass
    os._exit(1)


def _manager(asked: Meta) -> Any:
    """Return lm-eval's TaskManager of the folder's tasks. Raises ConfigError for a name that it does not define."""
    kind = import_module("lm_eval.api.task").ConfigurableTask
    kind.download, kind.__init__ = _of_files(kind.download), _within(kind.__init__)
    found = import_module("lm_eval.tasks").TaskManager(include_path=".", include_defaults=False)
    for name in asked["tasks"]:
        if name not in found.all_tasks:
            _refuse_broken_files()
            there = ", ".join(found.all_tasks) or "none"
            raise ConfigError(
                f"evaluate.harness.tasks: no file of {Path.cwd()} defines {name} (it has: {there})",
                "correct the name, or add the task's file",
            )
    return found


def _refuse_broken_files() -> None:
    """Raise DataError for a YAML file that lm-eval can't read: its index leaves such files out in silence."""
    load_yaml = import_module("lm_eval.tasks._yaml_loader").load_yaml
    for file in sorted(Path().rglob("*.yaml")):
        try:
            load_yaml(file, resolve_func=False)
        except Exception as error:  # any of PyYAML's, or a missing include
            raise DataError(f"evaluate.harness: {file}: {_in_a_line(error)}", "correct the task's file") from error


def _of_files(download: Callable[..., None]) -> Callable[..., None]:
    """Wrap the method that reads a task's data: it raises DataError for data that are not files of the folder."""

    def read(task: Any, dataset_kwargs: Meta | None = None, **others: Any) -> None:
        where, path = f"evaluate.harness: the task {task.config.task}", task.DATASET_PATH
        if callable(task.config.custom_dataset):
            raise DataError(f"{where} reads data by a function (custom_dataset), whose files no key knows", HOLD)
        if path is None:
            _refuse_broken_files()
            raise DataError(f"{where} names no data (dataset_path), or no file of {Path.cwd()} defines it", HOLD)
        if path not in READERS:
            raise DataError(f"{where} reads {path} from the hub (dataset_path), and there is no network here", HOLD)
        files = [*_leaves((dataset_kwargs or {}).get("data_files"))]
        if not files:
            raise DataError(f"{where} names no file (dataset_kwargs.data_files)", HOLD)
        for file in files:
            _refuse_foreign(where, file)
        download(task, dataset_kwargs, **others)

    return read


def _leaves(named: Any) -> Iterator[str]:
    for entry in named.values() if isinstance(named, dict) else named if isinstance(named, list) else [named]:
        if isinstance(entry, str):
            yield entry
        elif entry is not None:
            yield from _leaves(entry)


def _refuse_foreign(where: str, file: str) -> None:
    here = Path.cwd()
    if "://" in file:
        raise DataError(f"{where} reads {file} (data_files), and there is no network here", HOLD)
    if not (here / file).resolve().is_relative_to(here.resolve()):
        raise DataError(f"{where} reads {file} (data_files), which is not in {here}", "copy the file into that folder")
    if not any(here.glob(file)) if not Path(file).is_absolute() else not Path(file).is_file():
        raise DataError(
            f"{where} reads {file} (data_files), and {here} has no such file", "add it, or correct its path"
        )


def _checked(asked: Meta) -> Meta:
    """Load the tasks, and build the requests of their documents. Raises DataError with the task's name."""
    manager = _manager(asked)
    for name in asked["tasks"]:
        with _named(name):
            tasks = manager.load([name])["tasks"]
        for task in tasks.values():
            with _named(task.task_name):
                _check_task(task, asked)
    return {}


@contextmanager
def _named(task: str) -> Iterator[None]:
    """Turn errors of lm-eval, datasets, jinja2 and the task's own functions into a DataError that names the task."""
    try:
        yield
    except TrnflowError:
        raise
    except Exception as error:
        raise DataError(
            f"evaluate.harness: the task {task} can't be loaded: {_in_a_line(error)}",
            "correct its file: `lm-eval validate` says more",
        ) from error


def _within(build: Callable[..., None]) -> Callable[..., None]:
    """Wrap the constructor of a task, also of one in a group."""

    def built(task: Any, *arguments: Any, **named: Any) -> None:
        with _named((named.get("config") or {}).get("task", "")):
            build(task, *arguments, **named)

    return built


def _check_task(task: Any, asked: Meta) -> None:
    if not isinstance(task, import_module("lm_eval.api.task").ConfigurableTask):
        what = f"evaluate.harness: the task {task.task_name} is a class, whose data no key knows"
        raise DataError(what, "write the task in YAML")
    if asked["num_fewshot"] is not None and task.get_config("num_fewshot") != 0:
        task.set_config(key="num_fewshot", value=asked["num_fewshot"])
    elif task.get_config("num_fewshot") is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=1234)
    limit = asked["limit"]
    count = None if limit is None else max(int(limit if limit >= 1 else limit * len(task.eval_docs)), 1)
    task.build_all_requests(limit=count, rank=0, world_size=1)


def _evaluated(asked: Meta) -> Meta:
    """Return {"rows": of the results' table, "version", "joined": see `_count_joined`}, by the calls of lm-eval's command."""
    model, joined = {"pretrained": asked["model"], **_of_chats(asked)}, _count_joined()
    limit_templates()
    try:
        found = import_module("lm_eval").simple_evaluate(
            model="hf", model_args=model, tasks=asked["tasks"], task_manager=_manager(asked), log_samples=False,
            num_fewshot=asked["num_fewshot"], limit=asked["limit"], batch_size=asked["batch_size"],
            device=asked["device"], apply_chat_template=asked["apply_chat_template"],
            fewshot_as_multiturn=asked["apply_chat_template"],
        )  # fmt: skip
    except TrnflowError:
        raise
    except Exception as error:  # of lm-eval, transformers, jinja2 or the task's own functions
        import_module("traceback").print_exc()
        raise ModelError(
            f"evaluate.harness: lm-eval failed: {_in_a_line(error)}", "the log of evaluate_model says where"
        ) from error
    return {"rows": [*_rows(found)], "version": found["lm_eval_version"], "joined": joined()}


def _of_chats(asked: Meta) -> Meta:
    """Return arguments of the model by which prompts of the chat template are those of training."""
    config = framing(Path(asked["model"])) if asked["apply_chat_template"] else None
    # the template writes bos, where the model learnt one
    return {"add_bos_token": False, "chat_template_args": config.template_arguments} if config else {}


def limit_templates() -> None:
    """Let the model's chat template be rendered in a process with limits: it may come with a model from elsewhere."""
    keep_servers()  # between two requests for renderings a model computes

    def render(**asked: Any) -> tuple[list[str], list[Any]]:
        answer = call_limited(f"{__name__}:rendered_chats", {"asked": asked, "imports": [RENDERER]})
        if "refused" in answer:  # lm-eval asks again without the system's turn
            raise import_module("jinja2").TemplateError(answer["refused"])
        return answer["texts"], []

    tokenizers: Any = import_module("transformers.tokenization_utils_base")
    tokenizers.render_jinja_template = render


def rendered_chats(arguments: Meta, limit: Timer) -> Meta:
    """Return {"texts"} of conversations, or {"refused": by the template}. Raises ConfigError for too much memory."""
    try:
        with limit(CHAT_TEMPLATE):
            texts = import_module(RENDERER).render_jinja_template(**arguments["asked"])[0]
    except MemoryError as error:
        raise ConfigError(f"{CHAT_TEMPLATE}: the template takes too much memory", "repair the template") from error
    except import_module("jinja2").TemplateError as error:
        return {"refused": _in_a_line(error)}
    return {"texts": texts}


def _count_joined() -> Callable[[], int]:
    """Return the function that says how many requests do not begin with the tokens of their prompt alone."""
    kind, joined = import_module("lm_eval.api.model").TemplateLM, []
    encode = kind._encode_pair

    def counted(model: Any, context: str, continuation: str) -> Any:
        found, prompt = encode(model, context, continuation), model.tok_encode(context)
        if [*found[0], *found[1]][: len(prompt)] != prompt:
            joined.append(context)
        return found

    kind._encode_pair = counted
    return lambda: len(joined)


def _rows(found: Meta) -> Iterator[Meta]:
    for task, values in {**found["results"], **found.get("groups", {})}.items():
        better = found["higher_is_better"].get(task, {})
        for key, value in values.items():
            metric, comma, chosen = key.partition(",")
            if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
                error = values.get(f"{metric}_stderr,{chosen}")
                yield {
                    "task": task, "version": found["versions"].get(task), "filter": chosen,
                    "shots": found["n-shot"].get(task), "documents": found["n-samples"].get(task, {}).get("effective"),
                    "metric": metric, "value": float(value), "higher_is_better": better.get(metric),
                    "stderr": float(error) if isinstance(error, int | float) else None,
                }  # fmt: skip


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:MOST]}"
