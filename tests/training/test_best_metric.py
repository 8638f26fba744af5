"""`train.best_metric`: any metric of the task, the same number as evaluate_model's, on every engine and mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import RECIPE, write_amounts
from tests.helpers.command_line import InProcessShell
from tests.helpers.products import few
from tests.kinds.test_training import COMMON, ENGINES, TASKS, started
from tests.training.run_stage import run_stage, traced_and_trained
from tests.training.toys import packed_targets
from trnflow.tasks.artifact import Source
from trnflow.tasks.evaluation.chosen_metric import check_metric, chosen_source
from trnflow.tasks.evaluation.config import PredictConfig
from trnflow.tasks.evaluation.own_metrics import OwnMetric
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.kinds.registry import FORMATS, KINDS, kind_of
from trnflow.tasks.training.config import TrainConfig

COLOURS = ["red", "green", "blue"]
COSTS = '''"""What wrong answers cost."""

import numpy as np


def cost(p):
    """The mean amount of the rows, by the probability that they are predicted right."""
    assert p.split == "validation" and len(p.columns["text"]) == len(p)
    right = p.probabilities[np.arange(len(p)), p.expected]
    return float((p.columns["amount"] * right).sum()) / len(p)
'''


ANSWERS = """
extends: base/hardware/cpu
data: {source: rows, text: null}
format: {task: instruction}
model:
  config: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 96,
    max_position_embeddings: 128}
tokenize: {max_length: 64, train: {kind: bpe, vocab_size: 300}}
pack: {strategy: bfd, chunk_length: 64}
train: {engine: native, global_batch: 8, learning_rate: 1.0e-2, max_steps: 24, eval_every: 6, keep_best: true, log_every: 6}
export: {target: none}
evaluate: {split: validation, generation: {prompts: 6, max_new_tokens: 16}}
tracking: {enabled: false}
"""


def source(config: TrainConfig, task: str, folder: Path) -> Source:
    return chosen_source(config, KINDS[task], PredictConfig(), None, None, folder, Memo(folder / "memo"))


def trained(config: TrainConfig, folder: Path, task: str = "multi_label") -> Any:
    labels, problem = (COLOURS, "multi_label_classification") if task == "multi_label" else TASKS["tags"][1:]
    return {
        "model": started(folder / "model", labels, problem, task),
        "packed": packed_targets(folder / "packed", task, labels),
        "metric": source(config, task, folder),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("task", "metric"), few([("multi_label", "f1_macro"), ("token_classification", "span_f1")], 1))
def test_every_mesh_and_engine_chooses_the_same(task: str, metric: str, tmp_path: Path) -> None:
    found = {}
    for name, mesh in {**ENGINES, "two ranks": {"devices": 2}}.items():
        config = TrainConfig(**COMMON, **mesh, keep_best=True, best_metric=metric, eval_every=4)
        ran = run_stage(traced_and_trained, config, tmp_path / name, **trained(config, tmp_path / f"in {name}", task))
        found[name] = ran.curve(f"eval_{metric}"), ran.artifact.meta["best_step"]
    assert len({*map(repr, found.values())}) == 1, found
    assert len({*found["native"][0].values()}) > 2


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    """A recipe that is evaluated on validation, whose rows have the column `amount`."""
    folder = tmp_path_factory.mktemp("best")
    write_amounts(folder / "rows")
    (folder / "costs.py").write_text(COSTS)
    recipe = RECIPE.replace("max_steps: 1", "max_steps: 12, keep_best: true, eval_every: 3")
    recipe = recipe.replace("label: label}", "label: label, columns: {amount: amount}}").replace("stablehlo", "none")
    metrics = "evaluate: {split: validation, metrics: [{function: 'costs:cost', less_is_better: false}]}"
    (folder / "best.yaml").write_text(recipe.replace("evaluate: {export_rows: 0}", metrics))
    return InProcessShell(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", few(["log_loss", "costs:cost", "f1_macro", "mcc", "ece", "auc"], 2))
def test_training_and_evaluate_model_have_the_same_number(shell: InProcessShell, name: str) -> None:
    """Weights of one dtype, one process: the best evaluation's metric is the evaluation's of the published model."""
    setting, report, mine = f"train.best_metric={name}", shell.folder / name.replace(":", "_"), name.rpartition(":")[2]
    ran = shell.json("run", "best.yaml", "--direct", setting)["stages"]
    shell.json("get", "best.yaml", setting, "evaluate_model", str(report))
    metrics = json.loads((report / "report.json").read_text())["metrics"]
    found = next(stage for stage in ran if stage["stage"] == "train")["metrics"]
    assert found[f"eval_{mine}"] == pytest.approx(metrics[mine], abs=1e-6)
    assert found[f"eval_{mine}_before"] != found[f"eval_{mine}"]


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    """A recipe that learns to answer three questions, one of them by JSON."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "rows").mkdir()
    pairs = [("count to three", "one two three"), ("name a colour", "blue as the sea"), ("give an object", '{"a": 1}')]
    for split, count in {"train": 60, "validation": 6}.items():
        rows = [{"instruction": pairs[n % 3][0], "response": pairs[n % 3][1]} for n in range(count)]
        (folder / "rows" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "ask.yaml").write_text(ANSWERS)
    (folder / "weak.yaml").write_text("extends: ask.yaml\ntrain: {max_steps: 1, keep_best: false, eval_every: null}\n")
    shell = InProcessShell(folder)
    shell.json("run", "weak.yaml", "--direct", "--until", "consolidate")
    return shell


