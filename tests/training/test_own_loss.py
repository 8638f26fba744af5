"""`train.loss`: a function of the user's is what training minimises, once it is proved to be a sum over targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.flows.champions.conftest import RECIPE, write_rows
from tests.helpers.command_line import InProcessShell
from tests.helpers.products import few
from trnflow.tasks.errors import DataError
from trnflow.tasks.training.own_loss import _scalar

CROSS_ENTROPY = '''"""A loss."""

import torch


def plain(logits, targets, weights):
    return torch.nn.functional.cross_entropy(logits, targets, weight=weights, ignore_index=-100, reduction="sum")
'''
FOCAL = '''"""A loss."""

import torch


def plain(logits, targets, weights):
    """The focal loss, gamma 2: easy rows count little."""
    each = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).sum()
'''


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    folder = tmp_path_factory.mktemp("loss")
    write_rows(folder / "rows", {"pos": "pos", "neg": "neg"})
    recipe = RECIPE.replace("stablehlo", "none").replace("max_steps: 1", "max_steps: 8")
    (folder / "built_in.yaml").write_text(recipe)
    (folder / "own.yaml").write_text(recipe.replace("max_steps: 8", "max_steps: 8, loss: 'losses:plain'"))
    (folder / "losses.py").write_text(CROSS_ENTROPY)
    return InProcessShell(folder)


def checkpoint(shell: InProcessShell, *settings: str) -> dict[str, Any]:
    stages = shell.json("run", *settings, "--direct", "--until", "train")["stages"]
    return next(stage for stage in stages if stage["stage"] == "train")


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["native", "xla"], 1))
def test_the_same_loss_trains_to_the_same_bits(shell: InProcessShell, engine: str) -> None:
    settings = (f"train.engine={engine}", "train.class_weights=balanced", "train.micro_batch=8")
    (shell.folder / "losses.py").write_text(CROSS_ENTROPY)
    ours, theirs = checkpoint(shell, "own.yaml", *settings), checkpoint(shell, "built_in.yaml", *settings)
    assert ours["key"] != theirs["key"] and ours["metrics"] == theirs["metrics"]
    files = [shell.folder / f"{engine}_{name}" for name in ("own", "built_in")]
    for folder in files:
        shell.json("get", f"{folder.name.removeprefix(engine + '_')}.yaml", *settings, "train", str(folder))
    left, right = (sorted(folder.glob("*.safetensors")) for folder in files)
    assert left and [file.read_bytes() for file in left] == [file.read_bytes() for file in right]


STEADY = ("train.learning_rate=0.5", "train.eps=1.0")
"""With this eps AdamW follows the gradient; with its own it makes a step of each sign, also of one that is rounding."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(("train.devices=2", "train.micro_batch=4"), id="ranks"),
        pytest.param(("train.compile=true",), id="compiled", marks=pytest.mark.nightly),
    ],
)
def test_two_ranks_and_compiled_graphs_train_as_one_process(shell: InProcessShell, way: tuple[str, ...]) -> None:
    (shell.folder / "losses.py").write_text(FOCAL)
    losses, weights = [], []
    for name, settings in {"one": STEADY, way[0]: (*STEADY, *way)}.items():
        losses.append(checkpoint(shell, "own.yaml", "train.micro_batch=8", *settings)["metrics"])
        folder = shell.folder / f"{name}_beside_{way[0]}"
        shell.json("get", "own.yaml", "train.micro_batch=8", *settings, "train", str(folder))
        weights.append(
            {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
        )
    one, other = weights
    assert abs(losses[0]["eval_loss"] - losses[0]["eval_loss_before"]) > 1e-3, "weights move"
    assert losses[0]["train_loss"] == pytest.approx(losses[1]["train_loss"], abs=1e-5)
    assert one.keys() == other.keys() and max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5


@pytest.mark.slow
def test_an_edited_loss_trains_again_from_precompile_on(shell: InProcessShell) -> None:
    (shell.folder / "losses.py").write_text(CROSS_ENTROPY)
    before = checkpoint(shell, "own.yaml")
    (shell.folder / "losses.py").write_text(FOCAL)
    plan = {stage["stage"]: stage for stage in shell.json("plan", "own.yaml")["stages"]}
    due = {name for name, stage in plan.items() if stage["action"] == "run"}
    assert due == {"precompile", "train"} and plan["train"]["why"] == "plain in losses.py changed"
    after = checkpoint(shell, "own.yaml")
    assert after["metrics"]["train_loss"] < 0.5 * before["metrics"]["train_loss"]
    assert after["metrics"]["eval_loss_before"] == before["metrics"]["eval_loss_before"], "the plain cross entropy"


BAD = {
    "    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100)": "losses.py:6 in plain: it is no sum "
    "over targets: of 8 rows it returns",
    "    return torch.nn.functional.cross_entropy(logits, targets.clamp(min=0), reduction='sum')": "rows without a target "
    "change the loss",
    "    return logits.logsumexp(0).sum() * (targets >= 0).sum()": "it is no sum over targets",
    "    return logits.new_zeros(())": "losses.py:6 in plain: its loss has no gradient",
    "    return 1.0": "losses.py:6 in plain: it returned float, no scalar of floats",
    "    return logits": "it returned a tensor [8, 2], no scalar of floats",
    "    return logits.sum() * float('nan')": "its loss is nan on random logits",
    "    return logits['a']": "error in precompile: losses.py:7 in plain: ",
    "    import time\n    return logits[targets >= 0].sum() * (time.time() // 3600)": "gives two losses of the same logits",
    "    raise SystemExit(3)": "losses.py:7 in plain: SystemExit 3 on random logits [8, 2]",
}


@pytest.mark.slow
def test_what_is_no_loss_is_one_line_before_training(shell: InProcessShell) -> None:
    for body, told in BAD.items():
        (shell.folder / "losses.py").write_text(
            f'"""A loss."""\n\nimport torch\n\n\ndef plain(logits, targets, weights):\n{body}\n'
        )
        assert told in shell.error("run", "own.yaml", "--direct", "--until", "train", code=1), body


def test_settings_that_do_not_go_with_a_loss(shell: InProcessShell) -> None:
    assert "label_smoothing is of the built-in loss" in shell.error(
        "plan", "own.yaml", "train.label_smoothing=0.1", code=2
    )
    assert "train.loss" in shell.error("plan", "built_in.yaml", "train.loss=losses:plain", code=2), "no override"
    (shell.folder / "losses.py").write_text("def plain(logits, targets): ...\n")
    assert "can't be called as plain(logits: Tensor" in shell.error("plan", "own.yaml", code=2)


def test_a_vocabulary_in_shards_is_refused() -> None:
    from trnflow.tasks.errors import ConfigError
    from trnflow.tasks.training.config import TrainConfig
    from trnflow.tasks.training.objective import refuse_loss

    config = TrainConfig(loss="losses:plain", devices=2, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="train.loss reads all logits of a token"):
        refuse_loss(config, "causal_lm")
    refuse_loss(config, "classification")


def test_a_loss_is_a_finite_scalar_with_a_gradient() -> None:
    logits = torch.ones(8, 2, requires_grad=True)
    assert _scalar(logits.sum(), "here").item() == 16
    for value, told in {
        1.0: "it returned float", logits: r"it returned a tensor \[8, 2\]", logits.argmax(): r"it returned a tensor \[\]",
        logits.detach().sum(): "its loss has no gradient", logits.sum() / 0: "its loss is inf on random logits",
    }.items():  # fmt: skip
        with pytest.raises(DataError, match=f"^here: {told}"):
            _scalar(value, "here")
