"""What training divides the loss by, and the weights of classes."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training.batches.sampler import IGNORED, Batch, Split
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.preference_losses import PREFERENCES, task_of

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta


def learnt(config: TrainConfig, packed: Input[PackedMeta]) -> Input[PackedMeta]:
    """Return packed rows with the task and labels of the model that the objective trains on them."""
    task = task_of(config.objective, packed.meta["task"])
    if task == packed.meta["task"]:
        return packed
    meta: PackedMeta = {**packed.meta, "task": task, "labels": kind_of(task).labels_of(None, lambda: (), ())}
    return replace(packed, meta=meta)


def class_weights(config: TrainConfig, packed: PackedMeta, train: Split | None) -> tuple[float, ...] | None:
    """Return each class's weight, or None. Raises ConfigError for a task without classes or an unknown label.

    train: None when only graphs are traced.
    """
    wanted, labels = config.class_weights, packed["labels"] or []
    if config.label_smoothing and kind_of(packed["task"]).target_type == "float32":
        raise ConfigError(
            f"train.label_smoothing is for classes and tokens, and the task is {packed['task']}",
            "leave train.label_smoothing out",
        )
    if wanted is None or wanted == "auto":
        assert wanted is None or train is None, "the plan decides what auto is"
        return None
    if not kind_of(packed["task"]).one_class:
        raise ConfigError(
            f"train.class_weights is set, and the task {packed['task']} has no classes", "leave train.class_weights out"
        )
    if wanted == "balanced":
        # graphs depend on whether there are weights, not on their values
        counts = train.class_counts(len(labels)) if train else [1] * len(labels)
        return tuple(sum(counts) / (len(labels) * count) if count else 1.0 for count in counts)
    for name in wanted:
        if name not in labels:
            near = difflib.get_close_matches(name, labels, n=1)
            fix = f"did you mean {near[0]}?" if near else f"the labels are {', '.join(labels)}"
            raise ConfigError(f"train.class_weights names {name!r}, which is not a label of these rows", fix)
    return tuple(float(wanted.get(label, 1.0)) for label in labels)


def refuse_batches(config: TrainConfig) -> None:
    """Raise ConfigError for settings with which texts would not be compared with all others of their batch."""
    rows = f"train.global_batch={config.global_batch}"
    if config.global_batch < 2:
        raise ConfigError(f"{rows}: a text's negatives are the other rows of its batch", "raise train.global_batch")
    if config.engine == "xla" and config.micro_batch != "auto" and config.accumulation > 1:
        raise ConfigError(
            f"{rows} in {config.accumulation} passes (train.micro_batch={config.micro_batch}, {config.data_parallel} data "
            "parallel devices): a text's negatives are the other rows of its batch, and on engine xla passes do not see each "
            "other's",
            f"set train.engine=native, or train.micro_batch={config.global_batch // config.data_parallel}",
        )
    unfit = {
        "tensor_parallel_size above 1": config.tensor_parallel_size > 1,
        "xla_processes=per_device": config.engine == "xla" and config.xla_processes == "per_device",
        "method=head": config.method == "head",
    }
    for setting, is_set in unfit.items():
        if is_set:
            raise ConfigError(f"train.{setting} is not for embedding", "leave it out")


def refuse_loss(config: TrainConfig, task: str) -> None:
    """Raise ConfigError if the task's losses are computed from parts of the vocabulary or of the batch, or its targets hold
    more than is learnt."""
    if kind_of(task).apart:
        refuse_batches(config)
    _refuse_rows(config.objective, task)
    if config.loss and kind_of(task).queries:
        raise ConfigError(f"train.loss is not for {task}, whose targets number the queries", "leave train.loss out")
    if config.loss and not kind_of(task).per_row and config.tensor_parallel_size > 1:
        raise ConfigError(
            "train.loss reads all logits of a token, and with tensor_parallel_size above 1 a device has a part of them",
            "set train.tensor_parallel_size=1, or leave train.loss out",
        )


def _refuse_rows(objective: str, task: str) -> None:
    """Raise ConfigError for an objective on pairs or marked answers whose rows are others. task: of the rows or the model."""
    entry, pairs = PREFERENCES.get(objective), kind_of(task).pairs
    if entry and task in (entry.rows, entry.task):
        return
    suits = " or ".join(name for name, other in PREFERENCES.items() if task in (other.rows, other.task))
    if pairs and not entry:
        raise ConfigError(
            f"train.objective={objective} learns every answer, and those of format.task={task} are compared",
            f"set train.objective={suits}, which these columns suit",
        )
    if entry and pairs:
        raise ConfigError(
            f"train.objective={objective} reads rows of format.task={entry.rows}, and the task is {task}",
            f"set format.task={entry.rows}, or train.objective={suits}, which these columns suit",
        )
    if entry:
        columns = "prompt, completion and label" if entry.marked else "prompt, chosen and rejected"
        raise ConfigError(
            f"train.objective={objective} compares answers, and the task {task} has one",
            f"set format.task={entry.rows} for rows of {columns}, or train.objective=sft, which these suit",
        )


def target_weight(batch: Batch, weights: tuple[float, ...] | None) -> float:
    """Return the sum of the targets' class weights, by which the loss is divided."""
    if weights is None:
        return batch.supervised
    import numpy as np

    return float(np.array(weights)[batch.targets[batch.targets != IGNORED]].sum())
