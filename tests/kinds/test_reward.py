"""A reward model: pairs train it packed as on any mesh, other programs read the same rewards, all stages judge by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.command_line import InProcessShell
from tests.helpers.products import few
from tests.kinds.preferences import packed_preferences, rows_of, started
from tests.kinds.test_preference import COMMON, RECIPE, SMALL, TEMPLATE
from tests.training.run_stage import run_stage, traced_and_trained
from trnflow.tasks.compute_reference import _alone
from trnflow.tasks.training.config import TrainConfig

REWARD = {**COMMON, "objective": "reward"}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("reward")
    packed, _ = packed_preferences(folder / "data")
    return {"model": started(folder / "model", packed), "packed": packed}


@pytest.mark.slow
def test_two_ranks_passes_and_lora_train_a_reward_model(given: dict[str, Any], tmp_path: Path) -> None:
    layouts: list[dict[str, Any]] = [
        {},
        {"devices": 2, "micro_batch": 2, "fsdp": True},
        {"remat": True, "micro_batch": 4},
    ]
    ran = [
        run_stage(traced_and_trained, TrainConfig(**REWARD, **layout), tmp_path / str(number), **given)
        for number, layout in enumerate(layouts)
    ]
    for name in ("loss", "reward_chosen", "reward_margin", "eval_loss", "eval_reward_margin"):
        one, *others = (list(each.curve(name).values()) for each in ran)
        for other in others:
            assert np.abs(np.array(other) - one).max() <= 1e-5, name
    assert ran[0].artifact.meta["task"] == "reward" and not ran[0].curve("likelihood_accuracy")
    lora = run_stage(traced_and_trained, TrainConfig(**REWARD, method="lora"), tmp_path / "lora", **given)
    assert "score" in json.loads((lora.artifact.path / "adapter_config.json").read_text())["modules_to_save"]
    assert lora.curve("reward_accuracy")[20] > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("messages", few([True, False], 1))
def test_other_programs_predictions_evaluation_and_champions_give_one_reward(
    messages: bool, given: dict[str, Any], tmp_path: Path
) -> None:
    import torch
    import transformers

    shell, rows = InProcessShell(tmp_path), rows_of(80)
    if messages:
        rows = [
            {
                "prompt": [{"role": "user", "content": row["prompt"]}],
                **{name: [{"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")},
            }
            for row in rows
        ]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "mine.yaml").write_text(RECIPE.replace("objective: dpo", "objective: reward"))
    model, tokenizer = given["model"].location["model"]["folder"], given["packed"].path / "tokenizer"
    settings = [*SMALL, f"model.source={model}", f"model.tokenizer={tokenizer}", "tokenize.max_length=128"]
    settings += [f"format.chat_template={json.dumps(TEMPLATE)}"] if messages else []
    rehearsed = shell("rehearse", "mine.yaml", *settings)
    assert rehearsed.returncode == 0, rehearsed.stderr
    ran = shell.json("run", "mine.yaml", "--direct", "--no-rehearse", *settings, "evaluate.split=test")
    metrics = {stage["stage"]: stage["metrics"] for stage in ran["stages"]}
    assert "likelihood_accuracy" not in metrics["evaluate_model"]
    assert metrics["train"]["eval_reward_accuracy"] > 0.6

    assert shell("get", "mine.yaml", "consolidate", "folder", *settings).returncode == 0
    asked = [{"prompt": row["prompt"], "completion": row[name]} for row in rows[:6] for name in ("chosen", "rejected")]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    predicted = shell.json("predict", "mine.yaml", *settings, "--file", "asked.jsonl")["results"]
    folder = str(tmp_path / "folder")
    opened = transformers.pipeline("text-classification", model=folder)
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert loaded.model_max_length == min(128, network.config.max_position_embeddings)  # as predict cuts
    for row, found in zip(asked, predicted, strict=True):
        reward = found["scores"]["reward"]
        if messages:
            ids = loaded.apply_chat_template([*row["prompt"], *row["completion"]], return_dict=False)
        else:
            text = f"{row['prompt']}{row['completion']}{loaded.eos_token}"
            assert opened(text)[0] == {"label": "reward", "score": pytest.approx(reward, abs=1e-5)}
            ids = loaded(text)["input_ids"]
        with torch.inference_mode():
            assert network(torch.tensor([ids])).logits.item() == pytest.approx(reward, abs=1e-5)

    # frozen pairs are judged by the same numbers as the test split from which they are
    assert shell.json("freeze", "mine.yaml", *settings, "evaluate.split=test")["rows"] > 10
    assert shell.json("promote", "mine.yaml", *settings, "evaluate.split=test")["promoted"]
    other = (*settings, "evaluate.split=test", "train.learning_rate=5e-3")
    judged = {
        stage["stage"]: stage["metrics"]
        for stage in shell.json("run", "mine.yaml", "--direct", "--no-rehearse", *other)["stages"]
    }["evaluate_model"]
    compared = shell.json("promote", "mine.yaml", *other)["comparison"]
    assert compared["metric"] == "reward_accuracy"
    assert compared["challenger"] == pytest.approx(judged["reward_accuracy"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("train.beta=0.3",), "beta is not read by objective reward"),
        (("train.best_metric=likelihood_accuracy",), "which these rows do not give"),
        (("tokenize.add_eos=false",), "reads an answer at its end"),
        (("export.target=gguf",), "export.target: gguf` is for language models"),
        (("train.center_rewards_coefficient=0.1", "train.objective=dpo"), "set objective=reward"),
    ],
)
def test_what_does_not_fit_a_reward_model_is_refused(settings: tuple[str, ...], message: str, tmp_path: Path) -> None:
    shell = InProcessShell(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/train.jsonl").write_text("\n".join(map(json.dumps, rows_of(20))))
    recipe = RECIPE.replace("model: {source: model, config: null}\n", "").replace(", train: null", "")
    (tmp_path / "mine.yaml").write_text(recipe.replace("objective: dpo", "objective: reward"))
    assert message in shell.error("plan", "mine.yaml", *SMALL, *settings, code=2)


@pytest.mark.parametrize(
    "layout",
    [
        {}, {"engine": "native", "compile": True}, {"engine": "native", "optimizer": "adafactor"},
        {"engine": "native", "devices": 4, "tensor_parallel_size": 2, "sequence_parallel": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_reference_is_that_of_one_device_of_engine_native(layout: dict[str, Any]) -> None:
    one = _alone(TrainConfig(**layout))
    assert (one.engine, one.device, one.devices, one.tensor_parallel_size) == ("native", "cpu", 1, 1)
    assert (one.sequence_parallel, one.compile, one.optimizer) == (False, False, "adamw")
