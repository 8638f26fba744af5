"""What `trnflow health` says: its document, its lines and its page."""

from __future__ import annotations

from typing import TypedDict

from trnflow.flows.champions.forced import told
from trnflow.flows.display import report
from trnflow.flows.retraining.firings import Firing
from trnflow.flows.services.login import OPEN
from trnflow.tasks.store.ledger.entries import Forced
from trnflow.tasks.store.verify import LastVerified

SECONDS = 2.0
"""How long all parts together may take."""

TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem; font: 16px/1.5 system-ui, sans-serif; color: #1d2733; }
.problem { border-left: 4px solid #c77700; background: #fff7e8; padding: .5rem .8rem; }
th { text-align: left; vertical-align: top; padding-right: 1rem; white-space: pre; }
td, p { overflow-wrap: anywhere; }
</style></head><body>
<h1>{{ title }}</h1><p>As of {{ created }}; `trnflow health` and `trnflow ui` write this page anew.</p>
{% for problem in problems %}<p class="problem">{{ problem }}</p>{% endfor %}
<table>{% for name, state in rows %}<tr><th>{{ name }}</th><td>{{ state }}</td></tr>{% endfor %}</table>
</body></html>
"""


class PrefectHealth(TypedDict):
    """login: whether the server asks for one; next: when the next flow run is due. running, waiting, late: flow runs."""

    url: str | None
    login: bool
    next: str | None
    running: int
    waiting: int
    late: int


class MlflowHealth(TypedDict):
    address: str


class StoreHealth(TypedDict):
    """bytes: in use; free: on its disk. None if unknown."""

    root: str
    bytes: int | None
    free: int | None


class SpoolHealth(TypedDict):
    """Runs whose events MLflow lacks."""

    runs: int
    oldest_seconds: int


class Serving(TypedDict):
    """A champion. days: its age; forced: if a person made it champion without evidence."""

    number: int | None
    artifact: str | None
    created: str
    days: float
    forced: Forced | None


class LastFiring(Firing):
    """The last retrain, and what its run took. dollars: 0 without a price."""

    seconds: float | None
    dollars: float | None


class RecipeHealth(TypedDict):
    """store: its root; failures: of retrains, in a row."""

    recipe: str
    store: str
    champion: Serving | None
    last: LastFiring | None
    failures: int


class HealthParts(TypedDict):
    """The parts that `trnflow health` looks at; None for one that did not answer in time."""

    prefect: PrefectHealth | None
    mlflow: MlflowHealth | None
    store: StoreHealth | None
    spool: SpoolHealth | None
    verify: LastVerified | None
    recipes: list[RecipeHealth] | None


class Health(HealthParts):
    """What `trnflow health --json` prints. healthy: no problem, and every answer. unanswered: names of parts, and of recipes
    (`NAME (recipe)`), that did not answer in time."""

    healthy: bool
    created: str
    problems: list[str]
    unanswered: list[str]


def lines_of(found: Health) -> list[str]:
    """Return what is printed: a line for each part, then the problems."""
    return [
        _state(found),
        *report.aligned([("part", "state"), *_rows(found)]),
        *(f"problem: {problem}" for problem in found["problems"]),
    ]


def _state(found: Health) -> str:
    if found["problems"]:
        return f"not healthy: {len(found['problems'])} problem{'s' * (len(found['problems']) > 1)}"
    return "slow: not everything answered" if found["unanswered"] else "healthy"


def page_of(found: Health) -> str:
    """Return the page of `trnflow health` as HTML: one file that loads nothing and runs no script."""
    from jinja2 import Environment, StrictUndefined

    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(TEMPLATE)
    title = f"trnflow is {_state(found)}"
    html = template.render(title=title, created=found["created"], problems=found["problems"], rows=_rows(found))
    return html.encode(errors="replace").decode()  # halves of pairs, which JSON may hold, are no UTF-8


def _rows(found: Health) -> list[tuple[str, str]]:
    """Return (part, its state) of each part."""
    prefect, mlflow, store = found["prefect"], found["mlflow"], found["store"]
    spool, verify, recipes = found["spool"], found["verify"], found["recipes"]
    root = store and store["root"]
    rows = [row for recipe in recipes or () for row in _recipe_rows(recipe, root)]
    if recipes == []:
        rows = [("recipes", "no decision about a model yet")]
    # a part that did not answer is None, and its line says so
    states = {
        "prefect": prefect
        and f"{prefect['url'] or 'no server'}; next firing {prefect['next'] or 'none'}; {prefect['running']} running, "
        f"{prefect['waiting']} waiting, {prefect['late']} late"
        f"{'' if prefect['login'] else f'; {OPEN}'}",
        "mlflow": mlflow and mlflow["address"],
        "store": store and f"{store['root']}: {_gb(store['bytes'])} in use, {_gb(store['free'])} free",
        "spool": spool and f"{spool['runs']} runs that MLflow lacks, the oldest {spool['oldest_seconds']:.0f} s old",
        "verify": verify and (f"{verify['created']}: {verify['damaged']} damaged" if verify["created"] else "never"),
    }
    late = dict.fromkeys(found["unanswered"], f"no answer within {SECONDS:.0f} s")
    rows += [(name, text) for name, text in late.items() if name not in states]
    return rows + [(name, state or late.get(name, "unknown")) for name, state in states.items()]


def _recipe_rows(one: RecipeHealth, root: str | None) -> list[tuple[str, str]]:
    """Return what a recipe serves, what its last firing did, and what that cost. root: of the store that is looked at."""
    name, champion, last = one["recipe"], one["champion"], one["last"]
    serves, firing = "no champion", "none"
    if champion:
        serves = f"champion {champion['number']} ({str(champion['artifact'])[:19]}), {champion['days']:.0f} days old"
        if champion["forced"]:
            serves += f"; forced by {champion['forced']['who']}: {told(champion['forced'])}"
    if one["store"] != root:
        serves += f"; store {one['store']}"
    if last:
        run = f"run {last['run']}" if last["run"] else "no run"
        firing = f"{last['created']} {last['outcome']}: {last['why']}; {run}; {one['failures']} failures in a row"
    rows = [(f"{name}: serves", serves), (f"{name}: last firing", firing)]
    if last and last["seconds"] is not None:
        price = f"{last['dollars']} USD" if last["dollars"] else "no price (hardware.price_per_hour is 0)"
        rows.append((f"{name}: its cost", f"{report.seconds(last['seconds'])} s, {price}"))
    return rows


def _gb(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 1e9:.3g} GB"
