"""Vectors of texts by a model's body, each text by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input
from trnflow.tasks.data.tokenization.encoders import ClassEncoder
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.kinds.embedding import normalised
from trnflow.tasks.kinds.registry import KINDS

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta
    from trnflow.tasks.training.shared_types import Built


def model_vectors(
    built: Built, packed: Input[PackedMeta], texts: Sequence[str], batch: int, report: Callable[[int, int], None]
) -> Any:
    """Return float32 [texts, numbers], of length 1: the mean over a text's tokens, or what `format.pooling` says.

    packed: has the tokenizer, and the length to which texts are cut; batch: texts of a forward pass.
    """
    import numpy as np
    import pyarrow as pa
    import torch

    distinct = sorted({*texts})
    encoder = ClassEncoder(read_tokenizer(packed.path / "tokenizer"), packed.meta["max_length"], "truncate")
    encoded = encoder.encode(pa.table({"text": distinct, "label": np.zeros(len(distinct), np.int64)}))
    rows = np.split(encoded.ids, np.cumsum(encoded.sizes)[:-1])
    kind, body, parts = KINDS["embedding"], built.model.base_model, list[Any]()
    head = {**(packed.meta.get("head") or kind.head({})), "texts": 1}
    order = np.argsort(encoded.sizes, kind="stable")
    with torch.inference_mode():
        for start in range(0, len(order), batch):
            ids = [torch.from_numpy(rows[at].astype(np.int64)) for at in order[start : start + batch]]
            padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=packed.meta["pad_id"])
            there = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
            given = {"input_ids": padded.to(body.device), "attention_mask": there.to(body.device)}
            parts.append(kind.logits_of(body(**given), given["attention_mask"], head).float().cpu().numpy())
            report(start + len(ids), len(order))
    vectors = np.empty((len(distinct), parts[0].shape[1]), np.float32)
    vectors[order] = normalised(np.concatenate(parts))
    places = {text: at for at, text in enumerate(distinct)}
    return vectors[[places[text] for text in texts]]