LAYOUTS = {
    "native": [],
    "fsdp": ["train.devices=2", "train.fsdp=true"],
    "averages": ["train.ema_decay=0.9"],
    "lora": ["train.method=lora", "train.warm_start_from=weak.yaml", "train.learning_rate=0.03", "train.lora.rank=32"],
    "xla": ["train.engine=xla", "train.devices=2"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "metric"),
    few(
        [
            ("lora", "token_f1"),
            ("fsdp", "exact_match"),
            ("xla", "rougeL"),
            ("averages", "token_f1"),
            ("native", "json_valid"),
        ],
        1,
    ),
)
def test_weights_are_chosen_by_the_answers_that_evaluate_model_gets(
    asking: InProcessShell, layout: str, metric: str
) -> None:
    settings = [*LAYOUTS[layout], f"train.best_metric={metric}"]
    ran = {
        stage["stage"]: stage["metrics"] for stage in asking.json("run", "ask.yaml", "--direct", *settings)["stages"]
    }
    assert ran["train"][f"eval_{metric}"] == ran["evaluate_model"][metric]
    assert ran["train"][f"eval_{metric}_before"] < ran["train"][f"eval_{metric}"]


@pytest.mark.slow
def test_answers_change_no_loss_and_their_settings_train_again(asking: InProcessShell) -> None:
    losses = []
    for metric in ("loss", "exact_match"):
        ran = asking.json("run", "ask.yaml", "--direct", "--until", "train", f"train.best_metric={metric}")["stages"]
        losses.append(next(stage for stage in ran if stage["stage"] == "train")["metrics"]["train_loss"])
    assert losses[0] == losses[1]

    def due(*settings: str) -> bool:
        plan = asking.json("plan", "ask.yaml", *settings)["stages"]
        return "train" in {stage["stage"] for stage in plan if stage["action"] == "run"}

    shorter = "evaluate.generation.max_new_tokens=8"
    assert due("train.best_metric=exact_match", shorter) and not due("train.best_metric=loss", shorter)
    none = ("train.best_metric=exact_match", "evaluate.generation.prompts=0")
    assert "evaluate.generation.prompts is 0" in asking.error("plan", "ask.yaml", *none, code=2)


@pytest.mark.slow
def test_an_edited_own_metric_trains_again_and_another_does_not(shell: InProcessShell) -> None:
    shell.json("run", "best.yaml", "--direct", "train.best_metric=costs:cost")
    (shell.folder / "costs.py").write_text(COSTS.replace("/ len(p)", "/ 2 / len(p)"))

    def due(metric: str) -> set[str]:
        plan = shell.json("plan", "best.yaml", f"train.best_metric={metric}")["stages"]
        return {stage["stage"] for stage in plan if stage["action"] == "run"}

    shell.json("run", "best.yaml", "--direct", "--until", "train", "train.best_metric=f1_macro")
    (shell.folder / "costs.py").write_text(COSTS.replace("/ len(p)", "/ 3 / len(p)"))
    assert "train" in due("costs:cost") and "train" not in due("f1_macro")
    (shell.folder / "costs.py").write_text(
        COSTS.replace("    return", "    import random\n    return random.random() +")
    )
    error = shell.error("run", "best.yaml", "--direct", "train.best_metric=costs:cost", code=1)
    assert "train.best_metric: cost is" in error and "in another process" in error
    (shell.folder / "costs.py").write_text(COSTS.replace('["amount"]', '["price"]'))
    error = shell.error("run", "best.yaml", "--direct", "train.best_metric=costs:cost", code=1)
    assert "error in train: costs.py:10 in cost: KeyError 'price: load_data kept text, amount, label" in error


def test_the_chosen_metrics_file_alone_is_in_the_key(tmp_path: Path) -> None:
    config = TrainConfig(keep_best=True, best_metric="f1_macro")
    code = source(config, "classification", tmp_path).identity["code"]
    metrics = {name for name in code if name.startswith("trnflow.tasks.evaluation.metrics.")}
    assert metrics == {"trnflow.tasks.evaluation.metrics.f1_macro", "trnflow.tasks.evaluation.metrics.row_sums"}
    assert "trnflow.tasks.evaluation.scores" not in code
    answers = source(TrainConfig(keep_best=True, best_metric="exact_match"), "causal_lm", tmp_path).identity["code"]
    assert answers["evaluate.max_new_tokens"] == "64" and "trnflow.tasks.evaluation.generated_text" in answers
    assert not {"trnflow.tasks.evaluation.scores", "trnflow.tasks.consolidate"} & answers.keys()


@pytest.mark.parametrize(
    ("task", "metric", "told"),
    [
        ("classification", "f1_makro", "f1_makro, which is none of its metrics: name one of eval_accuracy, eval_f1_weighted"),
        ("instruction", "f1_macro", "f1_macro, which is none of its metrics: name one of eval_perplexity, eval_bits_per_byte"),
        ("regression", "f1_macro", "eval_f1_macro, which is none of its metrics: name one of eval_mae, eval_rmse"),
        ("classification", "mine:cost", "mine:cost, which is none of its metrics"),
        ("regression", "accuracy", "eval_accuracy, which is none of its metrics"),
    ],
)  # fmt: skip
def test_a_metric_that_training_cannot_measure_is_refused(task: str, metric: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_metric(TrainConfig(best_metric=metric, keep_best=True), FORMATS[task], ())


def test_a_function_of_the_user_s_cannot_choose_between_reward_models() -> None:
    own = OwnMetric(function="mine:cost", less_is_better=True)
    with pytest.raises(ValueError, match="the task reward has no predictions of rows while it trains"):
        check_metric(TrainConfig(best_metric="mine:cost", keep_best=True), kind_of("reward"), [own])


def test_a_name_with_and_without_eval_is_one_setting() -> None:
    assert TrainConfig(best_metric="loss") == TrainConfig() == TrainConfig(best_metric="eval_loss")
