"""Evaluate a language model on the tasks of `evaluate.harness`: what `evaluate_model` reports, kept under a key of its own.

Costs what lm-eval's own command costs: loading the model anew, and a forward pass for each request.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.data.special_tokens import chat_templates
from trnflow.tasks.errors import ConfigError, DataError, MissingDependency
from trnflow.tasks.evaluation.harness import PACKAGES, HarnessConfig, call_harness, harness_version
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.stage import Known, Workdir, stage, write_json
from trnflow.tasks.system.devices import cores, device_kind
from trnflow.tasks.system.model_process import model_environ
from trnflow.tasks.training.devices import check_gpu

RESULTS = "harness.json"


def accelerator(config: HarnessConfig) -> Meta:
    """Return the part `accel` of the key, as `predict_rows` has it, with the versions of lm-eval's libraries."""
    return {"device": device_kind(config.device or "cpu"), "threads": cores(), "versions": [*PACKAGES]}


def needs(config: HarnessConfig, known: Known) -> Iterator[str]:
    """Yield nothing; raise MissingDependency without lm-eval, ModelError without its GPU, ConfigError if the model has no
    chat template to apply."""
    if known.here is not None and harness_version() is None:
        raise MissingDependency(
            "evaluate.harness is set, and lm-eval is not installed",
            "pip install 'trnflow[harness]', or set evaluate.harness=null",
        )
    if known.here is not None and config.device == "cuda":
        check_gpu(known.here, "evaluate")
    tokenizer = known.sources["model"].location["tokenizer"] or {}
    folder, framed = tokenizer.get("folder"), known.of("texts").get("framed", True)
    if config.apply_chat_template and not framed and not (chat_templates(Path(folder)) if folder else tokenizer):
        raise ConfigError(
            "evaluate.harness.apply_chat_template is true, and the model has no chat template",
            "set it to false, or train on chats (format.task: chat) with format.chat_template",
        )
    yield from ()


@stage(
    kind="evaluation.shard",
    inputs=lambda config, inputs: {
        "weights": inputs["weights"].digest, "harness": inputs["harness"].identity,  # type: ignore[union-attr]
    },
    accel=accelerator,
    environ=lambda config: model_environ(),
    needs=needs,
)  # fmt: skip
def run_harness(config: HarnessConfig, weights: Input, harness: Source, *, out: Workdir) -> Meta:
    """Write harness.json: {"rows": a metric of a task each, "version" of lm-eval}.

    lm-eval works in a copy of the task files, so that it reads what the key has. Raises DataError if one has changed.

    Returns metadata: metrics {`task.metric`, with `.filter` where there is one: value}; own, those of the asked tasks.
    """
    folder = _copied(harness, out.scratch / "tasks")
    asked = config.model_dump(include={"num_fewshot", "limit", "apply_chat_template", "batch_size"})
    asked |= {"tasks": [*config.tasks], "model": str(weights.path), "device": config.device or "cpu"}
    made, metrics, own = call_harness(asked, folder, out.scratch / "cache"), {}, []
    if joined := made.pop("joined"):
        out.warn(
            f"evaluate.harness: in {joined} requests lm-eval reads prompt and answer as one text, as its own command does, "
            "which begins with other tokens than those of the prompt alone, which training and predict keep"
        )
    for row in made["rows"]:
        if row["stderr"] is not None and not math.isfinite(row["stderr"]):
            row["stderr"] = None
        name = ".".join([row["task"], row["metric"], *([row["filter"]] if row["filter"] != "none" else [])])
        if math.isfinite(row["value"]):
            metrics[name] = row["value"]
            own += [name] if row["task"] in config.tasks else []
        else:
            out.warn(f"evaluate.harness: {name} is {row['value']}, and is left out")
    made["rows"] = [row for row in made["rows"] if math.isfinite(row["value"])]
    write_json(out.path / RESULTS, made)
    return {"metrics": metrics, "own": own}


def _copied(harness: Source, to: Path) -> Path:
    folder = Path(harness.location["folder"])
    for name, digest in harness.identity["files"].items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, to / name)
        if sha256_file(to / name) != digest:
            raise DataError(f"{folder / name} changed since this run began", "run again")
    return to
