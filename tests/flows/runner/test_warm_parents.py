"""Which stages of a run share a warm parent."""

from __future__ import annotations

from pathlib import Path

from trnflow.flows.finetune import finetune
from trnflow.flows.recipes.recipe import load
from trnflow.flows.runner.context import context_of, make_plan
from trnflow.flows.runner.stage_call import Parent, process_of
from trnflow.flows.runner.warm_parents import parent_of
from trnflow.tasks.compute_reference import compute_reference
from trnflow.tasks.config import StageConfig
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.launch.warm_parents import LATE
from trnflow.tasks.precompile import precompile
from trnflow.tasks.stage import Stage, stage_of
from trnflow.tasks.store import Store
from trnflow.tasks.train import train
from trnflow.tasks.training.config import TrainConfig


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


def test_only_runs_that_use_torch_xla_import_it(tmp_path: Path) -> None:
    """transformers imports it where it can, for 2 s, and neither consolidate nor evaluate_model asks for it."""

    def parents(*settings: str) -> dict[str, Parent]:
        context = context_of(load("demo", settings), Store(str(tmp_path / "store"), tmp_path / "home"), offline=True)
        plan = make_plan(finetune(context.recipe), context)
        return {name: parent_of(plan.steps[name], context) for name in ("train", "consolidate", "evaluate_model")}

    native = ("train.engine=native", "train.devices=1")
    for target in ("none", "onnx", "gguf"):
        for variables, modules in parents(*native, f"export.target={target}").values():
            assert variables["USE_TORCH_XLA"] == "0" and "torch_xla" not in modules
    for used in (parents("export.target=none"), parents(*native)):
        assert "USE_TORCH_XLA" not in used["consolidate"][0]


def test_only_parents_of_stages_that_train_with_lora_import_peft(tmp_path: Path) -> None:
    """Its import takes 1.3 s, in each process whose parent has not done it."""
    memo = Memo(tmp_path / "memo.db")

    def has_peft(stage: Stage, config: StageConfig) -> bool:
        return "peft" in process_of(stage, config, memo, {})[1]

    for stage in (stage_of(precompile), stage_of(train), stage_of(compute_reference)):
        assert has_peft(stage, TrainConfig(method="lora"))
        assert not has_peft(stage, TrainConfig())
    assert not has_peft(stage_of(consolidate), ConsolidateConfig())


def test_a_variable_of_launch_environment_counts_over_the_stage_s_own(tmp_path: Path) -> None:
    memo, stage = Memo(tmp_path / "memo.db"), stage_of(train)
    own = stage.environ(TrainConfig())
    assert own
    for name in own:
        assert process_of(stage, TrainConfig(), memo, {name: "mine"})[0] == own | {name: "mine"}
