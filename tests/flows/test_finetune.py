"""Which stages a recipe has, and what its training waits for."""

from __future__ import annotations

import pytest

from tests.training.toys import BERT, scratch
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes.recipe import load
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import Known


@pytest.mark.parametrize(
    ("recipe", "objective", "compares"),
    [
        ("instruct", "sft", False), ("preference", "dpo", True), ("preference", "orpo", False),
        ("preference", "reward", False), ("unpaired-preference", "kto", True),
    ],
)  # fmt: skip
def test_what_is_learnt_by_comparing_reads_the_reference(recipe: str, objective: str, compares: bool) -> None:
    nodes = {node.name: node for node in finetune(load(recipe, [f"train.objective={objective}"])).nodes}
    assert ("compute_reference" in nodes) is compares
    assert [name for name in nodes if "reference" in nodes[name].inputs] == ["train", "evaluate_model"] * compares


@pytest.mark.parametrize(("batch", "deferred"), [("8", {"precompile"}), ("auto", set())])
def test_a_micro_batch_that_precompile_finds_is_found_before_training_is_looked_up(
    batch: str, deferred: set[str]
) -> None:
    graph = finetune(load("demo", [f"train.micro_batch={batch}", "train.devices=1"]))
    train = next(node for node in graph.nodes if node.name == "train")
    assert graph.deferred == deferred
    assert "graphs" in (train.after if deferred else train.inputs)


def test_an_export_of_more_tokens_than_the_model_has_positions_for_is_refused_before_it_is_looked_up() -> None:
    nodes = {node.name: node for node in finetune(load("demo", ["export.length=65"])).nodes}
    with pytest.raises(ModelError, match="positions for 64 tokens, and the export is for 65"):
        nodes["export_neuron"].needs(Known({"model": scratch(**BERT)}))
