"""The keys of Hugging Face's Trainer, which axolotl and LLaMA-Factory hand on, and what their values mean here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trnflow.flows.recipes.schema import Tree
from trnflow.flows.recipes.yaml_tree import INTEGER
from trnflow.flows.translation.translation import Nearest, Rule, Table, Translation, hidden, lacks, nothing, part, to


def number(value: Any) -> float:
    """Return a number; also of text, as YAML 1.1 reads 2e-5."""
    try:
        result = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if not math.isfinite(result):
        raise ValueError("it must be a number")
    return result


def from_zero(value: Any) -> float:
    if (result := number(value)) < 0:
        raise ValueError("it must be 0 or more")
    return result


def ratio(value: Any) -> float:
    """Return a share of all updates."""
    if (result := from_zero(value)) > 1:
        raise ValueError("it must be a share from 0 to 1")
    return result


def whole(value: Any) -> int:
    """Return a whole number, also of 3.0 and "3"."""
    result = number(value)
    if not result.is_integer() or not -INTEGER <= result < INTEGER:
        raise ValueError("it must be a whole number")
    return int(result)


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it must be true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("it must be text")
    return value


def names(value: Any) -> list[str]:
    """Return a list of names; also of text with commas between them."""
    if value in (False, "", []):
        return []
    parts = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(name, str) and name for name in parts):
        raise ValueError("it must be a list of names")
    return parts


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it must be a mapping")
    return value


def entries(value: Any) -> list[dict[str, Any]]:
    """Return a list of mappings; [] for false."""
    if value in (False, [], ""):
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError("it must be a list of mappings")
    return value


def files(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else names(value)


def word(value: Any) -> str:
    """Return text; "" for false, which switches some keys off."""
    return "" if value is False or value == "" else text(value)


def switch(value: Any) -> bool | str:
    """Return true, false, auto or full."""
    if not isinstance(value, bool) and value not in ("auto", "full"):
        raise ValueError("it must be true, false, auto or full")
    return bool(value) if isinstance(value, bool) else str(value)


def amount(value: Any) -> float:
    """Return a number from 0; 0 for false."""
    return 0.0 if value is False else from_zero(value)


def count(value: Any) -> int:
    """Return a whole number from 1."""
    if (result := whole(value)) < 1:
        raise ValueError("it must be 1 or more")
    return result


def texts(value: Any) -> dict[str, str]:
    """Return a mapping of texts to texts."""
    if not isinstance(value, dict) or not all(isinstance(name, str) and name for name in value.values()):
        raise ValueError("it must be a mapping of names")
    return value


def epochs(value: Any) -> int:
    passes = number(value)
    if not passes.is_integer() or passes < 1:
        nearest = max(1, round(passes))
        raise Nearest(
            f"train.epochs is whole: {nearest} is written; for a part set train.max_steps, or data.limit", nearest
        )
    return int(passes)


def uri(value: Any) -> str:
    """Return an address. Raises Nearest for one with a secret, which no recipe holds."""
    if hidden(text(value)) != value:
        raise Nearest("it holds a secret: export it, and set tracking.uri to ${NAME}")
    return text(value)


def steps(value: Any) -> int:
    """Return a number of updates. Raises Nearest for a share of all, which depends on the rows."""
    count = number(value)
    if 0 < count < 1:
        raise Nearest("a share of the updates, which depend on the rows: `trnflow plan` says how many there are")
    if count < 1:
        raise Nearest("no number of updates")
    return whole(value)


def if_any(read: Callable[[Any], float]) -> Callable[[Any], float | None]:
    """Return a conversion to a number; to None for 0 and less, which switch the key off."""
    return lambda value: result if (result := read(value)) > 0 else None


norm = if_any(number)


def above_zero(value: Any) -> float:
    if (result := number(value)) <= 0:
        raise Nearest("no number above 0: the usual one is used")
    return result


def from_one(value: Any) -> int:
    if (result := whole(value)) < 1:
        raise Nearest("no number from 1: the usual one is used")
    return result


OPTIMIZERS = {
    **dict.fromkeys(
        ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "paged_adamw", "paged_adamw_32bit", "adamw"),
        "adamw",
    ),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit", "adamw_torch_8bit", "ao_adamw_8bit"), "adamw_8bit"),
    "adafactor": "adafactor",
}  # fmt: skip
FEWER_BITS = ("adamw_torch_4bit", "ao_adamw_4bit", "ao_adamw_fp8")


def optimizer(value: Any) -> str:
    if value in FEWER_BITS:
        raise Nearest("no moments in 4 bits or fp8: adamw_8bit is written", "adamw_8bit")
    if text(value) not in OPTIMIZERS:
        raise ValueError(
            "trnflow has adamw, adamw_8bit and adafactor, and another optimizer needs another learning rate"
        )
    return OPTIMIZERS[value]


SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant_with_warmup": "constant", "constant": "constant"}


def schedule(value: Any) -> str:
    if text(value) not in SCHEDULES:
        raise Nearest("trnflow has linear, cosine, constant and warmup_stable_decay: cosine is written", "cosine")
    return SCHEDULES[value]


LOOK = "`trnflow ui` shows each run in MLflow; tracking.also names other trackers"
OURS = "trnflow chooses it for the machine; the result is the same up to rounding"
SAVED = "each result has a key of its own; a killed run goes on by itself"
READ = "rows are loaded once and cached; batches are packed beforehand"
HUB = "`trnflow publish` puts a model on the hub"
MACHINE = "the machine decides how devices share the work: --on NAME"


def all_of(rule: Rule, *keys: str) -> dict[str, Rule]:
    return dict.fromkeys(keys, rule)


TRAINER: Table = {
    "learning_rate": to("train.learning_rate", number),
    "max_steps": part("train.max_steps", whole),
    "weight_decay": to("train.weight_decay", number),
    "adam_beta1": to("train.beta1", number),
    "adam_beta2": to("train.beta2", number),
    "adam_epsilon": to("train.eps", above_zero),
    "max_grad_norm": to("train.max_grad_norm", norm),
    "label_smoothing_factor": to("train.label_smoothing", number),
    "neftune_noise_alpha": to("train.neftune_noise_alpha", if_any(number)),
    "group_by_length": to("train.group_by_length", flag),
    "dataloader_drop_last": to("train.last_batch", lambda value: "drop" if flag(value) else "pad"),
    "seed": to("train.seed", whole),
    "torch_compile": part("train.compile", switch),
    "gradient_accumulation_steps": part("train.global_batch", count),
    "warmup_ratio": part("train.warmup_ratio", ratio),
    "warmup_steps": part("train.warmup_ratio", from_zero),
    "bf16": part("train.dtype", switch),
    "fp16": part("train.dtype", switch),
    "eval_steps": part("train.eval_every", number),
    "eval_strategy": part("train.eval_every_epoch", text),
    "evaluation_strategy": part("train.eval_every_epoch", text),
    "load_best_model_at_end": to("train.keep_best", flag),
    "metric_for_best_model": part("train.best_metric", text),
    "early_stopping_patience": to("train.early_stopping_patience", if_any(whole)),
    "logging_steps": to("train.log_every", steps),
    "save_steps": to("train.checkpoint_every", steps),
    "save_total_limit": to("train.keep_checkpoints", from_one),
    "mlflow_experiment_name": to("tracking.experiment", text),
    "mlflow_tracking_uri": to("tracking.uri", uri),
    **all_of(
        nothing("training saves its state every train.checkpoint_every updates"),
        "save_strategy", "save_only_model", "save_safetensors", "save_first_step",
    ),
    **all_of(
        nothing(SAVED), "output_dir", "overwrite_output_dir", "run_name", "logging_dir",
        "auto_resume_from_checkpoints",
    ),
    **all_of(
        nothing(READ), "dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor", "streaming",
        "remove_unused_columns", "dataset_num_proc", "preprocessing_num_workers", "preprocessing_batch_size", "buffer_size",
        "overwrite_cache",
    ),
    **all_of(
        nothing(LOOK), "report_to", "logging_strategy", "logging_first_step", "disable_tqdm", "use_tensorboard", "plot_loss",
        "include_num_input_tokens_seen", "include_tokens_per_second", "use_swanlab", "swanlab_project", "swanlab_workspace",
        "swanlab_run_name", "swanlab_mode", "swanlab_logdir", "trackio_project_name", "trackio_run_name", "trackio_space_id",
        "use_trackio", "profiler_steps", "profiler_steps_start",
    ),
    **all_of(
        nothing(HUB), "push_to_hub", "hub_model_id", "hub_strategy", "hub_revision", "hub_private_repo", "hub_token",
        "hf_hub_token", "push_dataset_to_hub", "hf_use_auth_token",
    ),
    **all_of(
        nothing(MACHINE), "deepspeed", "fsdp", "fsdp_config", "fsdp_version", "fsdp_final_state_dict_type",
        "fsdp_transformer_layer_cls_to_wrap", "ddp", "ddp_timeout", "ddp_backend", "ddp_bucket_cap_mb",
        "ddp_broadcast_buffers", "ddp_find_unused_parameters", "accelerator_config", "local_rank", "world_size", "device",
        "device_map", "use_ray", "ray_run_name", "ray_num_workers", "ray_init_kwargs", "resources_per_worker",
        "tensor_parallel_size", "dp_shard_size", "dp_replicate_size", "master_addr", "master_port",
        "low_cpu_mem_usage", "offload_folder",
    ),
    **all_of(
        nothing(OURS), "tf32", "gradient_checkpointing_kwargs", "use_reentrant_gc", "use_liger_kernel", "enable_liger_kernel",
        "torch_empty_cache_steps", "cache_dir", "use_fast_tokenizer", "eval_accumulation_steps", "full_determinism",
        "torch_compile_backend", "torch_compile_mode", "torch_compile_options",
    ),
    "data_seed": nothing("train.seed decides the order of rows"),
    "greater_is_better": nothing("trnflow knows of each metric which way is better"),
    "optim_args": lacks("the optimizer's further arguments: train.beta1, train.beta2 and train.eps are those there are"),
    "lr_scheduler_kwargs": lacks("schedules have train.warmup_ratio and train.decay_ratio alone"),
    "resume_from_checkpoint": lacks("a killed run goes on by itself; train.warm_start_from begins with a model of the store"),
    "fp8": lacks("no fp8: train.dtype is written as if it were off"),
    "fp8_enable_fsdp_float8_all_gather": nothing(MACHINE),
    "auto_find_batch_size": nothing("train.micro_batch=auto finds what fits"),
}  # fmt: skip
"""{key: rule} of both programs."""


def set_warmup(t: Translation, counts: Callable[[float, int], int]) -> None:
    """Write train.warmup_ratio. counts: from a share and all updates to the updates of warm-up there."""
    total, updates, share = t.get("train.max_steps"), t.values.get("warmup_steps"), t.values.get("warmup_ratio")
    # Trainer hands warm-up to constant_with_warmup alone
    if t.values.get("lr_scheduler", t.values.get("lr_scheduler_type")) == "constant":
        for key in ("warmup_steps", "warmup_ratio"):
            if key in t.values:
                t.ignore(key, "the schedule constant has no warm-up there")
        return
    key = "warmup_steps" if updates else "warmup_ratio"
    if updates and share is not None:
        t.ignore("warmup_ratio", "warmup_steps counts")
    value: float = updates or share or 0.0
    if value < 1:
        if key in t.values:
            ours = share_of(counts(value, total), total, value) if total else value
            t.set("train.warmup_ratio", ours, key)
    elif not total:
        t.lack(
            key,
            f"the updates follow from the rows: set train.warmup_ratio to {value:g} / the updates of `trnflow plan`",
        )
    elif value > total:
        t.lack(key, f"training ends before, after {total} updates, and train.warmup_ratio is below 1")
    else:
        t.set("train.warmup_ratio", share_of(int(value), total), key)


def share_of(updates: int, total: int, usual: float | None = None) -> float:
    """Return the share of which trnflow, which rounds up, makes `updates` of `total`: `usual` if it does."""
    share = updates / total if usual is None else usual
    # a share is below 1, and 0.07 * 100 is 7.000000000000001
    return share if updates < total and math.ceil(total * share) == updates else max(0.0, updates - 0.5) / total


def set_steps(t: Translation) -> None:
    """Write train.max_steps; -1 and 0 mean none there."""
    if (value := t.values.get("max_steps")) is not None:
        if value > 0:
            t.set("train.max_steps", value, "max_steps")
        else:
            t.ignore("max_steps", "epochs count")


SHARED = ("context_parallel_size", "sequence_parallel_degree", "tensor_parallel_size")
"""Keys of how many devices work on the same rows."""


def set_batch(t: Translation, micro: str, rows: int, accumulated: int, *others: str) -> None:
    """Write the global batch for the devices that the user named, else one. micro: the key of a pass's rows."""
    # their batch is of one device, ours of all
    named = t.given.get("train")
    devices = whole(named["devices"]) if isinstance(named, dict) and str(named.get("devices")).isdecimal() else 1
    alike = math.prod(n for key in SHARED if type(n := t.values.get(key)) is int and n > 0)
    batch = rows * accumulated * max(1, devices // alike)
    t.set("train.global_batch", batch, micro, "gradient_accumulation_steps", *others, why=t.usual)
    t.set("train.micro_batch", rows, micro)
    if devices == 1:
        t.notes.append(
            f"train.global_batch={batch} is for one device: for N devices there, give train.global_batch=N x {batch}"
            + (f" / {alike}, as {alike} of them share their rows" if alike > 1 else "")
        )


def set_rest(t: Translation) -> None:
    """Write what train.compile, the metric and the evaluations are, what type the published weights have, and that nothing is
    exported."""
    if (value := t.values.get("torch_compile")) is not None:
        if value in (True, "auto"):
            t.set("train.compile", True, "torch_compile")
        else:
            t.ignore("torch_compile", "off there, as here")
    if (value := t.values.get("metric_for_best_model")) is not None:
        if value in ("loss", "eval_loss"):
            t.set("train.best_metric", "eval_loss", "metric_for_best_model")
        else:
            t.lack("metric_for_best_model", "train.best_metric names trnflow's own metrics; eval_loss counts")
    _set_evaluations(t)
    t.default("consolidate.dtype", "base", "the type of the model that training begins with")
    t.default("export.target", "none", "or gguf, onnx, stablehlo, for programs without PyTorch")


def _set_evaluations(t: Translation) -> None:
    """Write when training evaluates."""
    keys = ("eval_strategy", "evaluation_strategy", "eval_steps", "evals_per_epoch")
    there = {key: t.values[key] for key in keys if key in t.values}
    if t.get("evaluate.split") != "validation":
        for key in there:
            t.ignore(key, "there are no validation rows")
        return
    total = t.get("train.max_steps")
    if "evals_per_epoch" in there:
        times = there["evals_per_epoch"]
        if times > 1 and total:
            t.set("train.eval_every_epoch", False, "evals_per_epoch")
            t.set("train.eval_every", math.ceil(total / (times * (t.get("train.epochs") or 1))), "evals_per_epoch")
        else:
            t.set("train.eval_every_epoch", times > 0, "evals_per_epoch")
        # in updates, which depend on the rows
        if times > 1 and not total:
            why = "updates of an epoch follow from the rows: one evaluation an epoch, train.eval_every adds"
            t.lack("evals_per_epoch", why)
        return
    way = next((key for key in keys[:2] if key in there), "")
    wanted = there.get(way, "steps" if "eval_steps" in there else "no")
    t.set("train.eval_every_epoch", wanted == "epoch", way)
    if wanted == "steps":
        every = there.get("eval_steps", t.get("train.log_every") or 500)
        try:
            every = (
                math.ceil(total * every)
                if total and 0 < every < 1
                else t.read(steps, "eval_steps", every, "train.eval_every")
            )
        except Nearest as error:
            t.lack("eval_steps", error.why)
        else:
            t.set("train.eval_every", every, "eval_steps")
    elif "eval_steps" in there:
        t.ignore("eval_steps", f"{way}={wanted}")


def hold_out(t: Translation, split: Tree, *keys: str) -> None:
    """Write the splits that are made, {} for none, and what is evaluated."""
    # not set, a tenth of train would become a test split
    t.set("data.split", split, *keys, why=f"{t.program} holds out none by default")
    if split:
        t.notes.append(
            f"{keys[0]}: about this share is held out, as each row is drawn by what it holds; {t.program} holds out "
            "exactly this share"
        )
    validates = bool(split or (t.get("data.splits") or {}).get("validation"))
    if validates:
        t.set("evaluate.split", "validation", why="the rows that they hold out")
    else:
        t.set("evaluate.split", "train", why="no rows are held out: add to data.split")
