"""The proof of `train.loss`: what is no sum over the targets of its rows is refused, once for each task."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnflow.tasks.artifact import CODE, Meta, Source
from trnflow.tasks.errors import DataError
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training import own_loss
from trnflow.tasks.training.config import TrainConfig

SUM = "cross_entropy(logits, targets, weights, ignore_index=-100, reduction='sum')"


def code_of(folder: Path, loss: str) -> Source:
    """The code of a loss, in a module whose name no other test has."""
    name = f"losses_of_{folder.name.replace('-', '_')}"
    file = folder / f"{name}.py"
    head = "from torch.nn.functional import cross_entropy\n\n\ndef plain(logits, targets, weights):\n"
    file.write_text(f"{head}    return {loss}\n")
    location = {"functions": {own_loss.HOOK: f"{name}:plain"}, "search": [str(folder)], "files": {name: str(file)}}
    return Source(CODE, {"code": {name: loss}}, {**location, "proofs": str(folder / "proofs")})


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (SUM, ""),
        (SUM.replace("'sum'", "'mean'"), "it is no sum over targets"),
        (f"{SUM} + 0.01 * len(logits) ** 2", "it is no sum over targets"),
        (SUM.replace("targets,", "targets.clamp(min=0),"), "rows without a target change the loss"),
        # a root at 0: one number has no gradient
        (f"{SUM} + (logits[0, 0] - logits[0, 0].detach()).abs().sqrt()", "its gradient is not finite"),
    ],
)
def test_a_loss_is_a_sum_over_the_targets_of_random_rows(
    loss: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = vars(code_of(tmp_path, loss))
    asked = {"task": "classification", "outputs": 3, "weighted": True, "elsewhere": False, "code": code}
    if told:
        with pytest.raises(DataError, match=told):
            own_loss.checked(asked, lambda row: None)
        return
    found = own_loss.checked(asked, lambda row: None)
    rows = found["gradient"]
    assert found["loss"] > 0 and rows[8:] == [[0.0] * 3] * 2 and all(any(row) for row in rows[:8])


def test_each_task_is_proved_once_with_weights_where_the_recipe_has_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proved: list[Meta] = []

    def call(name: str, given: Meta, *place: object) -> Meta:
        proved.append(given)
        return {}

    monkeypatch.setattr(own_loss, "call_own", call)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out = code_of(tmp_path, SUM), Workdir(tmp_path / "out", tmp_path / "scratch", lambda event: None)
    tasks = ("classification", "causal_lm")
    for weights in ("balanced", "balanced", None):
        for task in tasks:
            packed = {"task": task, "labels": None}
            own_loss.imported(TrainConfig(class_weights=weights), code, packed, out)  # type: ignore[arg-type]
    asked = [(given["task"], given["weighted"], given["elsewhere"]) for given in proved]
    assert asked == [(task, weighted, away) for weighted in (True, False) for task in tasks for away in (False, True)]
