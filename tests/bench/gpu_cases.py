"""The cases of `gpu_training`: models of random weights, the same for each way, and rows.

llama: all weights of a Llama of 1.1 B parameters (TinyLlama's sizes), 8 rows of 2,048 tokens. packed: the same rows hold
eight documents each. llama-4096, llama-512: as many tokens in longer and in shorter rows. lora, qlora: rank 16 in every
linear layer, on a base in bf16 or nf4. qlora-7b: 4 of the 32 layers of Llama-2-7B. bert: BERT-base, 64 rows of emotion, or of
random tokens as long as tweets are. dpo: the Llama, 4 rows of 2,048 tokens of pairs, about 16 pairs.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.bench.bench_train import LABELS, Rows, bucketed
from tests.training.toys import write_packed
from trnflow.tasks.artifact import Input

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "vocab_size": 32000,
    "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 4096,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-7b": {
        **LLAMA, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 4, "num_key_value_heads": 32,
    },
    "bert": {"model_type": "bert", "vocab_size": 30522},
}  # fmt: skip
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
BATCHES = 4
"""How many batches of rows are made; training repeats them."""
TWEETS = 16_000
PAIRS = "pairs.json"


class Case(NamedTuple):
    """What is trained. model: of MODELS; documents: in each row; method: full, lora, qlora or dpo."""

    model: str
    rows: int
    length: int
    documents: int = 1
    method: str = "full"
    toy: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """The fields of the model's config.json."""
        fields = MODELS[self.model]
        heads = {"num_key_value_heads": 2} if self.causal else {}
        return {**fields, **SMALL, **heads} if self.toy else fields

    @property
    def causal(self) -> bool:
        return self.model != "bert"

    def as_toy(self) -> Case:
        """Return a case that a processor computes in seconds."""
        return self._replace(rows=4, length=1024 if self.method == "dpo" else 64, toy=True)


CASES = {
    "llama": Case("llama", 8, 2048),
    "packed": Case("llama", 8, 2048, documents=8),
    "llama-4096": Case("llama", 4, 4096),
    "llama-512": Case("llama", 32, 512),
    "lora": Case("llama", 8, 2048, method="lora"),
    "qlora": Case("llama", 8, 2048, method="qlora"),
    "qlora-7b": Case("llama-7b", 8, 2048, method="qlora"),
    "bert": Case("bert", 64, 128),
    "dpo": Case("llama", 4, 2048, method="dpo"),
}


