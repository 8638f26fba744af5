"""Small real models, a tokenizer and packed rows for the stages at the end of the pipeline, and a process to run them in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.helpers.kept_inputs import run_whole
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.data.chunks import chunk_file, segments_file, shapes
from trnflow.tasks.data.pack.chunk_writer import create_columns
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.evaluation.models import EAGER
from trnflow.tasks.stage import Workdir
from trnflow.tasks.system.model_process import ENVIRON

PROJECT = Path(__file__).resolve().parents[2]
LABELS = ["anger", "joy", "sad $10"]
WORDS = ("the", "cat", "dog", "sat", "ran", "on", "mat", "what", "does", "it", "do", "answer", "question", "is")
VOCABULARY = 64

Rows = list[tuple[list[int], Any]]


def bert(folder: Path, *, seed: int = 0) -> Input:
    import torch
    from transformers.models.bert import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, initializer_range=0.3, id2label=dict(enumerate(LABELS)),
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    return model_input(folder, "classification", [16, 32], LABELS)


def llama(folder: Path, *, dtype: str = "float32", tied: bool = True) -> Input:
    import torch
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=64, tie_word_embeddings=tied, initializer_range=0.2,
        bos_token_id=1, eos_token_id=2, pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    return model_input(folder, "causal_lm", [16, 32], None)


def mixtral(folder: Path) -> Input:
    """A mixture of four experts, of which two compute each token."""
    import torch
    from transformers.models.mixtral import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(2)
    config = MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=64, num_local_experts=4, initializer_range=0.2, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(folder)
    return model_input(folder, "causal_lm", [16], None)


def roberta_decoder(folder: Path) -> Input:
    """A language model whose positions begin at 2, after the pad id."""
    import torch
    from transformers.models.roberta import RobertaConfig, RobertaForCausalLM

    torch.manual_seed(3)
    config = RobertaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=66, initializer_range=0.3, is_decoder=True, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    RobertaForCausalLM(config).save_pretrained(folder)
    return model_input(folder, "causal_lm", [16, 32], None)


def model_input(folder: Path, task: str, lengths: list[int], labels: list[str] | None) -> Input:
    tokenizer(folder)
    meta = {"task": task, "labels": labels, "lengths": lengths, "dtype": "float32"}
    return Input(folder, "model", meta, "sha256:0")


def tokenizer(folder: Path) -> None:
    """Words, with <s> put in front and </s> behind, as some tokenizers do; kept if the folder has one."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    if (folder / "tokenizer.json").exists():
        return
    words = ["<pad>", "<s>", "</s>", "<unk>", *WORDS]
    made = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    made.add_special_tokens(["<pad>", "<s>", "</s>", "<unk>"])
    made.save(str(folder / "tokenizer.json"))


def random_rows(count: int, task: str, *, longest: int = 32, seed: int = 0) -> Rows:
    """(token ids, the class, or for language models which tokens are supervised) of each row."""
    import numpy as np

    draw = np.random.default_rng(seed)
    rows: Rows = []
    for size in draw.integers(3, longest + 1, count):
        ids = draw.integers(4, VOCABULARY, size).tolist()
        rows.append((ids, int(draw.integers(len(LABELS))) if task == "classification" else draw.random(size) < 0.7))
    return rows


def packed_rows(folder: Path, task: str, splits: dict[str, dict[int, list[Rows]]]) -> Input:
    """A packed artifact. splits: of each, the lengths with their chunks, a chunk being the rows that share it; rows are
    numbered as they come."""
    import numpy as np

    counts: dict[str, dict[str, int]] = {}
    for name, lengths in splits.items():
        first = 0
        counts[name] = {str(length): len(chunks) for length, chunks in lengths.items()}
        for length, chunks in lengths.items():
            _write_bucket(chunk_file(folder, name, length), task, length, chunks)
            sizes = [len(ids) for chunk in chunks for ids, _ in chunk]
            np.save(segments_file(folder, name, length), [(first + at, size) for at, size in enumerate(sizes)])
            first += len(sizes)
    (folder / "tokenizer").mkdir()
    tokenizer(folder / "tokenizer")
    labels = LABELS if task == "classification" else None
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2}
    return Input(
        folder, "packed", {"task": task, "labels": labels, "rows": counts, "lengths": [16, 32], **ids}, "sha256:1"
    )


def _write_bucket(path: Path, task: str, length: int, chunks: list[Rows]) -> None:
    import numpy as np

    columns = create_columns(path, shapes(task, len(chunks), length))
    columns["labels"][:] = -100
    for index, chunk in enumerate(chunks):
        start = 0
        for segment, (ids, target) in enumerate(chunk, 1):
            span = slice(start, start + len(ids))
            columns["input_ids"][index, span] = ids
            columns["segment_ids"][index, span] = segment
            columns["position_ids"][index, span] = range(len(ids))
            if task == "classification":
                columns["labels"][index] = target
            else:
                columns["labels"][index, span] = np.where(target, ids, -100)
            start = span.stop


def workdir(folder: Path, said: list[Meta] | None = None) -> Workdir:
    for part in (folder, folder.with_name(f"{folder.name}-scratch")):
        part.mkdir(parents=True)
    return Workdir(folder, part, (said if said is not None else []).append)


def call(function: str, config: Meta, out: Path, **inputs: Input) -> Meta:
    """One call for `run_calls`. function: "module:name"."""
    parts = {
        name: {"path": str(i.path), "kind": i.kind, "meta": i.meta, "digest": i.digest} for name, i in inputs.items()
    }
    return {"function": function, "config": config, "out": str(out), "inputs": parts}


def run_calls(calls: list[Meta], cwd: Path) -> list[Meta]:
    """Run stages one after another in one fresh process, as the worker does: {"meta": ...} or {"error": ...} of each,
    and "said": what went to the Workdir."""
    spec = cwd / "calls.json"
    spec.write_text(json.dumps(calls))
    environ = {**os.environ, **EAGER, **ENVIRON, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.small_models", str(spec)],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads((cwd / "results.json").read_text()))


def _main(spec: Path) -> None:
    results = []
    for entry in json.loads(spec.read_text()):
        module, name = entry["function"].split(":")
        function = getattr(import_module(module), name)
        config = getattr(import_module(module), function.__annotations__["config"])(**entry["config"])
        inputs = {key: Input(Path(item.pop("path")), **item) for key, item in entry["inputs"].items()}
        said: list[Meta] = []
        try:
            result = {"meta": run_whole(function, config, inputs, workdir(Path(entry["out"]), said))}
        except TrnflowError as error:
            result = {"error": error.to_json()}
        results.append({**result, "said": said})
    spec.with_name("results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
