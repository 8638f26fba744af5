"""DPO beside TRL's DPOTrainer: processor time and peak memory, cold and with the reference's log-probabilities cached.

    python -m tests.bench.bench_preference [--pairs 48] [--rounds 3]

A Llama of 3 M random parameters, answers of 40 to 500 tokens, one epoch in fp32 on one thread of the CPU, about 8 pairs an
update. TRL computes the reference with a second model at each step, or beforehand, which it also caches. Each way runs in a
process of its own, in turn; imports and tokenising are left out of the seconds, which are the processor's. Needs `make clients`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.clock import spent
from tests.conftest import PROJECT
from tests.kinds.preferences import BAD, GOOD, packed_preferences, started

LENGTH, PAIRS = 512, 8
"""Most tokens of an answer with its prompt, and pairs of an update of TRL's."""
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4}
WAYS = {
    "ours cold": "ours",
    "ours cached": "ours",
    "trl two models": "trl",
    "trl precomputed": "trl",
    "trl cached": "trl",
}
GOALS = {"ours cold": (1.5, ("trl two models", "trl precomputed")), "ours cached": (2.0, ("trl cached",))}
"""{way: (how many times as fast it should be, as the fastest of these)}."""
THEIRS = """
import json, resource, sys, time, torch, transformers
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer
way, folder = sys.argv[1:]
torch.set_num_threads(1)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder + "/tokenizer")
rows = load_dataset("json", data_files=folder + "/rows.jsonl", cache_dir=f"{folder}/{way}", split="train")
settings = DPOConfig(
    folder + "/out", num_train_epochs=1, per_device_train_batch_size=PAIRS, learning_rate=1e-4, save_strategy="no", bf16=False,
    report_to="none", disable_tqdm=True, use_cpu=True, gradient_checkpointing=False, max_length=LENGTH,
    precompute_ref_log_probs=way != "two", precompute_ref_batch_size=PAIRS,
)
loaded = lambda: transformers.AutoModelForCausalLM.from_pretrained(folder + "/model")
seconds = [0.0]

class Timed(DPOTrainer):
    def _precompute_ref_logps(self, *given):
        begun = time.process_time()
        made = super()._precompute_ref_logps(*given)
        seconds[0] += time.process_time() - begun
        return made

trainer = Timed(loaded(), ref_model=loaded() if way == "two" else None, args=settings, train_dataset=rows,
                processing_class=tokenizer)
begun = time.process_time()
trainer.train()
seconds[0] += time.process_time() - begun
print(json.dumps([seconds[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def answers(count: int) -> list[dict[str, Any]]:
    """Pairs whose lengths differ as those of conversations do."""
    draw = random.Random(5)

    def text(words: tuple[str, ...]) -> str:
        return " ".join(draw.choices(words, k=min(int(draw.lognormvariate(1.3, 0.7)) + 1, 14)))

    return [
        {"prompt": f"Question {n}: {text(GOOD)}\n", "chosen": text(GOOD), "rejected": text(BAD)} for n in range(count)
    ]


def ours(way: str, folder: Path) -> list[float]:
    """Return seconds and peak MiB of the reference, unless it is cached, and of training."""
    import resource

    import torch

    from tests.training.run_stage import traced_and_trained
    from trnflow.tasks.artifact import Input, Source
    from trnflow.tasks.compute_reference import compute_reference
    from trnflow.tasks.stage import Workdir
    from trnflow.tasks.training.config import TrainConfig

    torch.set_num_threads(1)
    spec = json.loads((folder / "spec.json").read_text())
    packed = Input(**{**spec["packed"], "path": Path(spec["packed"]["path"])})
    config = TrainConfig.model_validate(
        {"objective": "dpo", "engine": "native", "threads": 1, "epochs": 1, "learning_rate": 1e-4, **spec["config"]}
    )
    place = Path(tempfile.mkdtemp(dir=folder))

    def workdir(path: Path) -> Workdir:
        scratch = place / f"scratch-{path.name}"
        path.mkdir()
        scratch.mkdir()
        return Workdir(path, scratch, lambda event: None)

    inputs: dict[str, Any] = {"model": Source(**spec["model"]), "packed": packed}
    made = folder / "reference"
    begun = time.process_time()
    if way == "ours cold":
        made = place / "reference"
        compute_reference(config, **inputs, out=workdir(made))
    inputs["reference"] = Input[Any](made, "reference", {}, "")
    traced_and_trained(config, **inputs, out=workdir(place / "out"))
    if not (folder / "reference").exists():
        made.rename(folder / "reference")
    return [time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]


def prepare(folder: Path, pairs: int) -> None:
    """Write the rows, tokenised and packed, and the model."""
    packed, rows = packed_preferences(
        folder / "data", answers(pairs), pack={"strategy": "bfd", "chunk_length": 2 * LENGTH}, most=LENGTH
    )
    model = started(folder / "model", packed, **SIZES, max_position_embeddings=2 * LENGTH, initializer_range=0.02)
    packed.meta["rows"] = {"train": packed.meta["rows"]["train"]}  # TRL evaluates nothing here
    chunks = sum(packed.meta["rows"]["train"].values())
    batch = max(round(PAIRS * chunks / len(rows)), 1)
    (folder / "tokenizer").symlink_to(packed.path / "tokenizer")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = {
        "packed": {**asdict(packed), "path": str(packed.path)},
        "model": asdict(model),
        "config": {"global_batch": batch},
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    print(
        f"{len(rows)} pairs in {chunks} chunks of {2 * LENGTH}, {batch} an update; {packed.meta['tokens']['train']} tokens"
    )


def measured(way: str, folder: Path) -> list[float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "USE_TORCH_XLA": "0", "HF_HUB_OFFLINE": "1"}
    if WAYS[way] == "ours":
        command = [sys.executable, "-m", "tests.bench.bench_preference", "--way", way, "--folder", str(folder)]
        return list(spent(command, cwd=PROJECT, env=environment).told)
    short = {
        "trl two models": "two",
        "trl precomputed": tempfile.mkdtemp(dir=folder).rpartition("/")[2],
        "trl cached": "kept",
    }
    script = THEIRS.replace("LENGTH", str(LENGTH)).replace("PAIRS", str(PAIRS))
    client = {"PYTHONPATH": str(PROJECT / ".clients" / "trl")}
    return list(
        spent([sys.executable, "-P", "-c", script, short[way], str(folder)], cwd=folder, env=environment | client).told
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(ours(arguments.way, arguments.folder)))
        return
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        prepare(folder, arguments.pairs)
        measured("trl cached", folder)  # fills its cache
        rounds = [{way: measured(way, folder) for way in WAYS} for _ in range(arguments.rounds)]
    found = {way: [median(column) for column in zip(*(each[way] for each in rounds), strict=True)] for way in WAYS}
    for way, (seconds, memory) in found.items():
        print(f"{way:16} {seconds:7.2f} s {memory:7.0f} MiB")
    for way, (goal, others) in GOALS.items():
        ratio = min(found[other][0] for other in others) / found[way][0]
        print(f"{way}: {ratio:.2f} times as fast as {' or '.join(others)}, goal {goal}")


if __name__ == "__main__":
    main()
