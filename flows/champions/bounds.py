"""Hold a challenger's evaluation to `promote.at_least` and `promote.at_most`."""

from __future__ import annotations

from trnflow.flows.champions.contenders import Contender
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.promotion.settings import PromoteConfig
from trnflow.tasks.store import Store


def broken_bounds(config: PromoteConfig, challenger: Contender, store: Store) -> list[str]:
    """Return why the bounds refuse a challenger. Raises ConfigError for a metric that its newest evaluation lacks, BlobLost."""
    if not (config.at_least or config.at_most):
        return []
    metrics = store.artifact(challenger.evaluation).meta["metrics"] if challenger.evaluation else {}
    for name in {**config.at_least, **config.at_most}:
        if name not in metrics:
            raise ConfigError(
                f"promote bounds {name}, which the newest evaluation of the model does not have (it has: "
                f"{', '.join(metrics) or 'none'})",
                "correct the name, or let `trnflow run` evaluate the model",
            )
    low = [
        f"{name} is {metrics[name]:.4g}, below {least:g}"
        for name, least in config.at_least.items()
        if metrics[name] < least
    ]
    high = [
        f"{name} is {metrics[name]:.4g}, above {most:g}"
        for name, most in config.at_most.items()
        if metrics[name] > most
    ]
    return low + high
