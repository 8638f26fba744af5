"""Write the model card, `README.md`. It has no date, path or row of data, so that the same model has the same card."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of

if TYPE_CHECKING:
    from trnflow.tasks.metadata import CheckpointMeta


class CardSource(NamedTuple):
    """The model with whose weights training began: its name on the hub, and their digest; both None from scratch."""

    name: str | None = None
    weights: str | None = None


def write_card(
    folder: Path,
    shards: CheckpointMeta,
    config: Meta,
    base: CardSource,
    *,
    adapter: bool = False,
    decision: Meta | None = None,
) -> None:
    """Write the card of a model, or of a LoRA adapter. shards: metadata of the checkpoint; config: `config.json`; decision:
    what the task chose on validation."""
    from huggingface_hub import ModelCardData

    known = ModelCardData(
        library_name="peft" if adapter else _opener(shards["task"]).partition(".")[0].replace("_", "-"),
        pipeline_tag=kind_of(shards["task"]).pipeline,
        base_model=base.name,
        tags=["trnflow", *(["lora"] if adapter else [])],
    )
    said = "" if adapter else kind_of(shards["task"]).said_of(decision or {})
    parts = [f"---\n{known.to_yaml()}\n---", *_paragraphs(shards, config, base, adapter, said)]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _paragraphs(shards: CheckpointMeta, config: Meta, base: CardSource, adapter: bool, said: str) -> Iterable[str]:
    architecture = (config.get("architectures") or [config["model_type"]])[0]
    yield f"# {architecture}{', a LoRA adapter' if adapter else ''}"
    yield f"A model for {kind_of(shards['task']).pipeline.replace('-', ' ')}, {_origin(base)} with trnflow."
    yield _how_to_open(shards, config, base.name, adapter)
    if said:
        yield said
    if adapter and not kind_of(shards["task"]).per_row:
        yield "peft takes the end of a text from the base model. That of the training is in this folder:"
        yield "    model.generation_config = transformers.GenerationConfig.from_pretrained(FOLDER)"
    if (labels := shards.get("labels")) and not kind_of(shards["task"]).apart:  # whose target is no output
        yield "## Labels\n\n" + table(("id", "label"), enumerate(labels))
    facts = {"data": shards.get("data"), "steps": shards.get("steps"), "best_step": shards.get("best_step")}
    rows = [(name, value) for name, value in {**facts, **shards.get("settings", {})}.items() if value is not None]
    if rows:
        yield "## Training\n\n" + table(("setting", "value"), rows)
    if shards.get("metrics"):
        what = "Names with `eval_` are of the validation split; those with `_before` are from before training."
        yield f"## Figures\n\n{what}\n\n" + table(("figure", "value"), shards["metrics"].items())


def _origin(base: CardSource) -> str:
    if base.name is not None:
        return f"fine-tuned from `{base.name}`"
    return f"fine-tuned from the weights `{base.weights}`" if base.weights else "trained from scratch"


def _opener(task: str) -> str:
    """Return the call that opens a model's folder, of the library in which users of the task serve it."""
    kind = kind_of(task)
    cut = ", truncation=True" * (kind.pipeline == "text-classification")  # else a long text is not read as in training
    return kind.opener or f'transformers.pipeline("{kind.pipeline}", model=FOLDER{cut})'


def _how_to_open(shards: CheckpointMeta, config: Meta, base: str | None, adapter: bool) -> str:
    if not adapter:
        return f"    {_opener(shards['task'])}"
    kind = kind_of(shards["task"])
    # peft takes the head's size, by what a pipeline shows its outputs, and which token the head passes over, from the base
    head: Meta = {"num_labels": len(shards.get("labels") or ()) or None, "problem_type": kind.problem_type}
    if kind.auto_class == Kind.auto_class:
        head["pad_token_id"] = config.get("pad_token_id")
    given = "".join(
        f", {name}={json.dumps(value)}" for name, value in head.items() if value is not None and not kind.apart
    )
    if base is None:
        opened = f" by `transformers.{kind.auto_class}.from_pretrained(BASE{given})`" if given else ""
        return (
            f"The base model has no name on the hub: open it first{opened}, "
            "then `peft.PeftModel.from_pretrained(base, FOLDER)`."
        )
    return f"    peft.AutoPeft{kind.auto_class.removeprefix('Auto')}.from_pretrained(FOLDER{given})"


def table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join([f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *lines])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    # labels and names must mean no Markdown or HTML
    for sign in "\\`*_[]|~#":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").split())
