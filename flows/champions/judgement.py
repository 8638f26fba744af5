"""The newest judgement of a recipe: the file `roots/judged/<name>.json`, which names the run whose model was judged.

Garbage collection keeps what that run made.
"""

from __future__ import annotations

import json

from flows.recipes.recipe import Recipe
from flows.runner.attempts import now
from tasks.artifact import Meta
from tasks.errors import StoreError
from tasks.store import Store
from tasks.store.garbage.numbered_roots import quoted_name
from tasks.store.layout import read_object

JUDGED = "roots/judged"


def newest_judged(store: Store, recipe: Recipe) -> Meta | None:
    """Return the document of a recipe's newest judgement; None if no model was judged.

    Its field `run` is the id of the run whose model was judged, `document` the JSON of `Retrained`.

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


def write_judged(store: Store, name: str, run: str, outcome: Meta) -> None:
    """Replace the newest judgement of a recipe. run: the id of the run whose model was judged; outcome: the JSON of
    `Retrained`."""
    document = {"schema": 1, "recipe": name, "run": run, "created": now(), "document": outcome}
    store.backend.replace(_place(name), json.dumps(document, indent=1, sort_keys=True).encode())


def _place(name: str) -> str:
    return f"{JUDGED}/{quoted_name(name)}.json"
