"""Workers of two kinds on one store: what one has trained, the other does not train again, unless something else changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.champions.conftest import RECIPE, write_rows
from tests.helpers.command_line import InProcessShell
from trnflow.flows.recipes import hardware
from trnflow.tasks.system.gpus import Gpu, Usable

pytestmark = pytest.mark.slow

A10G = Usable((Gpu("NVIDIA A10G", "GPU-1", 23028 << 20, (8, 6)),), driver="570.86.15")


def test_a_machine_with_a_gpu_leaves_alone_what_a_processor_has_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = InProcessShell(tmp_path)
    lines = [line for line in RECIPE.splitlines() if not line.startswith(("extends", "export"))]
    (tmp_path / "tiny.yaml").write_text("\n".join([*lines, "export: {target: none}"]))
    write_rows(tmp_path / "rows", {"pos": "pos", "neg": "neg"})
    monkeypatch.setattr(hardware, "find_gpus", lambda **variables: Usable(why="no NVIDIA GPU was found"))
    assert shell.json("retrain", "tiny.yaml", "--direct")["promoted"]

    monkeypatch.setattr(hardware, "find_gpus", lambda **variables: A10G)
    assert shell.json("config", "tiny.yaml")["train"]["device"] == "cuda"
    same = shell.json("retrain", "tiny.yaml", "--dry-run")
    assert not same["changed"] and same["why"].endswith(", on another machine")
    rate = shell.json("retrain", "tiny.yaml", "--dry-run", "train.learning_rate=0.02")
    assert rate["changed"] and "settings" in rate["why"]
    with (tmp_path / "rows/train.jsonl").open("a") as file:
        file.write('\n{"text": "one more lovely day", "label": "pos"}')
    assert shell.json("retrain", "tiny.yaml", "--dry-run")["changed"]
