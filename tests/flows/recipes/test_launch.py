"""`launch`: where a run's stages go, checked when the recipe is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trnflow.flows.recipes.recipe import load
from trnflow.flows.recipes.sections import LaunchConfig
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.launch import GRACE_SECONDS

SLURM = "launch.kind=slurm"


@pytest.mark.parametrize(
    ("overrides", "says", "fix"),
    [
        (["launch.retries=1"], "retries is of a job, and kind is local", "set launch.kind=slurm, or launch={} to run all"),
        (["launch.options={partition: gpu}"], "options is of a job, and kind is local", "set launch.kind=slurm"),
        ([SLURM, "launch.nodes=2"], "2 machines: several nodes are not built", "change launch.nodes"),
        ([SLURM, "launch.python=python3"], "'python3' is no absolute path", "change launch.python"),
        ([SLURM, "launch.grace_seconds=70000"], "grace_seconds may be 65,475 at most", "change launch.grace_seconds"),
        (
            [SLURM, "launch.max_hours=0.05"],
            "max_hours is 0.05, and a job is stopped 220 seconds before its end",
            "set launch.max_hours=0.1 or more",
        ),
        ([SLURM, "launch.grace_seconds=3600", "launch.max_hours=1"], "stopped 3720 seconds before its end", "=1.1 or more"),
    ],
)  # fmt: skip
def test_what_a_job_can_not_do_is_said_when_the_recipe_is_read(overrides: list[str], says: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("demo", overrides)
    assert says in caught.value.message and fix in caught.value.fix


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"time": 5}, "time is set by launch.max_hours: leave it out"),
        ({"tim": 5}, "tim is set by launch.max_hours"),
        ({"wrap": "rm"}, "wrap is set by trnflow"),
        ({"outpu": "/tmp/x"}, "outpu is set by trnflow"),
        ({"requeue": True}, "requeue is set by trnflow"),
        ({"Partition": "gpu"}, "'Partition' is no long option"),
        ({"--partition": "gpu"}, "'--partition' is no long option"),
        ({"p": "gpu"}, "'p' is no long option"),
        ({"exclusive": False}, "exclusive is false"),
        ({"comment": "a\nb"}, "comment holds a line break"),
        ({"comment": "a\0b"}, "comment holds a line break or another control character"),
    ],
)  # fmt: skip
def test_options_that_sbatch_must_not_get_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("demo", [SLURM, f"launch.options={json.dumps(options)}"])
    assert says in caught.value.message


def test_options_keep_their_kind() -> None:
    options = {"partition": "gpu", "gres": "gpu:1", "exclusive": True, "ntasks": 5, "nice": 1.5, "mem": "0"}
    assert load("demo", [SLURM, f"launch.options={json.dumps(options)}"]).launch.options == options


def test_the_job_itself_runs_its_stages_where_it_is() -> None:
    launch = load("demo", [SLURM, "launch.options={partition: gpu}", "launch.grace_seconds=7"]).launch
    there = launch.here()
    assert (there.kind, there.options, there.grace_seconds) == ("local", {}, 7.0)
    assert LaunchConfig.model_validate(there.model_dump()) == there


def test_the_shipped_setting_of_slurm_can_be_read() -> None:
    assert LaunchConfig(kind="slurm").grace_seconds == GRACE_SECONDS


@pytest.mark.parametrize("name", ["XLA_FLAGS", "NEURON_CC_FLAGS"])
def test_flags_that_change_results_are_no_variables_of_stages(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} changes results: set train.compiler_flags"):
        load("demo", [f"launch.environment={{{name}: -O2}}"])
