"""ROUGE and SQuAD's F1 against values that rouge_score 0.1.2 (use_stemmer=False) and torchmetrics 1.9 gave, to 6 digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models

from tests.helpers import small_models
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.evaluation.config import GenerationConfig
from trnflow.tasks.evaluation.generated_rows import Generations
from trnflow.tasks.evaluation.generated_text import is_exact_match, is_json, rouge, token_f1
from trnflow.tasks.evaluation.generation import Prompt, _without_special, generate, prompt_encoder
from trnflow.tasks.evaluation.models import load_model
from trnflow.tasks.evaluation.scores import values_of_texts

KNOWN = [
    ("The cat sat on the mat.", "the cat was on a mat", (0.666667, 0.2, 0.666667)),
    ("police killed the gunman", "police kill the gunman", (0.75, 0.333333, 0.75)),
    ("the gunman kill police", "police kill the gunman", (1.0, 0.333333, 0.5)),
    (
        "It's 3.5 times as fast as before, isn't it?",
        "It is 3 times as fast; is it not?",
        (0.571429, 0.210526, 0.571429),
    ),
    ("a a a b", "a b a b c", (0.666667, 0.285714, 0.666667)),
    ("nothing in common", "entirely different words", (0.0, 0.0, 0.0)),
    ("", "an answer", (0.0, 0.0, 0.0)),
    ("same", "Same!", (1.0, 0.0, 1.0)),
]


@pytest.mark.parametrize(("generated", "answer", "wanted"), KNOWN)
def test_rouge_is_that_of_rouge_score(generated: str, answer: str, wanted: tuple[float, ...]) -> None:
    assert rouge(generated, answer) == pytest.approx(wanted, abs=1e-6)


F1 = [0.75, 0.666667, 1.0, 0.444444, 0.5, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("pair", "wanted"), [*zip([known[:2] for known in KNOWN], F1, strict=True), (("the", "a"), 1.0)]
)
def test_f1_is_that_of_squad(pair: tuple[str, str], wanted: float) -> None:
    assert token_f1(*pair) == pytest.approx(wanted, abs=1e-6)


def test_json_is_asked_for_where_the_answer_is_json() -> None:
    assert is_json('```json\n{"a": [1]}\n```') and not is_json("3") and not is_json("[" * 100_000)
    assert values_of_texts([("[1]", "{}"), ("no", "{}"), ("no", "words")])["json_valid"] == 0.5
    assert "json_valid" not in values_of_texts([("[1]", "words")])


def test_letters_of_all_scripts_count() -> None:
    assert rouge("ein Käse, größer", "Ein größer Käse").words == 1.0
    assert rouge("привет мир", "мир").sequence == pytest.approx(2 / 3)
    assert rouge("call snake_case", "call snake case") == (1.0, 1.0, 1.0), "an underscore is no letter"


def test_means_over_prompts() -> None:
    assert is_exact_match(" yes\n", "yes") and not is_exact_match("Yes", "yes")
    found = values_of_texts([("yes", "yes"), ("no", "yes")])
    assert found == {"exact_match": 0.5, "token_f1": 0.5, "rouge1": 0.5, "rouge2": 0.0, "rougeL": 0.5}
    assert values_of_texts([]) == {}


def test_answers_lose_special_tokens_alone_as_generated_texts_do() -> None:
    tokenizer = Tokenizer(models.WordLevel({"yes": 0}, unk_token="yes"))
    tokenizer.add_special_tokens(["</s>", "<end>"])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    assert _without_special(tokenizer, "<tool>yes<end></s>") == "<tool>yes"


def test_a_model_without_positions_of_its_own_writes_as_many_tokens_as_are_asked_for(tmp_path: Path) -> None:
    weights = small_models.llama(tmp_path / "llama")
    model, tokenizer = load_model(weights.path, "causal_lm"), read_tokenizer(weights.path)
    prompt, config = Prompt([{"text": "the cat sat", "train": False}]), GenerationConfig(max_new_tokens=3)

    def made(positions: int | None) -> tuple[int, int]:
        encoder = prompt_encoder(tokenizer, {})
        found = generate(model, tokenizer, encoder, prompt, config, positions=positions, ends=[], sample=False)
        return found["tokens"], found["prompt_tokens_cut"]

    assert made(None) == (3, 0)
    assert made(4) == (2, 2), "half of four positions is for the answer"


def test_what_else_a_model_s_settings_ask_generate_to_return_is_left_out(tmp_path: Path) -> None:
    weights = small_models.llama(tmp_path / "llama")
    model, tokenizer = load_model(weights.path, "causal_lm"), read_tokenizer(weights.path)

    def made() -> Any:
        prompt, config = Prompt([{"text": "the cat sat", "train": False}]), GenerationConfig(max_new_tokens=3)
        return generate(
            model, tokenizer, prompt_encoder(tokenizer, {}), prompt, config, positions=None, ends=[], sample=False
        )

    model.generation_config.update(num_beams=2)
    plain = made()
    model.generation_config.update(num_return_sequences=2, return_dict_in_generate=True, output_scores=True)
    assert made() == plain


def test_a_text_ends_at_any_token_that_the_generation_settings_name(tmp_path: Path) -> None:
    """Of a chat model they name the end of a turn, too, which its config.json does not."""
    weights = small_models.llama(tmp_path / "llama")
    model = load_model(weights.path, "causal_lm")
    model.config.eos_token_id, model.generation_config.eos_token_id = None, [*range(model.config.vocab_size)]
    prompts, config = [Prompt([{"text": "the cat sat", "train": False}])], GenerationConfig(max_new_tokens=3)
    out = small_models.workdir(tmp_path / "out")
    (line,) = Generations(prompts, config, weights.path, {}).of(model, out, "generations")
    assert (line["tokens"], line["ended"], line["sampled_ended"]) == (1, True, True)
