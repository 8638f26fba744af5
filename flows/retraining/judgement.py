"""The newest judgement of a recipe: the file `roots/judged/<name>.json` in the store. A model is judged when a retrain
compares it with the champion (the model that the recipe's users get), or makes it the first champion. The file names
the run that made the model judged last, and the runs that made earlier judged models.

Garbage collection keeps the artifacts that these runs made.
"""

from __future__ import annotations

import json

from trnflow.flows.champions.contenders import model_in, run_of_model
from trnflow.flows.recipes.recipe import Recipe
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.numbered_roots import quoted_name
from trnflow.tasks.store.layout import read_object
from trnflow.tasks.system.clock import now

JUDGED = "roots/judged"


def newest_judged(store: Store, recipe: Recipe) -> Meta | None:
    """Return the content of a recipe's file `roots/judged/<name>.json` in the store; None if no model was judged. A
    model is judged when a retrain compares it with the champion (the model that users get), or makes it the first
    champion.

    Keys: run (the id of the run that made the model judged last), document (how that retrain ended, `Retrained` as
    JSON), created (when the file was written), earlier (other models whose results are kept, each as {"run", "model"}:
    the run's id and the model's digest; see `write_judged`).

    Raises:
        StoreError: The file can't be read.
    """
    place = _place(recipe.name)
    try:
        found = read_object(store.backend.read(place))
        return found if isinstance(found["run"], str) else None
    except FileNotFoundError:
        return None
    except (ValueError, KeyError) as error:
        fix = "look at the file; without it the next retrain judges the recipe's model again"
        raise StoreError(f"{place} can't be read: {error}", fix) from error


def write_judged(recipe: Recipe, store: Store, run: str, outcome: Meta) -> None:
    """Record in the store's file `roots/judged/<name>.json` that a model was judged: compared with the champion (the
    model that the recipe's users get), or made the first champion. The file replaces that of the judgement before.

    The file names the runs of the last `promote.keep_models` judged models, and the run of the champion, with whose
    data the next retrain's checks compare; garbage collection keeps the results of these runs.

    run: the id of the run whose model was judged; outcome: the JSON of how the retrain ended (`Retrained`)."""
    before = newest_judged(store, recipe)
    earlier = [before["run"], *(one["run"] for one in before.get("earlier", []))] if before else []
    models = {outcome["challenger"]: run}
    for one in earlier:
        model = model_in(store.run(one) or {})  # None of a run that was removed by hand
        if model is not None and len(models) < recipe.promote.keep_models:
            models.setdefault(model, one)
    champion = run_of_model(store, outcome["champion"])
    if champion is not None:
        models.setdefault(outcome["champion"], champion["run"])
    document = {"schema": 1, "recipe": recipe.name, "run": run, "created": now(), "document": outcome}
    document["earlier"] = [{"run": one, "model": model} for model, one in models.items() if one != run]
    store.backend.replace(_place(recipe.name), json.dumps(document, indent=1, sort_keys=True).encode())


def _place(name: str) -> str:
    return f"{JUDGED}/{quoted_name(name)}.json"
