"""Losses and metrics of embeddings beside sentence-transformers', equal over ranks, and what rows may hold."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.clients.conftest import RunClient, run_client
from tests.helpers.products import sampled
from tests.training.run_stage import FolderPartial, Stage, files_of, kill_after, run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, VOCABULARY, pretrained, write_packed
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.tokenization.apart_encoder import cut_longest
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.evaluation.row_outputs import texts_apart
from trnflow.tasks.kinds.embedding import Embedding
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.kinds.reranker import number_of_query
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches.sampler import Schedule, Split
from trnflow.tasks.training.objective import refuse_batches

__all__ = ["run_client"]
CASES = {
    "pairs": (["anchor", "positive"], "mean"),
    "triplets": (["anchor", "positive", "negative"], "cls"),
    "scores": (["score"], "mean"),
}
COMMON: dict[str, Any] = {
    "engine": "native", "global_batch": 8, "learning_rate": 3e-3, "weight_decay": 0.0, "log_every": 1, "max_steps": 20,
    "seed": 5,
}  # fmt: skip
CLIENT = "sentence-transformers"


def started(folder: Path) -> Source:
    """A model with all its weights, and a tokenizer, in `folder`."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(1)
    fields = {name: value for name, value in BERT.items() if name != "model_type"}
    config = transformers.BertConfig(**fields, **DRY, vocab_size=VOCABULARY, pad_token_id=0, initializer_range=0.2)
    transformers.BertModel(config).save_pretrained(folder)
    words = {"[PAD]": 0, "[UNK]": 1, **{f"w{number}": number for number in range(2, VOCABULARY)}}
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="[PAD]").save_pretrained(folder)
    return pretrained(folder)


def packed_texts(folder: Path, labels: list[str], pooling: str, length: int = 24) -> Input:
    """Rows of several texts, each a segment with positions from 0; numbers of texts by their tokens."""
    random = np.random.default_rng(3)
    texts = 2 if len(labels) == 1 else len(labels)

    def split(count: int) -> dict[str, np.ndarray]:
        columns = {name: np.zeros((count, length), int) for name in ("input_ids", "segment_ids", "position_ids")}
        targets = []
        for row in range(count):
            at, numbers, shared = 0, [], random.integers(4, VOCABULARY, 2)
            for text in range(texts):
                size = int(random.integers(3, length // texts + 1))
                ids = random.integers(4, VOCABULARY, size)
                ids[: 2 if text < 2 else 0] = shared[: 2 if text < 2 else 0]
                here = slice(at, at + size)
                columns["input_ids"][row, here], columns["segment_ids"][row, here] = ids, text + 1
                columns["position_ids"][row, here], at = np.arange(size), at + size
                numbers += number_of_query(str(ids))
            targets.append([float(random.integers(0, 6))] if len(labels) == 1 else numbers)
        return {**columns, "labels": np.array(targets)}

    packed = write_packed(
        folder, "embedding", labels, {name: {length: split(n)} for name, n in (("train", 48), ("validation", 9))}
    )
    packed.meta["head"] = {"texts": texts, "pooling": pooling, "normalize": True}
    return packed


THEIR_TRAINER = """
import json, sys
import numpy as np, torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers import losses
from sentence_transformers.models import Pooling, Transformer
folder, batches, pooling, loss, to = sys.argv[1:]
stored = np.load(batches)
steps = 1 + max(int(name.split("/")[0]) for name in stored)
rows = [{name.split("/")[1]: torch.from_numpy(stored[name]) for name in stored if int(name.split("/")[0]) == step} for step in range(steps)]
word = Transformer(folder)
model = SentenceTransformer(modules=[word, Pooling(word.get_word_embedding_dimension(), pooling)], device="cpu")
class InOrder(SentenceTransformerTrainer):
    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(rows, batch_size=None, shuffle=False, collate_fn=lambda item: item)
arguments = SentenceTransformerTrainingArguments(
    to, max_steps=steps, learning_rate=3e-3, weight_decay=0.0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
)
trainer = InOrder(model, arguments, train_dataset=Dataset.from_dict({"a": [""] * steps, "b": [""] * steps}), loss=getattr(losses, loss)(model))
trainer.train()
print(json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))
"""


def write_batches(packed: Input, file: Path) -> None:
    """The batches of training as sentence-transformers' features: `<step>/<column>`."""
    train = Split(packed, "train")
    schedule = Schedule(train.rows, COMMON["global_batch"], seed=COMMON["seed"], last_batch="drop")
    arrays = {}
    for step in range(COMMON["max_steps"]):
        batch = train.read(schedule.address(step))
        for name, text in zip("abc", texts_apart(batch, Embedding()), strict=False):
            arrays[f"{step}/{name}_input_ids"] = text.input_ids.astype(np.int64)
            arrays[f"{step}/{name}_attention_mask"] = text.segment_ids.astype(np.int64)
        if batch.targets.shape[1] == 1:
            arrays[f"{step}/label"] = batch.targets[:, 0]
    np.savez(file, **arrays)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_the_trainer_of_sentence_transformers(
    case: str, tmp_path: Path, run_client: RunClient
) -> None:
    labels, pooling = CASES[case]
    source, packed = started(tmp_path / "model"), packed_texts(tmp_path / "packed", labels, pooling)
    ours = run_stage(traced_and_trained, TrainConfig(**COMMON), tmp_path / "run", model=source, packed=packed).curve(
        "loss"
    )
    write_batches(packed, tmp_path / "batches.npz")
    loss = "CoSENTLoss" if case == "scores" else "MultipleNegativesRankingLoss"
    theirs = run_client(
        CLIENT, THEIR_TRAINER, tmp_path / "model", tmp_path / "batches.npz", pooling, loss, tmp_path / "theirs"
    )
    assert len(theirs) == len(ours) == 20 and theirs[-1] < 0.9 * theirs[0]
    apart = max(abs(a - b) for a, b in zip(ours.values(), theirs, strict=True))
    print(f"{case}: largest difference of 20 losses {apart:.2g}")
    assert apart <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("case", ["pairs", "scores"])
def test_several_ranks_and_engine_xla_see_the_whole_batch(case: str, tmp_path: Path) -> None:
    labels, pooling = CASES[case]
    inputs = {"model": started(tmp_path / "model"), "packed": packed_texts(tmp_path / "packed", labels, pooling)}
    curves = {}
    for name, more in {"one": {}, "two": {"devices": 2, "fsdp": True}, "xla": {"engine": "xla", "devices": 2}}.items():
        config = TrainConfig(**{**COMMON, "max_steps": 8, "last_batch": "pad", **more})
        run = run_stage(traced_and_trained, config, tmp_path / name, **inputs)
        curves[name] = [*run.curve("loss").values(), *run.curve("eval_loss").values()]
    for name in ("two", "xla"):
        apart = max(abs(a - b) for a, b in zip(curves["one"], curves[name], strict=True))
        print(f"{case} {name}: largest difference {apart:.2g}")
        assert apart <= 1e-5
