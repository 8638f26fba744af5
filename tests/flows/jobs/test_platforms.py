"""Each setting of `launch` reaches the platform under its own name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trnflow.flows.jobs.platforms import platform_named, platform_of
from trnflow.flows.recipes.recipe import load
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store

COMMON = {"max_hours": 3.0, "retries": 2}
OF_KIND: dict[str, dict[str, Any]] = {
    "sagemaker": {
        "role": "arn:aws:iam::123456789012:role/mine",
        "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
        "max_wait_hours": 5.0,
        "spot": True,
        "keep_alive_minutes": 0,
        "secret": "mine",
    },
    "slurm": {"grace_seconds": 90.0},
}


@pytest.mark.parametrize("kind", OF_KIND)
def test_a_setting_reaches_the_platform_under_its_name(kind: str, tmp_path: Path) -> None:
    store, wanted = Store(str(tmp_path / "store"), tmp_path / "home"), COMMON | OF_KIND[kind]
    recipe = load("demo", [f"launch.kind={kind}", *(f"launch.{name}={value}" for name, value in wanted.items())])
    platform = platform_of(recipe, store)
    assert {name: getattr(platform, name) for name in wanted} == wanted
    assert type(platform_named(kind, store)) is type(platform)
    with pytest.raises(ConfigError, match="there is no platform lsf"):
        platform_named("lsf", store)
