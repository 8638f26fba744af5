"""Stand-ins for the flows that moved from this file to flows/deployments.py. Deployments registered before the move
name this file.

Each run of such a deployment fails with the advice to register it again. Remove this file with the next release.
"""

from __future__ import annotations

from prefect import Flow

from trnflow.tasks.errors import ConfigError


def _moved(
    recipe: str = "demo",
    overrides: list[str] | None = None,
    until: str | None = None,
    force: list[str] | None = None,
    offline: bool = False,
) -> None:
    """Raise ConfigError. The parameters are those that registered deployments may have."""
    raise ConfigError(
        "this deployment names flows/orchestrate.py, and its flow has moved to flows/deployments.py",
        "name flows/deployments.py in the entrypoints of prefect.yaml, then run `make deploy` again",
    )


finetune = Flow(_moved, name="finetune", persist_result=False)
prepare = Flow(_moved, name="prepare", persist_result=False)
retrain = Flow(_moved, name="retrain", persist_result=False)
