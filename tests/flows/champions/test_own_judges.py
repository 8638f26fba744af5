"""Promotion by the user's own functions: a metric that models are compared by, and checks that refuse a challenger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.flows.champions.conftest import RECIPE, STRONG, write_amounts
from tests.flows.champions.test_champions import artifact_folder
from tests.helpers.command_line import InProcessShell
from trnflow.tasks.artifact import Meta

METRICS = """
def cost(p):
    wrong = p.expected != p.predicted
    return float(p.columns["amount"][wrong].sum()) / len(p)
"""
FIRST = """
def fair(challenger, champion):
    if champion is None:
        return "no model has been looked at yet"
"""
FAIR = """
def fair(challenger, champion):
    assert challenger.split == "frozen" and (challenger.row == range(1, len(challenger) + 1)).all()
    if champion is None:
        return None
    dear = challenger.columns["amount"] > 3
    now, before = (float((p.expected != p.predicted)[dear].mean()) for p in (challenger, champion))
    if now < before - LEAST:
        return f"wrong for {now:.0%} of the dear rows,\\n before {before:.0%}"
"""


def write_own(shell: InProcessShell, name: str, text: str) -> None:
    file = shell.folder / f"mine_of_judges/{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


@pytest.fixture
def shell(tmp_path: Path) -> InProcessShell:
    shell = InProcessShell(tmp_path)
    write_amounts(tmp_path / "rows")
    metric = "{function: 'mine_of_judges.metrics:cost', less_is_better: true, may_promote: true}"
    recipe = RECIPE.replace("export_rows: 0}", f"export_rows: 0, metrics: [{metric}]}}").replace("stablehlo", "none")
    recipe = recipe.replace("label: label}", "label: label, columns: {amount: amount}}")
    checks = "promote: {metric: cost, looks_per_year: 1, checks: ['mine_of_judges.checks:fair']}\n"
    (tmp_path / "own.yaml").write_text(f"{recipe}{checks}")
    write_own(shell, "metrics", METRICS)
    write_own(shell, "checks", FIRST)
    return shell


def cost_on_frozen_rows(shell: InProcessShell, scores: str, to: Path) -> float:
    found = pq.read_table(artifact_folder(shell, scores, to) / "scores.parquet").to_pylist()
    amounts = [json.loads(line)["amount"] for line in (shell.folder / "rows/test.jsonl").read_text().splitlines()]
    wrong = [amounts[row["frozen_row"]] for row in found if row["label"] != row["predicted"]]
    return float(sum(wrong)) / len(found)


@pytest.mark.slow
def test_a_metric_compares_and_checks_refuse(shell: InProcessShell, tmp_path: Path) -> None:
    shell.json("run", "own.yaml", "--direct", "--until", "consolidate")
    shell.json("run", "own.yaml", "--direct", "--until", "consolidate", STRONG)
    first = shell.json("promote", "own.yaml")
    assert not first["promoted"] and (first["champion"], first["number"], first["comparison"]) == (None, 0, None)
    assert first["why"] == "refused by promote.checks: fair: no model has been looked at yet"
    assert "no model has been looked at yet" in shell("promote", "own.yaml").stdout

    write_own(shell, "checks", f"LEAST = 0.01\n{FAIR}")
    assert shell.json("promote", "own.yaml")["promoted"]
    refused = shell.json("promote", "own.yaml", STRONG)
    assert not refused["promoted"] and refused["comparison"]["is_better"] and refused["number"] == 1
    assert refused["why"].startswith("refused by promote.checks: fair: wrong for ") and "\n" not in refused["why"]
    page = Path(shell.json("report")["path"]).read_text()
    assert "kept: cost " in page and refused["why"].split(" for ")[0] in page

    bad = {
        "    return 3": "mine_of_judges/checks.py:2 in fair: it returned 3 (int)",
        "    return champion.price": "mine_of_judges/checks.py:3 in fair: AttributeError",
    }
    for body, told in bad.items():
        write_own(shell, "checks", f"\ndef fair(challenger, champion):\n{body}\n")
        assert told in shell.error("promote", "own.yaml", STRONG, code=1)

    write_own(shell, "checks", f"LEAST = 1\n{FAIR}")
    promoted = shell.json("promote", "own.yaml", STRONG)
    assert promoted["promoted"] and promoted["number"] == 2
    compared = promoted["comparison"]
    scores = [entry["scores"] for entry in ledger(shell) if entry["outcome"] == "promoted"]
    values = [cost_on_frozen_rows(shell, digest, tmp_path / digest[-6:]) for digest in scores]
    assert [compared["champion"], compared["challenger"]] == values and compared["metric"] == "cost"
    assert compared["difference"] == values[0] - values[1] > compared["low"] > 0
    assert "less is better" in promoted["why"]


def ledger(shell: InProcessShell) -> list[Meta]:
    files = (shell.folder / ".trnflow/store/roots/ledger/own").glob("*.json")
    return [json.loads(file.read_text()) for file in sorted(files, key=lambda file: int(file.stem))]


@pytest.mark.slow
def test_a_retrain_judges_again_when_a_check_changed(shell: InProcessShell) -> None:
    def retrain() -> Any:
        return shell.json("retrain", "own.yaml", "--direct")

    first = retrain()
    assert first["changed"] and not first["promoted"] and first["champion"] is None
    assert first["why"] == "refused by promote.checks: fair: no model has been looked at yet"
    assert not retrain()["changed"], "the same check judges once"
    write_own(shell, "checks", FIRST.replace("no model", "still no model"))
    assert "still no model" in retrain()["why"]
    write_own(shell, "checks", f"LEAST = 0.01\n{FAIR}")
    assert retrain()["promoted"]
    assert not retrain()["changed"]


def test_a_metric_that_may_not_promote_is_refused_when_the_recipe_is_read(shell: InProcessShell) -> None:
    file = shell.folder / "own.yaml"
    file.write_text(file.read_text().replace("may_promote: true", "may_promote: false"))
    assert "promote.metric is cost, which is none of " in shell.error("plan", "own.yaml", code=2)
