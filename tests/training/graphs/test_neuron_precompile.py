"""What `neuron_parallel_compile` reports decides, not its exit code, and all ranks must have traced the same graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trnflow.tasks.errors import CompileError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.graphs.neuron_precompile import _check, cache_variables, check_same_graphs, trial_command


@pytest.mark.parametrize(
    ("statuses", "exit_code", "failed"),
    [
        ([True, True], 0, ""),
        ([True, True], 3, ""),  # the exit code counts other things, too
        ([True, False], 0, "failed on 1 graphs: MODULE_1"),  # 256 failed graphs end with 0
        ([False] * 4, 4, "failed on 4 graphs: MODULE_0, MODULE_1, MODULE_2"),
        ([], 0, ""),
        ([], 1, "failed on 0 graphs: the trial run"),
    ],
)
def test_a_failed_graph_is_an_error_whatever_the_exit_code(
    statuses: list[bool], exit_code: int, failed: str, tmp_path: Path
) -> None:
    for number, status in enumerate(statuses):
        report = {"compilation_report": {f"MODULE_{number}": {"status": status}}}
        (tmp_path / f"neuron_parallel_compile_results_{number}.json").write_text(json.dumps(report))
    if failed:
        with pytest.raises(CompileError, match=failed):
            _check(tmp_path, exit_code)
    else:
        _check(tmp_path, exit_code)


def test_ranks_that_traced_other_graphs_would_wait_for_ever() -> None:
    def graphs(*hashes: str) -> list[Any]:
        return [{"name": "train", "length": 8 * at, "hash": digest} for at, digest in enumerate(hashes, start=1)]

    assert check_same_graphs([graphs("a", "b"), graphs("a", "b")]) == graphs("a", "b")
    with pytest.raises(CompileError, match="rank 1 traced another graph train of length 16 than rank 0"):
        check_same_graphs([graphs("a", "b"), graphs("a", "c")])


def test_the_trial_has_a_process_for_each_core_and_the_user_s_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    command = trial_command(TrainConfig(device="neuron", devices=4, global_batch=8), Path("spec.json"))
    assert "--nproc_per_node=4" in command and command[-1] == "spec.json"
    alone = trial_command(TrainConfig(device="neuron"), Path("spec.json"))
    assert not any("torch.distributed" in word for word in alone)
    monkeypatch.setenv("NEURON_CC_FLAGS", "--optlevel 3")
    assert cache_variables(Path("/cache")) == {"NEURON_CC_FLAGS": "--optlevel 3 --cache_dir=/cache"}
