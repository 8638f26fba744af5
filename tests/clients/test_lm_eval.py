"""lm-evaluation-harness on a model and the rows of our test split: the same losses of the same tokens, and which tokens differ.

It reads a local task file and asks no hub.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.clients import figures
from tests.clients.conftest import RunClient
from tests.helpers.data_stages import Bench, new_bench
from tests.prediction.test_predict import WORDS, finished, llama
from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluate_model import EvaluateConfig, evaluate_model
from trnflow.tasks.stage import read_json

pytestmark = pytest.mark.slow  # one costly fixture for the whole file

TASK = """
task: ours
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""
HARNESS = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
folder, tasks = sys.argv[1:]
made = []
for arguments in ({}, {"add_bos_token": False}):
    found = simple_evaluate(
        model="hf", model_args={"pretrained": folder, "dtype": "float32", **arguments}, tasks=["ours"], device="cpu",
        task_manager=TaskManager(include_path=tasks, include_defaults=False), bootstrap_iters=0, batch_size=8,
    )
    rows = sorted(found["samples"]["ours"], key=lambda one: one["doc_id"])
    figures = {name.partition(",")[0]: value for name, value in found["results"]["ours"].items()}
    made.append([figures, [-one["filtered_resps"][0] for one in rows]])
print(json.dumps(made))
"""
"""Both settings of `add_bos_token`: the default, and false."""

SHORT, LONG = 12, 3
"""The rows that fit the model's 64 positions, and those that do not."""


class Scores(NamedTuple):
    """metrics: of a program; nll: the nats of each row; size: bytes of text, of ours only."""

    metrics: dict[str, float]
    nll: list[float]
    size: int = 0


class Evaluated(NamedTuple):
    """texts: of the rows; model: the folder; ours: of evaluate_model; theirs: of lm-eval by default; without: of lm-eval with
    `add_bos_token=False`."""

    texts: list[str]
    model: Path
    ours: Scores
    theirs: Scores
    without: Scores


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, run_client: RunClient) -> Evaluated:
    import pyarrow.parquet as pq

    root = tmp_path_factory.mktemp("lm-eval")
    bench = new_bench(root)
    texts = _texts(bench, root / "rows")
    model = finished(bench, texts, llama, {"kind": "bpe", "vocab_size": 300})
    tokens = bench.tokens(
        texts, {"config": {"model_type": "llama"}}, max_length=64, train={"kind": "bpe", "vocab_size": 300}
    )
    weights, exported = (
        Input(model, "model", {"task": "causal_lm"}, "sha256:1"),
        Input(root, "exported", {"target": "neuron"}, "sha256:2"),
    )
    config = EvaluateConfig.model_validate({"generation": {"prompts": 0}})
    packed = bench.packed(tokens, chunk_length=64, strategy="pad")
    made = bench.made(evaluate_model, config, texts=texts, packed=packed, weights=weights, exported=exported)
    rows = pq.read_table(made.path / "predictions.parquet").sort_by("row").to_pydict()
    (root / "tasks").mkdir()
    (root / "tasks" / "ours.yaml").write_text(TASK.format(rows=root / "rows" / "test.jsonl"))
    theirs = run_client("lm-eval", HARNESS, model, root / "tasks", HF_HOME=str(root / "hub"))
    given = [json.loads(line)["text"] for line in (root / "rows" / "test.jsonl").read_text().splitlines()]
    ours = Scores(read_json(made.path / "report.json")["metrics"], rows["nll"], sum(rows["bytes"]))
    return Evaluated(given, model, ours, *(Scores(*one) for one in theirs))


def _texts(bench: Bench, folder: Path) -> Input:
    folder.mkdir()
    for split, count in {"train": 9, "validation": 2, "test": SHORT + LONG}.items():
        lengths = [4 + number if number < SHORT else 120 for number in range(count)]
        rows = [{"text": " ".join((WORDS * 19)[n : n + length])} for n, length in enumerate(lengths)]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return bench.texts(bench.rows(source=str(folder), text="text"), task="text")


def test_each_program_scores_the_tokens_that_it_says(evaluated: Evaluated) -> None:
    """The losses of the tokens in question are computed here by plain transformers. b: beginning, e: end.

    Ours: b -> text e. lm-eval: b -> text; by default, if the tokenizer writes b itself, b -> b text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(evaluated.model)
    tokenizer = AutoTokenizer.from_pretrained(evaluated.model)

    def nats(ids: list[int]) -> float:
        with torch.no_grad():
            likelihoods = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        return -float(likelihoods[:-1].gather(-1, torch.tensor(ids[1:])[:, None]).sum())

    def compare(differs: str, found: float, expected: float) -> None:
        difference = abs(found - expected) / expected
        figures.note("lm-eval", "the model's folder, a local task file", differs, difference, "lm-eval")
        assert difference < 1e-5

    begin, end = [tokenizer.bos_token_id], [tokenizer.eos_token_id]
    for row, text in enumerate(evaluated.texts[:SHORT]):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert evaluated.ours.nll[row] == pytest.approx(nats([*begin, *ids, *end]), rel=1e-5)
        compare("log likelihood of a text, relative", evaluated.without.nll[row], nats([*begin, *ids]))
        compare("the same after two beginning tokens", evaluated.theirs.nll[row], nats([*begin, *begin, *ids]))


def test_a_row_longer_than_the_model_is_cut_here_and_read_in_windows_there(evaluated: Evaluated) -> None:
    """lm-eval scores all of its tokens, the first of each window but one after one token of context alone."""
    for row in range(SHORT, SHORT + LONG):
        assert evaluated.without.nll[row] > evaluated.ours.nll[row]


def test_the_figures_are_those_of_the_losses(evaluated: Evaluated) -> None:
    """Theirs count bytes and words of the whole texts; ours the bytes of the tokens that were read."""
    size = sum(len(text.encode()) for text in evaluated.texts)
    words = sum(len(text.split()) for text in evaluated.texts)
    for found in (evaluated.theirs, evaluated.without):
        assert found.metrics["bits_per_byte"] == pytest.approx(sum(found.nll) / size / math.log(2))
        assert found.metrics["byte_perplexity"] == pytest.approx(math.exp(sum(found.nll) / size))
        assert found.metrics["word_perplexity"] == pytest.approx(math.exp(sum(found.nll) / words))
    ours = evaluated.ours
    assert ours.metrics["bits_per_byte"] == pytest.approx(sum(ours.nll) / ours.size / math.log(2)) and ours.size < size
