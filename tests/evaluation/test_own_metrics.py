"""Metrics of the user's own: by the command line, from a file beside the recipe to the table, the page and MLflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.flows.champions.conftest import RECIPE, write_amounts, write_rows
from tests.helpers.command_line import InProcessShell
from tests.helpers.waiting import wait_for

ENTRY = "{function: 'mine_of_metrics.metrics:cost', less_is_better: true, may_promote: true}"
METRICS = '''"""What wrong answers cost."""

import numpy as np


def cost(p):
    """The mean amount of the rows that are predicted wrong."""
    wrong = p.expected != p.predicted
    return float(p.columns["amount"][wrong].sum()) / len(p)


def shares(p):
    assert p.probabilities.shape == (len(p), 2) and p.labels == ("neg", "pos")
    return {f"share_of_{name}": np.mean(p.predicted == place) for place, name in enumerate(p.labels)}
'''


def own(shell: InProcessShell) -> Path:
    return shell.folder / "mine_of_metrics/metrics.py"


def write(folder: Path, entries: str) -> None:
    evaluate = f"evaluate: {{export_rows: 0, metrics: [{entries}]}}"
    recipe = RECIPE.replace("evaluate: {export_rows: 0}", evaluate).replace("stablehlo", "none")
    (folder / "own.yaml").write_text(recipe.replace("label: label}", "label: label, columns: {amount: amount}}"))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    """A trained and evaluated model, whose rows have the column `amount`."""
    folder = tmp_path_factory.mktemp("own")
    write_amounts(folder / "rows")
    shell = InProcessShell(folder)
    own(shell).parent.mkdir()
    own(shell).write_text(METRICS)
    write(folder, f"{ENTRY}, {{function: 'mine_of_metrics.metrics:shares', less_is_better: false}}")
    shell.json("run", "own.yaml", "--direct")
    return shell


def predicts(shell: InProcessShell) -> int:
    """How often rows were predicted, by the model or the baseline."""
    return len([*(shell.folder / ".trnflow/store/attempts").glob("*/*evaluate_model.shard*")])


@pytest.mark.slow
def test_own_metrics_are_shown_like_built_in_ones(shell: InProcessShell, tmp_path: Path) -> None:
    got = tmp_path / "got"
    shell.json("get", "own.yaml", "evaluate_model", str(got))
    report, found = (
        json.loads((got / "report.json").read_text()),
        pq.read_table(got / "predictions.parquet").to_pylist(),
    )
    amounts = [json.loads(line)["amount"] for line in (shell.folder / "rows/test.jsonl").read_text().splitlines()]
    wrong = [amounts[row["row"] - 1] for row in found if row["label"] != row["predicted"]]
    assert report["metrics"]["cost"] == sum(wrong) / len(found) and wrong
    assert report["metrics"]["share_of_pos"] == np.mean([row["predicted"] == "pos" for row in found])
    assert report["own"] == ["cost", "share_of_neg", "share_of_pos"]
    shown = f"{report['metrics']['cost']:.4g}"
    head, _, _ = (got / "report.html").read_text().partition("<table")
    assert "cost" in head and shown in head
    ran = shell.json("run", "own.yaml", "--direct")
    assert ran["stages"][-1]["metrics"]["cost"] == report["metrics"]["cost"]
    assert f"cost {shown}" in shell("run", "own.yaml", "--direct").stdout
    assert "column amount is not used" not in shell("plan", "own.yaml").stdout


@pytest.mark.slow
def test_a_changed_metric_scores_the_kept_predictions_again(shell: InProcessShell) -> None:
    before = shell.json("run", "own.yaml", "--direct")["stages"][-1]
    own(shell).write_text(METRICS.replace("/ len(p)", "/ 2 / len(p)"))
    plan = {stage["stage"]: stage for stage in shell.json("plan", "own.yaml")["stages"]}
    assert {name for name, stage in plan.items() if stage["action"] not in ("hit", "skip")} == {"evaluate_model"}
    assert (
        plan["evaluate_model"]["why"] == "cost in metrics.py changed; its predictions and baseline predictions are kept"
    )
    after = shell.json("run", "own.yaml", "--direct")["stages"][-1]
    assert after["metrics"] == before["metrics"] | {"cost": before["metrics"]["cost"] / 2}
    assert after["figures"]["latency_p50_ms"] == before["figures"]["latency_p50_ms"] and predicts(shell) == 2


BAD = {
    "raises": ("    return 1 / 0", "error in evaluate_model: mine_of_metrics/metrics.py:7 in cost: ZeroDivisionError division"),
    "not a number": ("    return float('nan')", "metrics.py:6 in cost: cost is nan on the 160 rows of test"),
    "nothing": ("    pass", "metrics.py:6 in cost: it returned None, no number"),
    "text": ("    return {'a b': 1.0}", "metrics.py:6 in cost: 'a b' is no name of a metric"),
    "kind": ("    return {'a': '1'}", "metrics.py:6 in cost: a is '1' (str), no number"),
    "taken": ("    return {'accuracy': 1.0}", "metrics.py:6 in cost: there is a metric accuracy already"),
    "state": ("    import time\n    return time.time() // 3600", "in another process, folder, zone and on another day"),
    "changes its input": ("    p.predicted[:] = 0\n    return 1.0", "metrics.py:7 in cost: ValueError assignment destination"),
    "column": ("    return p.columns['price'].sum()", "price: load_data kept text, amount, label; data.columns keeps others"),
    "exits": ("    raise SystemExit(3)", "metrics.py:7 in cost: SystemExit 3 on the 160 rows of test"),
    "dies": ("    import os\n    os._exit(0)", "the 160 rows of test: evaluate.metrics ended its process"),
    "a secret": ("    import os\n    return len(os.environ['AWS_SECRET_ACCESS_KEY'])", "KeyError 'AWS_SECRET_ACCESS_KEY'"),
    "another file": ("    return len(open('own.yaml').read())", "evaluate_model read own.yaml, and its key does not know"),
}  # fmt: skip


@pytest.mark.slow
def test_what_a_metric_does_wrong_is_one_line_and_publishes_nothing(
    shell: InProcessShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    write(shell.folder, ENTRY)
    records = shell.folder / ".trnflow/store/records/evaluate_model"
    before = {*records.iterdir()}
    for body, told in BAD.values():
        own(shell).write_text(f"import math\n\nSEEN = []\n\n\ndef cost(p):\n{body}\n")
        assert told in shell.error("run", "own.yaml", "--direct", code=1), body
    assert {*records.iterdir()} == before and predicts(shell) == 2


def test_a_metric_is_checked_when_the_recipe_is_read(tmp_path: Path) -> None:
    shell: Any = InProcessShell(tmp_path)
    own(shell).parent.mkdir()
    own(shell).write_text("def cost(p, more): return 1.0\n")
    write(tmp_path, ENTRY)
    printed = shell.error("plan", "own.yaml", code=2)
    assert "cost(p, more) can't be called as cost(p: Predictions) -> float | dict[str, float]" in printed
    write(tmp_path, "{function: 'mine_of_metrics.metrics:cost'}")
    assert "evaluate.metrics.0.less_is_better" in shell.error("plan", "own.yaml", code=2)


LANGUAGE = """
extends: base/hardware/cpu
data: {source: rows, columns: {text: text, amount: amount}}
format: {task: text, text: text}
model:
  config: {model_type: llama, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2,
    intermediate_size: 64, max_position_embeddings: 64}
