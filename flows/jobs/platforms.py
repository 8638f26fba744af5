"""The platform that a recipe's `launch` section names."""

from __future__ import annotations

from trnflow.flows.recipes.sections import LaunchConfig
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.platforms.protocol import Platform
from trnflow.tasks.platforms.slurm import Slurm
from trnflow.tasks.store import Store


def platform_of(launch: LaunchConfig, store: Store) -> Platform:
    """Return the platform on which a recipe's jobs run. store: its home is where the platform keeps what belongs to the job."""
    return Slurm(store.home, launch.max_hours, launch.grace_seconds, launch.retries, launch.options)


def platform_named(kind: str, store: Store) -> Platform:
    """Return a platform to look after jobs that were submitted. Raises ConfigError for an unknown one."""
    if kind != Slurm.kind:
        raise ConfigError(
            f"there is no platform {kind} in this version of trnflow", "use the version that submitted the job"
        )
    return platform_of(LaunchConfig(kind="slurm"), store)