def columns(case: Case) -> dict[str, np.ndarray]:
    """Return packed rows of a causal model."""
    random = np.random.default_rng(0)
    count, length = case.rows * BATCHES, case.length
    at, ids = np.arange(length)[None], random.integers(5, case.config["vocab_size"], (count, length))
    size = -(-length // case.documents)
    segments, positions = (np.broadcast_to(part, ids.shape) for part in (at // size + 1, at % size))
    return {"input_ids": ids, "labels": ids, "segment_ids": segments, "position_ids": positions}


def tweets(case: Case, data: Path) -> tuple[Rows, str]:
    """Return (rows of a classifier, what they are): those of `emotion.npz` in `data`, else random tokens."""
    file, vocabulary = data / "emotion.npz", case.config["vocab_size"]
    if file.exists() and not case.toy:
        with np.load(file) as kept:
            ids = [part.tolist() for part in np.split(kept["ids"].astype(np.int64), np.cumsum(kept["sizes"])[:-1])]
            return Rows(ids, kept["labels"].tolist(), vocabulary), "emotion"
    random = np.random.default_rng(0)
    count = case.rows * BATCHES if case.toy else TWEETS
    sizes = np.clip(random.lognormal(3.0, 0.5, count), 5, case.length).astype(int)
    ids = [random.integers(5, vocabulary, size).tolist() for size in sizes]
    return Rows(ids, random.integers(0, len(LABELS), count).tolist(), vocabulary), "random tokens"


def packed_rows(case: Case, data: Path, folder: Path) -> Input:
    """Write the packed rows of a case that is not dpo."""
    if not case.causal:
        return bucketed(folder, tweets(case, data)[0])
    rows = {"train": {case.length: columns(case)}}
    return write_packed(folder, "causal_lm", None, rows, vocabulary=case.config["vocab_size"])


class Pairs(NamedTuple):
    """Pairs of answers. packed: as `pack_chunks` writes them; file: of TRL's rows; an_update: pairs in a batch, about."""

    packed: Input
    file: Path
    an_update: int


def make_pairs(case: Case, models: Path) -> None:
    """Write the pairs that `pairs_in` reads, and their tokenizer; `pairs.json` last."""
    from tests.bench.bench_preference import LENGTH, answers
    from tests.kinds.preferences import packed_preferences

    folder = models / "pairs"
    shutil.rmtree(folder, ignore_errors=True)
    pack = {"strategy": "bfd", "chunk_length": case.length}
    packed, rows = packed_preferences(folder / "data", answers(40 if case.toy else 200), pack=pack, most=LENGTH)
    packed.meta["rows"] = {"train": packed.meta["rows"]["train"]}  # TRL evaluates nothing here
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    chunks = sum(packed.meta["rows"]["train"].values())
    spec = {"packed": {**asdict(packed), "path": str(packed.path)}, "an_update": round(len(rows) / chunks * case.rows)}
    (models / PAIRS).write_text(json.dumps(spec))


def pairs_in(models: Path) -> Pairs:
    spec = json.loads((models / PAIRS).read_text())
    packed = Input[Any](**{**spec["packed"], "path": Path(spec["packed"]["path"])})
    return Pairs(packed, models / "pairs/rows.jsonl", spec["an_update"])


def model_class(fields: dict[str, Any]) -> tuple[Any, Any]:
    """Return (transformers' config, its auto class)."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    causal = fields["model_type"] == "llama"
    config = AutoConfig.for_model(**fields, use_cache=False, **({} if causal else {"num_labels": len(LABELS)}))
    return config, AutoModelForCausalLM if causal else AutoModelForSequenceClassification


def make_model(fields: dict[str, Any], folder: Path, device: str) -> None:
    """Write a model of random weights, in bf16, and a tokenizer; whole, or not at all."""
    import torch
    from safetensors.torch import save_file

    config, kind = model_class(fields)
    with torch.device("meta"):
        blank = kind.from_config(config)
    torch.manual_seed(0)
    weights = {
        name: torch.ones(p.shape, dtype=torch.bfloat16)
        if p.dim() == 1 and "norm" in name.lower() and name.endswith("weight")
        else torch.empty(p.shape, dtype=torch.bfloat16, device=device).normal_(std=0.02).cpu()
        for name, p in blank.named_parameters()
    }
    unfinished = folder.with_name(f".{folder.name}")
    unfinished.mkdir(parents=True, exist_ok=True)
    save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
    config.architectures, config.dtype = [type(blank).__name__], "bfloat16"
    config.save_pretrained(unfinished)
    _write_tokenizer(unfinished, config.vocab_size)
    unfinished.rename(folder)


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer that reads `w7` as token 7."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({f"w{number}": number for number in range(vocabulary)}, "w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "w0", "pad_token": "w0", "eos_token": "w1"}
    PreTrainedTokenizerFast(tokenizer_object=made, **special).save_pretrained(folder)


def flops(case: Case, data: Path) -> float | None:
    """Return the FLOPs of an update that have to be computed: 6 a weight and token (4 with a frozen base), and attention's
    within a document. None for pairs."""
    import torch

    if case.method == "dpo":
        return None
    config, kind = model_class(case.config)
    with torch.device("meta"):
        model = kind.from_config(config)
    lookups = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)}
    weights = sum(p.numel() for p in model.parameters() if id(p) not in lookups)
    passes = 3 if case.method == "full" else 2
    sizes = np.full(case.rows * case.documents, case.length // case.documents, float)
    if not case.causal:
        sizes = np.array(list(map(len, tweets(case, data)[0].ids)), float)
    share = case.rows * case.documents / len(sizes)  # of all rows, in an update
    pairs = share * float((sizes**2).sum()) / (2 if case.causal else 1)
    # the backward pass of attention is computed for a frozen base, too
    attention = 3 * 4 * config.num_hidden_layers * config.hidden_size * pairs
    return 2 * passes * weights * share * float(sizes.sum()) + attention