tokenize: {max_length: 48, train: {kind: bpe, vocab_size: 300}}
pack: {strategy: bfd, chunk_length: 48}
train: {global_batch: 16, learning_rate: 1.0e-2, max_steps: 12, keep_best: true, best_metric: bits_per_byte, eval_every: 4}
export: {target: none}
evaluate: {split: validation, metrics: [{function: 'mine_of_metrics.language:own_bits', less_is_better: true}]}
"""
BITS = '''"""The loss of a language model, by hand."""

import math


def own_bits(p):
    assert p.task == "causal_lm" and p.columns["amount"].shape == p.tokens.shape and p.expected is None
    assert [*p.row] == sorted(p.row) and len(p.generations) > 0
    return float(p.nll.sum()) / math.log(2) / int(p.bytes.sum())
'''


@pytest.mark.slow
def test_a_language_models_own_metric_is_in_mlflow_and_its_best_weights_are_chosen_by_a_built_in_one(
    tmp_path: Path,
) -> None:
    from mlflow import MlflowClient

    write_rows(tmp_path / "rows", {"pos": "pos", "neg": "neg"})
    for file in (tmp_path / "rows").iterdir():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({"text": row["text"], "amount": n}) + "\n" for n, row in enumerate(rows)))
    (tmp_path / "mine_of_metrics").mkdir()
    (tmp_path / "mine_of_metrics/language.py").write_text(BITS)
    (tmp_path / "language.yaml").write_text(LANGUAGE)
    shell = InProcessShell(tmp_path)
    stages = {stage["stage"]: stage["metrics"] for stage in shell.json("run", "language.yaml", "--direct")["stages"]}
    found = stages["evaluate_model"]
    assert found["own_bits"] == pytest.approx(found["bits_per_byte"], rel=1e-12)
    assert stages["train"]["eval_bits_per_byte"] == pytest.approx(found["bits_per_byte"], rel=1e-6)
    assert stages["train"]["eval_bits_per_byte"] < stages["train"]["eval_bits_per_byte_before"]
    client = MlflowClient(f"sqlite:///{tmp_path / '.trnflow/mlflow.db'}")
    (experiment,) = (one for one in client.search_experiments() if one.name == "trnflow")

    def values() -> list[float]:
        runs = client.search_runs([experiment.experiment_id])
        return [run.data.metrics["own_bits"] for run in runs if "own_bits" in run.data.metrics]

    wait_for(values, 120)
    assert values() == [found["own_bits"]]
