"""The models that a recipe's retrains judged last: gc keeps what their runs made."""

from __future__ import annotations

from trnflow.flows.champions.contenders import model_in, run_of_model
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger
from trnflow.tasks.store.ledger.entries import JudgedModel


def judged_models(
    store: Store, ledger: Ledger, run: str, challenger: str, champion: str, keep: int
) -> list[JudgedModel]:
    """Return the judged models whose runs' results are kept, newest first, with the champion.

    run: of the challenger; challenger, champion: digests; keep: how many without the champion.
    """
    models = {challenger: run}
    for before in ledger.stands["judged"]:
        model = model_in(store.run(before["run"]) or {})  # None of a run that was removed by hand
        if model is not None and len(models) < keep:
            models.setdefault(model, before["run"])
    # the next retrain's checks compare with the champion's data
    of_champion = run_of_model(store, champion)
    if of_champion is not None:
        models.setdefault(champion, of_champion["run"])
    return [JudgedModel(run=made_by, model=model) for model, made_by in models.items()]
