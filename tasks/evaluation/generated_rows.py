"""Make the lines of generations.jsonl, one for each prompt."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.evaluation.base_model import load_base_model
from trnflow.tasks.evaluation.config import GenerationConfig
from trnflow.tasks.evaluation.generation import Prompt, generate, prompt_encoder
from trnflow.tasks.evaluation.models import longest_sequence
from trnflow.tasks.stage import Workdir

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BEFORE = {
    "generated": "before",
    "ended": "before_ended",
    "sampled": "before_sampled",
    "sampled_ended": "before_sampled_ended",
}
"""{field of a line: its name for the model before training}"""


@dataclass(frozen=True)
class Generations:
    """The prompts of an evaluation, and how a model continues them.

    folder: the trained model's, whose tokenizer serves both models; texts: metadata of format_prompts.
    """

    prompts: list[Prompt]
    config: GenerationConfig
    folder: Path
    texts: Meta

    def of(self, model: PreTrainedModel, out: Workdir, unit: str) -> list[Meta]:
        """Generate a greedy and a sampled text for each prompt. out: shows progress as `unit`.

        Returns `generate`'s document of the greedy text, and `sampled` and `sampled_ended` of the sampled one.
        """
        write = self.writer(model)
        lines = []
        for count, prompt in enumerate(self.prompts, 1):
            greedy, sampled = (write(prompt, sample=sample) for sample in (False, True))
            lines.append({**greedy, "sampled": sampled["generated"], "sampled_ended": sampled["ended"]})
            out.progress(count, len(self.prompts), unit)
        return lines

    def writer(self, model: PreTrainedModel) -> Callable[..., Meta]:
        """Return what generates a model's text for a prompt: `generate`, called with a prompt and `sample`."""
        tokenizer, positions = read_tokenizer(self.folder), longest_sequence(model)
        encoder = prompt_encoder(tokenizer, self.texts)
        ends = model.generation_config.eos_token_id if model.generation_config else model.config.eos_token_id
        stops = [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [ends]
        return partial(generate, model, tokenizer, encoder, config=self.config, positions=positions, ends=stops)

    def before(self, base: Source, warm_start: Input | None, device: str, out: Workdir) -> list[Meta]:
        """Return the texts, as `of` does, of the model that training started from; [] without prompts.

        base, warm_start: as for `load_base_model`; device: "cpu" or "cuda".
        """
        if not self.prompts:
            return []
        model = load_base_model(base, warm_start, self.folder)
        lines = self.of(model.to(device), out, "generations before training")
        del model
        gc.collect()
        if device == "cuda":
            import torch

            torch.cuda.empty_cache()
        return lines


def write_rows(after: list[Meta], before: list[Meta], file: Path) -> list[Meta]:
    """Write generations.jsonl and return its lines. before: of the model before training, or empty."""
    earlier = [{name: line[field] for field, name in BEFORE.items()} for line in before] or [{}] * len(after)
    rows = [{**line, **other} for line, other in zip(after, earlier, strict=True)]
    lines = [f"{json.dumps(line, ensure_ascii=False, sort_keys=True)}\n" for line in rows]
    file.write_text("".join(lines), encoding="utf-8")
    return rows
