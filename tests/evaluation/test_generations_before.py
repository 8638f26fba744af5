"""Texts of the model that training started from, beside the trained model's: a small pretrained Llama, trained by the command
line, then trained on from its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flows.champions.test_champions import artifact_folder
from tests.helpers.command_line import InProcessShell
from trnflow.tasks.artifact import Artifact, Meta, Source
from trnflow.tasks.evaluate_model import EvaluateConfig
from trnflow.tasks.evaluation.config import predict_inputs
from trnflow.tasks.predict_before import _too_long

PROMPT = "Once upon a time"
RECIPE = """
extends: [demo-llm, base/hardware/cpu]
name: told
data: {source: rows.jsonl, name: null, text: text, split: {test: 0.25}}
format: {task: text}
model: {source: SOURCE, config: {}}
tokenize: {train: null, max_length: 128}
pack: {chunk_length: 128}
train: {engine: native, devices: 1, tensor_parallel_size: 1, zero1: false, dtype: float32, warmup_ratio: 0.0,
  max_steps: 12, global_batch: 4, micro_batch: 4, learning_rate: 1.0e-2, checkpoint_every: 100}
export: {target: none}
evaluate: {export_rows: 0, prompts: [PROMPT], generation: {prompts: 1, max_new_tokens: 12}}
tracking: {enabled: false}
"""


def lines(shell: InProcessShell, digest: str, to: Path) -> list[Meta]:
    made = (artifact_folder(shell, digest, to) / "generations.jsonl").read_text().splitlines()
    return [json.loads(line) for line in made]


def run(shell: InProcessShell, *arguments: str) -> dict[str, str]:
    done = shell.json("run", "told.yaml", "--direct", *arguments)
    return {stage["stage"]: stage["artifact"] for stage in done["stages"]}


@pytest.mark.slow
def test_texts_before_training_are_those_of_the_model_that_it_started_from(shared: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = shared / "assets/stories260K-hf"
    shell = InProcessShell(tmp_path)
    rows = [f"Row {n} counts the red boats of the harbour, {n} of them, and then it stops." for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (tmp_path / "told.yaml").write_text(RECIPE.replace("SOURCE", str(source)).replace("PROMPT", PROMPT))
    first = run(shell)
    given, of_split = made = lines(shell, first["evaluate_model"], tmp_path / "first")

    tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModelForCausalLM.from_pretrained(source)
    ids = torch.tensor([tokenizer(PROMPT, add_special_tokens=False)["input_ids"]])
    ids = torch.cat([torch.tensor([[tokenizer.bos_token_id]]), ids], dim=1)
    assert ids.shape[1] == given["prompt_tokens"]
    told = model.generate(ids, do_sample=False, max_new_tokens=12, pad_token_id=2)[0, ids.shape[1] :]
    assert given["before"] == tokenizer.decode(told, skip_special_tokens=True)
    assert of_split["row"] == 1 and all(one["before"] != one["generated"] for one in made)
    assert all(one["before_sampled"] != one["sampled"] for one in made)
    page = (tmp_path / "first/report.html").read_text()
    assert page.index(given["before"].strip()) < page.index(given["generated"].strip())

    assert run(shell, "--force", "evaluate_model")["evaluate_model"] == first["evaluate_model"]

    on = ["train.method=lora", "train.max_steps=2", f"train.warm_start_from={first['train']}"]
    second = lines(shell, run(shell, *on)["evaluate_model"], tmp_path / "second")
    fields = (("before", "generated"), ("before_ended", "ended"), ("before_sampled", "sampled"))
    assert all(two[was] == one[now] for one, two in zip(made, second, strict=True) for was, now in fields)

    without = run(shell, "evaluate.generation.before=false")
    assert {name for name in first if first[name] != without[name]} == {"evaluate_model"}
    left = lines(shell, without["evaluate_model"], tmp_path / "without")
    assert left == [{name: one[name] for name in one if not name.startswith("before")} for one in made]


def test_the_key_names_the_first_weights_only_where_they_generate_texts() -> None:
    def base(task: str, weights: str | None, config: Meta, **more: Any) -> str | None:
        inputs: dict[str, Artifact | Source] = {
            "packed": Artifact("sha256:1", "packed", {"task": task}, ()),
            "base": Source("model", {"weights": weights}),
            "weights": Artifact("sha256:3", "model", {"task": task}, ()),
        }
        found = predict_inputs(EvaluateConfig(**config), inputs | more)
        assert (found.pop("packed"), found.pop("weights")) == ("sha256:1", "sha256:3") and found.keys() <= {"base"}
        return found.get("base")

    start = Artifact("sha256:2", "checkpoint", {}, ())
    assert base("causal_lm", "w", {}) == "w"
    assert base("causal_lm", None, {}, warm_start=start) == base("causal_lm", "w", {}, warm_start=start) == "sha256:2"
    assert base("causal_lm", None, {}) is None and base("classification", "w", {}) is None
    assert base("causal_lm", "w", {"generation": {"before": False}}) is None
    assert base("causal_lm", "w", {"generation": {"prompts": 0}}) is None
    assert base("causal_lm", "w", {"generation": {"prompts": 0}, "prompts": ["a"]}) == "w"


@pytest.mark.parametrize(
    ("parameters", "train", "is_long"),
    [(10**9, 1_000_000, True), (10**9, 1_500_000, False), (10**6, 1_000_000, False), (10**6, 10, False)],
)
def test_a_large_model_says_nothing_of_many_tokens_before_training(parameters: int, train: int, is_long: bool) -> None:
    """Many are more than a tenth of what training takes, and what takes long."""
    built: Any = SimpleNamespace(model=SimpleNamespace(num_parameters=lambda: parameters))
    packed: Any = SimpleNamespace(meta={"real_tokens": {"train": train, "test": 400_000}})
    said = "400,000 tokens of test would take more than a tenth of a pass over the 1,000,000 of train"
    assert _too_long(built, packed, "test") == said * is_long
