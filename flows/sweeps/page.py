"""Make sweep.html: one file without scripts that loads nothing. Jinja escapes all texts."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.flows.sweeps.files import SweepDocument
from trnflow.flows.sweeps.study import Winner
from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.curves import number
from trnflow.tasks.evaluation.report_page import table
from trnflow.tasks.system.redaction import scrub

if TYPE_CHECKING:
    from optuna import Study

PLOTS = {
    "plot_optimization_history": "The metric of each trial, and the best so far",
    "plot_param_importances": "How much of the metric's variance each setting explains (fANOVA)",
    "plot_parallel_coordinate": "Settings and metric of each trial, one line a trial",
}
"""{function of `optuna.visualization.matplotlib`: what its plot shows}"""

STATES = {
    "pruned": "a pruned trial ended early, since an evaluation was worse than the median of earlier trials",
    "killed": "the sweep was killed during a killed trial, and a later trial has its settings",
    "failed": "the errors of failed trials are below",
}
"""{state of a trial that a reader may not know: what it means}"""


def sweep_page(content: SweepDocument, study: Study | None) -> str:
    """Return sweep.html. study: for Optuna's plots; None for a page without them."""
    from jinja2 import Environment, StrictUndefined

    source = Path(__file__).with_name("sweep.html.jinja").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
    trials, best, winner, metric = content["trials"], content["best"], content["winner"], content["metric"]
    states = [trial["state"] for trial in trials]
    completed_first = sorted(set(states), key=lambda state: (state != "completed", state))
    counts = ", ".join(f"{states.count(state)} {state}" for state in completed_first)
    errors = [(trial["number"], scrub(trial["error"])) for trial in trials if trial["error"]]
    shared = f"{content['shared_seconds']:.0f} s of stages shared between trials"
    return template.render(
        title=f"Sweep {content['study']}",
        subtitle=f"{content['recipe']}, {metric} ({content['direction']}): {counts or 'no trial yet'}; {shared}",
        best=_values("setting", best["settings"].items()) if best else None,
        about_best=f"Trial {best['number']}: {metric} {number(best['value'])} on validation. best.yaml has these settings."
        if best
        else "",
        winner=_winner(winner) if winner else [],
        plots=list(_plots(study, metric)) if best and study else [],
        trials=_trials(trials, metric),
        best_trial=best["number"] if best else None,
        legend="; ".join(meaning for state, meaning in STATES.items() if state in states),
        errors=table(("trial", "error"), errors, ("trial",)) if errors else None,
    )


def _values(kind: str, values: Iterable[tuple[str, Any]]) -> Meta:
    return table((kind, "value"), ((name, number(value)) for name, value in values))


def _winner(winner: Winner) -> list[Meta]:
    """Return a table of the metrics on the test split, and one of all others."""
    test = winner["test"]
    training = {name: value for name, value in winner["metrics"].items() if name not in test}
    tables = {"Its whole run, on the test split": test, "Its data, training and export": training}
    return [
        {"title": title} | _values("metric", sorted(metrics.items())) for title, metrics in tables.items() if metrics
    ]


def _trials(trials: list[Meta], metric: str) -> Meta:
    settings = list(dict.fromkeys(name for trial in trials for name in trial["settings"]))
    rows = [
        (
            trial["number"], trial["state"], "" if trial["value"] is None else number(trial["value"]),
            *(number(trial["settings"].get(name, "")) for name in settings), trial["run"] or "",
        )
        for trial in trials
    ]  # fmt: skip
    columns = ("trial", "state", metric, *settings, "run")
    return table(columns, rows, ("trial", metric, *settings))


def _plots(study: Study, metric: str) -> Iterator[Meta]:
    """Yield Optuna's plots as data images, without those that need more trials."""
    import matplotlib

    # a machine without a display
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import optuna.visualization.matplotlib as visualization

    for name, caption in PLOTS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna calls these plots experimental
            try:
                axes = getattr(visualization, name)(study, target_name=metric)
            except (ValueError, RuntimeError):  # such as the importances of a single trial
                plt.close("all")
                continue
            drawn = io.BytesIO()
            axes.figure.savefig(drawn, format="png", bbox_inches="tight", dpi=110, metadata={"Software": None})
            image = base64.b64encode(drawn.getvalue()).decode()
            yield {"caption": caption, "data": f"data:image/png;base64,{image}"}
        plt.close("all")
