"""Which stages of a run share a warm parent."""

from __future__ import annotations

from pathlib import Path

from trnflow.flows.finetune import finetune
from trnflow.flows.recipes.recipe import load
from trnflow.flows.runner.context import context_of, make_plan
from trnflow.flows.runner.warm_parents import parent_of
from trnflow.tasks.launch.warm_parents import LATE
from trnflow.tasks.store import Store


def test_the_stages_of_a_finished_model_share_one_parent(tmp_path: Path) -> None:
    """Each parent imports torch, transformers and torch_xla, for seconds: there is one that trains and one that does not."""
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    context = context_of(load("demo"), store, offline=True)
    plan = make_plan(finetune(context.recipe), context)
    early = {
        name: {key: value for key, value in parent_of(step, context)[0].items() if key not in LATE}
        for name, step in plan.steps.items()
    }
    assert early["consolidate"] == early["export_neuron"] == early["evaluate_model"]
    assert early["precompile"] == early["train"] != early["evaluate_model"]
