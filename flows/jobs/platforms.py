"""The platform that a recipe's `launch` section names."""

from __future__ import annotations

from trnflow.flows.recipes.recipe import Recipe
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.platforms.protocol import Platform
from trnflow.tasks.platforms.sagemaker import SageMaker
from trnflow.tasks.platforms.slurm import Slurm
from trnflow.tasks.store import Store


def platform_of(recipe: Recipe, store: Store) -> Platform:
    """Return the platform on which a recipe's jobs run. store: its home is where Slurm keeps what belongs to the job."""
    launch = recipe.launch
    if launch.kind == "sagemaker":
        return SageMaker(
            store.root, recipe.hardware.name, launch.role or "", launch.image or "", launch.max_hours, launch.max_wait_hours,
            launch.retries, launch.spot, launch.keep_alive_minutes, launch.secret or "", launch.options,
        )  # fmt: skip
    return Slurm(store.home, launch.max_hours, launch.grace_seconds, launch.retries, launch.options)


def platform_named(kind: str, store: Store) -> Platform:
    """Return a platform to look after jobs that were submitted. Raises ConfigError for an unknown one."""
    if kind == SageMaker.kind:
        return SageMaker(store.root)
    if kind == Slurm.kind:
        return Slurm(store.home, 24.0, 0.0, 0)
    raise ConfigError(
        f"there is no platform {kind} in this version of trnflow", "use the version that submitted the job"
    )
