"""What was decided about the model of a run, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable

from trnflow.tasks.store.ledger.entries import OUT_OF_BOUNDS, REFUSED, Entry


def verdict_on(run: str, entries: Iterable[Entry]) -> str | None:
    """Return the newest decision about a run's model; None without one. entries: of a ledger, newest first."""
    by_number = {entry["n"]: entry for entry in entries}
    decided = (entry for entry in by_number.values() if entry["run"] == run and entry["by"] in ("retrain", "promote"))
    entry = next(decided, None)
    if entry is None:
        return None
    pair, stands = entry["comparison"], entry["stands"]
    if pair is None:
        return f"{entry['outcome']}: {entry['why']}"
    number = stands["champions"][0]["number"] - (entry["outcome"] == "promoted")
    frozen = (each for each in by_number.values() if each["outcome"] == "frozen" and each["n"] < entry["n"])
    rows = next((each for each in frozen if each["frozen"] == entry["frozen"]), None)
    parts = [
        f"{entry['outcome']}: {pair['metric']} {pair['challenger']:.4g} against {pair['champion']:.4g} of champion {number}",
        f"difference {pair['difference']:+.4g}, interval {pair['low']:+.4g} to {pair['high']:+.4g}",
        f"{pair['rows']} frozen rows" + (f" of {rows['created'][:10]}" if rows else ""),
    ]
    if entry["why"].startswith((REFUSED, OUT_OF_BOUNDS)):
        parts.append(entry["why"])
    if pair.get("spent"):
        parts.append(f"budget spent {pair['spent']:.1%}")
    return "; ".join(parts)
