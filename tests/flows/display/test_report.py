"""Results as text."""

from __future__ import annotations

from trnflow.flows.display.report import chosen, ended, figures
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes import recipe as recipes
from trnflow.flows.runner.plan import Step


def test_the_users_own_metrics_come_first_and_what_they_are_compared_with_beside_them() -> None:
    values = {"loss": 0.25, "zeal": 3.0, "accuracy": 0.91234, "accuracy_baseline": 0.5, "zeal_before": 1.0, "rows": 7}
    assert figures(values, own=["zeal"]) == "zeal 3 (before 1)  accuracy 0.9123 (baseline 0.5)  loss 0.25  rows 7"
    assert figures(values, most=1) == "accuracy 0.9123 (baseline 0.5)"


def test_a_run_ends_with_its_verdict_which_is_no_note_too() -> None:
    (node,) = [node for node in finetune(recipes.load("demo")).nodes if node.name == "train"]
    lines = ended([Step(node, action="ran")], ["no baseline", "worse"], ["worse", "so little"])
    assert lines[0] == "note: no baseline" and lines[-2:] == ["verdict  worse", "         so little"]
    assert sum("worse" in line for line in lines) == 1


def test_a_choice_of_nothing_is_not_shown() -> None:
    (node,) = [node for node in finetune(recipes.load("regression")).nodes if node.name == "train"]
    training = Step(node, action="run")
    assert "train.class_weights: not known before pack_chunks" in chosen(training, "pack_chunks")
    training.resolved = node.config.model_copy(update={"epochs": 3, "learning_rate": 1e-4, "class_weights": None})
    assert chosen(training, "pack_chunks") == "train.epochs=3 train.learning_rate=0.0001"
