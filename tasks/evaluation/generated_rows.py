"""Make the lines of generations.jsonl, one for each prompt of an evaluation. A line has the texts that the trained
model generates for the prompt and, if asked for, the texts that the model before training generates."""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.evaluation.base_model import load_base_model
from trnflow.tasks.evaluation.generation import GenerationConfig, Prompt, generate, prompt_encoder
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
"""The fields of a line that exist for the model before training too, and their names for that model."""


@dataclass(frozen=True)
class Generations:
    """The prompts of an evaluation, and how a model continues them.

    Attributes:
        prompts: The prompts, those of the recipe first.
        config: The recipe's section `evaluate.generation`.
        folder: The trained model's Hugging Face folder, whose tokenizer is used for both models.
        texts: Metadata of the artifact of format_prompts.
    """

    prompts: list[Prompt]
    config: GenerationConfig
    folder: Path
    texts: Meta

    def of(self, model: PreTrainedModel, out: Workdir, unit: str) -> list[Meta]:
        """Generate two texts for each prompt, a greedy and a sampled one. Return one dict for each prompt, in their
        order.

        The dict has the keys that `generate` returns for the greedy text (row, prompt, answer, generated, tokens,
        prompt_tokens, prompt_tokens_cut, ended), and for the sampled text `sampled` (the text) and `sampled_ended`
        (whether its last token is an end token). unit: the name of the progress bar."""
        tokenizer, positions = read_tokenizer(self.folder), longest_sequence(model)
        encoder = prompt_encoder(tokenizer, self.texts)
        ends = model.generation_config.eos_token_id if model.generation_config else model.config.eos_token_id
        stops = [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [ends]
        made = []
        for done, prompt in enumerate(self.prompts, 1):
            greedy, sampled = (
                generate(model, tokenizer, encoder, prompt, self.config, positions=positions, ends=stops, sample=sample)
                for sample in (False, True)
            )
            made.append({**greedy, "sampled": sampled["generated"], "sampled_ended": sampled["ended"]})
            out.progress(done, len(self.prompts), unit)
        return made

    def before(self, base: Source, warm_start: Input | None, device: str, out: Workdir) -> list[Meta]:
        """Load the model that training started from, and return the texts that this model generates for the prompts,
        in the form that `of` returns; [] without prompts. The model's memory is freed afterwards.

        base: the base model, from `model_source`; warm_start: the model's artifact whose weights replaced those of
        `base`, or None; device: "cpu" or "cuda"."""
        if not self.prompts:
            return []
        model = load_base_model(base, warm_start, self.folder)
        made = self.of(model.to(device), out, "generations before training")
        del model
        gc.collect()
        if device == "cuda":
            import torch

            torch.cuda.empty_cache()
        return made


def write_rows(after: list[Meta], before: list[Meta], file: Path) -> list[Meta]:
    """Write the generated texts to a file, one JSON object with sorted keys a line for each prompt, and return the
    objects: the fields of the trained model, and those of the model before training under the names before,
    before_ended, before_sampled and before_sampled_ended.

    after, before: what `of` returned for the trained model and for the model before training, for the same prompts;
    `before` is empty where there is no such model, or none was asked for. file: generations.jsonl."""
    earlier = [{name: one[field] for field, name in BEFORE.items()} for one in before] or [{}] * len(after)
    rows = [{**one, **other} for one, other in zip(after, earlier, strict=True)]
    lines = [f"{json.dumps(one, ensure_ascii=False, sort_keys=True)}\n" for one in rows]
    file.write_text("".join(lines), encoding="utf-8")
    return rows
