"""What a model's own `config.json` says of its head, beside the labels of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of

ACTIVATIONS = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Where sentence-transformers says what a cross-encoder makes of its logits."""


def remarks_of_head(config: Meta, chunks: Mapping[str, Any]) -> Iterator[str]:
    """Yield what training replaces of a model that has a head already. chunks: as `positions_needed`."""
    if not chunks.get("task") or not str((config.get("architectures") or [""])[0]).endswith("Classification"):
        return
    kind = kind_of(chunks["task"])
    if kind.queries and any(name in config for name in ACTIVATIONS):
        yield "what the model's config.json makes of its scores is replaced by the sigmoid, by which a reranker learns"
    entries = (config.get("id2label") or {}).items()
    own = [str(label) for _, label in sorted(entries, key=lambda entry: int(entry[0]))]
    if own != [f"LABEL_{number}" for number in range(len(own))]:
        yield from _exchanged(own, [*(chunks.get("labels") or ())], kind)


def remarks_of_start(start: Mapping[str, Any], packed: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the head of `train.warm_start_from` learnt of other labels. start: metadata of its model or checkpoint."""
    own, labels, kind = [*(start.get("labels") or ())], [*(packed["labels"] or ())], kind_of(packed["task"])
    if own and labels and len(own) != len(labels) and not kind.queries:
        yield f"the model of train.warm_start_from has {len(own)} labels, and the rows have {len(labels)}: its head begins anew"
    yield from _exchanged(own, labels, kind)


def _exchanged(own: list[str], labels: list[str], kind: Kind) -> Iterator[str]:
    """Yield how the outputs of a head that training goes on with are given other labels."""
    if len(own) != len(labels) or own == labels or kind.queries:
        return  # a head of another size is learnt anew
    lower = [label.lower() for label in own]
    if {*lower} == {label.lower() for label in labels}:
        names = sorted(labels, key=lambda label: lower.index(label.lower()))
        setting = f"{'data' if kind.one_class else 'format'}.labels=[{', '.join(names)}]"
        if names != labels:
            yield f"the model's head has these labels in another order, and begins with them exchanged: set {setting}"
    else:
        yield f"the model's labels {_some(own)} are replaced by {_some(labels)}: its head begins with what it learnt of its own"


def _some(labels: list[str]) -> str:
    return ", ".join(labels[:6]) + (", ..." if len(labels) > 6 else "")
