"""Run a graph, and record the run in MLflow."""

from __future__ import annotations

from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import Around, Result, call, run
from trnflow.flows.services.mlflow_listener import Tracking


def run_tracked(
    graph: Graph,
    context: RunContext,
    options: Options,
    *,
    around: Around = call,
    tags: dict[str, str] | None = None,
) -> Result:
    """Run a graph as `run` does, recorded in MLflow. context: `for_run` of this run; tags: of the run in MLflow."""
    tracking = Tracking(context.recipe, context.store.home, context.run, tags)
    with tracking, context.log.also(tracking):
        return tracking.finish(run(graph, context, options, around=around))
