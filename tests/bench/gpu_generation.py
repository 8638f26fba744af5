"""Texts for 64 prompts: as `evaluate_model` generates them, beside transformers' `generate` in a batch and `generate_batch`.

    python -m tests.bench.gpu_generation [--ways NAME,...] [--results FILE] [--toy]

The Llama of 1.1 B random parameters of `gpu_cases`, in bf16; prompts of 32 to 256 tokens, 128 new ones each, greedy (of ours
every other text is sampled). Ours takes as many of the prompts as end in about 25 s. All ways are measured in one process, each
warmed up; memory is the most of each way.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.bench.gpu_cases import CASES, make_model
from tests.bench.gpu_results import CPU, QUIET, add_options, results_of
from trnflow.tasks.artifact import Meta
from trnflow.tasks.stage import Workdir

CASE = "64 prompts"
SECONDS = 25.0


class Texts(NamedTuple):
    """prompts: token ids; new: how many tokens each gets."""

    model: Any
    folder: Path
    prompts: list[list[int]]
    new: int
    device: str


def texts_of(arguments: argparse.Namespace) -> Texts:
    """Load the model, which is made first where it is not there."""
    import torch
    from transformers import AutoModelForCausalLM

    case = CASES["llama"].as_toy() if arguments.toy else CASES["llama"]
    folder, device = arguments.work / case.model, CPU if arguments.toy else "cuda"
    if not folder.exists():
        make_model(case.config, folder, device)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    model.generation_config.eos_token_id = None  # a random model ends texts at random
    random = np.random.default_rng(0)
    sizes = random.integers(4, 8, 4) if arguments.toy else random.integers(32, 257, 64)
    prompts = [random.integers(5, case.config["vocab_size"], size).tolist() for size in sizes]
    return Texts(model, folder, prompts, 4 if arguments.toy else 128, device)


def ours(texts: Texts, prompts: Sequence[list[int]], work: Path) -> int:
    """Generate a greedy and a sampled text for each prompt; return the number of new tokens."""
    from trnflow.tasks.evaluation.config import GenerationConfig
    from trnflow.tasks.evaluation.generated_rows import Generations
    from trnflow.tasks.evaluation.generation import Prompt

    asked = [Prompt([{"text": " ".join(f"w{number}" for number in ids), "train": False}]) for ids in prompts]
    made = Generations(asked, GenerationConfig(max_new_tokens=texts.new), texts.folder, {})
    lines: list[Meta] = made.of(texts.model, Workdir(work, work, lambda event: None), "generations")
    # the sampled texts are as long, since none ends
    return 2 * sum(line["tokens"] for line in lines)


def batched(texts: Texts, prompts: Sequence[list[int]], work: Path) -> int:
    """Padded on the left to the longest prompt, all prompts at once."""
    import torch

    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in prompts], device=texts.device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts], device=texts.device)
    with torch.inference_mode():
        made = texts.model.generate(
            ids, attention_mask=mask, max_new_tokens=texts.new, do_sample=False, pad_token_id=0, use_cache=True
        )
    return int((made.shape[1] - longest) * len(prompts))


def continuous(texts: Texts, prompts: Sequence[list[int]], work: Path) -> int:
    """transformers' continuous batching; its cache takes what the GPU has, and stays for the next call."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = GenerationConfig(
        max_new_tokens=texts.new, do_sample=False, use_cache=True, eos_token_id=-1, pad_token_id=0
    )
    # on a processor it would take what the machine has
    small = {"num_blocks": 8, "max_batch_tokens": 64} if texts.device == CPU else {}
    made = texts.model.generate_batch(
        list(prompts),
        generation_config=config,
        continuous_batching_config=ContinuousBatchingConfig(**small),
        persistent_manager=True,
    )
    return sum(len(result.generated_tokens) for result in made.values())


WAYS: dict[str, Callable[[Texts, Sequence[list[int]], Path], int]] = {
    "trnflow": ours,
    "transformers generate": batched,
    "transformers generate_batch": continuous,
}


def measured(texts: Texts, way: str, work: Path) -> Meta:
    """Return the figures of a way, or {"failed": why}."""
    count = len(texts.prompts)
    try:
        if way == "trnflow":
            # one prompt at a time, so that not all of them end in time
            short = texts._replace(new=min(texts.new, 16))
            _seconds(short, way, texts.prompts[:1], work)
            tokens, seconds, _ = _seconds(short, way, texts.prompts[:1], work)
            count = max(1, min(count, int(SECONDS * tokens / seconds / (2 * texts.new))))
        else:
            _seconds(texts, way, texts.prompts, work)
        tokens, seconds, memory = _seconds(texts, way, texts.prompts[:count], work)
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"[-300:]}
    return {"rate": tokens / seconds, "unit": "tokens/s", "memory": memory, "prompts": count}


def _seconds(texts: Texts, way: str, prompts: Sequence[list[int]], work: Path) -> tuple[int, float, int]:
    """Return (new tokens, seconds, most bytes on the device)."""
    import torch

    cuda = texts.device != CPU
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    tokens = WAYS[way](texts, prompts, work)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    return tokens, seconds, torch.cuda.max_memory_allocated() if cuda else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, cases=[CASE], ways=[*WAYS])
    arguments = parser.parse_args()
    os.environ.update(QUIET)
    with results_of(arguments) as results:
        texts = texts_of(arguments)
        for way in arguments.ways:
            begun = time.monotonic()
            found = measured(texts, way, arguments.work)
            results.add(CASE, way, **found, wall=round(time.monotonic() - begun, 1))


if __name__ == "__main__":
    main()
