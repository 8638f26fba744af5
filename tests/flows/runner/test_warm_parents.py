"""Which stages of a run share a warm parent."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from trnflow.flows.finetune import FINETUNE
from trnflow.flows.recipes.recipe import load
from trnflow.flows.runner import run
from trnflow.tasks.launch.warm_start import LATE
from trnflow.tasks.store import Store


def test_the_stages_of_a_finished_model_share_one_parent(tmp_path: Path) -> None:
    """Each parent imports torch, transformers and torch_xla, for seconds: there is one that trains and one that does not."""
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    planner = run.look(load("demo"), store, FINETUNE)
    parent_of = partial(run._parent_of, {}, store)
    early = {
        name: {key: value for key, value in parent_of(call)[0].items() if key not in LATE}
        for name, call in planner.calls.items()
    }
    assert early["consolidate"] == early["export_neuron"] == early["evaluate_model"]
    assert early["precompile"] == early["train"] != early["evaluate_model"]
