"""The columns that MLflow's table of runs shows: of itself it shows no metric, and cuts names."""

from __future__ import annotations

import json
import time

from trnflow.tasks.tracking.addresses import VIEW
from trnflow.tasks.tracking.mlflow_values import SUMMARY

VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
"""The tag of an experiment that holds the view."""
NAME_PIXELS, METRIC_PIXELS = 360, 210  # of a run: for a recipe's name of up to 17 letters


def saved_view() -> str:
    """Return the value of VIEW_TAG, in the form in which MLflow's page (3.17) saves a view."""
    # the page leaves out a metric that no run has
    metrics = {f"metrics.`{name}`": METRIC_PIXELS for name in SUMMARY}
    widths = {"attributes.`Run Name`": NAME_PIXELS} | metrics
    columns = [*metrics, "attributes.`Dataset`", "attributes.`Models`"]
    state = {"selectedColumns": columns, "columnOrder": list(widths), "columnWidths": widths}
    return json.dumps({"name": VIEW, "createdAt": int(time.time() * 1000), "state": json.dumps(state)})
