"""What training needs, asked of settings, sources and metadata before the first stage runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, ModelError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training.batches.sampler import Schedule
from trnflow.tasks.training.config import TrainConfig, check_model, check_positions, positions_needed
from trnflow.tasks.training.devices import (
    check_bitsandbytes,
    check_gpu,
    check_neuron,
    check_torch_neuron,
    check_torch_xla,
)
from trnflow.tasks.training.objective import class_weights, refuse_loss
from trnflow.tasks.training.own_head import remarks_of_head
from trnflow.tasks.training.selection import check_selection

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta, TokensMeta
    from trnflow.tasks.stage import Known

MOST_ENDS = 4
"""Special tokens that may end answers."""


def needs(config: TrainConfig, known: Known) -> Iterator[str]:
    """Yield remarks. Raises ModelError, ConfigError, DataError or MissingDependency if training is bound to fail."""
    model, chunks = known.sources["model"], cast("PackedMeta", known.of("chunks"))
    check_model(config, model)
    if known.here is not None:
        check_torch_xla(config)
        check_bitsandbytes(config)
        check_torch_neuron(config)
    if known.here is not None and config.by_neuronx_cc:
        check_neuron(config)
    if known.here is not None and config.device == "cuda":
        check_gpu(known.here, devices=config.devices)
    # the names of the labels are known with the rows, the task before
    if (task := chunks.get("task")) and (not kind_of(task).one_class or chunks.get("labels")):
        class_weights(config, chunks, None)
    if task:
        refuse_loss(config, task)
    if config.objective != "reward":
        refuse_endless(cast("TokensMeta", known.of("tokens")))
    if "splits" in chunks and "task" in chunks:
        check_selection(config, chunks)
    if "rows" in chunks:
        Schedule({0: sum(chunks["rows"]["train"].values())}, config.global_batch, seed=0, last_batch=config.last_batch)
    positions = positions_of(model.identity["config"])
    if positions is not None and (needed := positions_needed(chunks)):
        check_positions(needed, positions, "the model")
    elif positions is not None and _longest(known) > positions:
        yield f"the model has {positions} positions: no row may be longer, and tokenize.max_length allows it"
    fields = {**(model.identity["config"]["pretrained"] or {}), **model.identity["config"]["overrides"]}
    if fields.get("output_router_logits"):
        yield "the router's loss (output_router_logits) is not added: training minimises the loss of the task alone"
    if config.warm_start_from is None:  # else the head is that model's
        yield from remarks_of_head(model.identity["config"]["pretrained"] or {}, chunks)


def _longest(known: Known) -> int:
    """Return the most tokens that a document may have by the settings; 0 if nothing is known."""
    lengths = known.of("chunks").get("lengths") or []
    limits: list[int] = [known.of("tokens").get("max_length", 0), *lengths[-1:]]
    return min(limits)


def refuse_endless(tokens: TokensMeta) -> None:
    """Raise ConfigError or ModelError for answers of train that no special token ends, or that too many of them do."""
    ends, lacking = tokens.get("ends", []), tokens.get("unended", {}).get("train", 0)
    if len(ends) > MOST_ENDS:
        raise ConfigError(
            f"format.chat_template: answers of train end with {len(ends)} special tokens "
            f"({', '.join(end['text'] for end in ends)}), and at most {MOST_ENDS} can end a text of the published model",
            "choose a template that ends each answer with the same token",
        )
    if not lacking:
        return
    first = tokens["examples"]["unended"]
    where = f"{lacking} of train; the first: split {first['split']} row {first['row']}, {first['what']}"
    what = f"no special token ends the answers, so the model would never learn to stop ({where})"
    if tokens["eos_id"] is None:
        raise ModelError(
            f"the tokenizer has no eos token, and {what}",
            'name one in its tokenizer_config.json, e.g. "eos_token": "</s>", or set model.tokenizer; '
            "tokenize.add_eos=false trains without an end",
        )
    raise ConfigError(
        f"format.chat_template: {what}",
        "let the template write {{ eos_token }} after an answer, within its {% generation %} block (written out, as </s>, for a "
        "tokenizer that tokenize.train makes), or name the token that it writes, such as "
        """'tokenize.new_tokens=["<|im_end|>"]'; tokenize.add_eos=false trains without an end""",
    )


def positions_of(config: Meta) -> int | None:
    """Return `max_position_embeddings` of a model's `identity["config"]`, or None."""
    fields = {**(config["pretrained"] or {}), **config["overrides"]}
    positions = (fields.get("text_config") or fields).get("max_position_embeddings")
    return positions if isinstance(positions, int) else None
