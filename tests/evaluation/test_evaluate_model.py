"""Evaluation of small real models against independent oracles: scikit-learn, and transformers on one row at a time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.helpers import small_models
from tests.helpers.kept_inputs import run_whole
from tests.helpers.small_models import Rows, bert
from tests.training.toys import packed_classes
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.errors import ConfigError, DataError, Interrupted, MissingDependency, ModelError
from trnflow.tasks.evaluate_model import EvaluateConfig, evaluate_model
from trnflow.tasks.evaluation.config import GenerationConfig
from trnflow.tasks.evaluation.forward import single_row_seconds, token_losses
from trnflow.tasks.evaluation.generation import (
    Prompt,
    generate,
    given_prompts,
    prompt_encoder,
    prompt_ids,
    prompts,
    shortened,
)
from trnflow.tasks.evaluation.models import EAGER, load_model, longest_sequence
from trnflow.tasks.evaluation.plots import confusion_matrix
from trnflow.tasks.predict_rows import _latency
from trnflow.tasks.stage import read_json
from trnflow.tasks.system.model_process import ENVIRON
from trnflow.tasks.training.batches.sampler import Split

EXPORT = "trnflow.tasks.export_neuron:export_neuron"
EVALUATE = "trnflow.tasks.evaluate_model:evaluate_model"

CLASS_ROWS = small_models.random_rows(40, "classification", seed=1)
TOKEN_ROWS = small_models.random_rows(30, "causal_lm", longest=12, seed=2)


def classified(folder: Path) -> Input:
    """Test rows in two lengths, one row a chunk; the train split knows one class only."""
    short, long = ([[row] for row in CLASS_ROWS if (len(row[0]) <= 16) == fits] for fits in (True, False))
    train = [[(ids, 1)] for ids, _ in CLASS_ROWS[:7]]
    splits = {"train": {32: train}, "test": {16: short, 32: long}}
    return small_models.packed_rows(folder, "classification", splits)


def chunked(folder: Path) -> Input:
    chunks = [TOKEN_ROWS[start : start + 2] for start in range(0, 18, 2)]
    chunks += [[row for row in TOKEN_ROWS[start : start + 3] if len(row[0]) <= 10] for start in range(18, 30, 3)]
    splits = {"train": {32: chunks[:2]}, "validation": {32: [chunk for chunk in chunks if chunk]}}
    return small_models.packed_rows(folder, "causal_lm", splits)


def texts(folder: Path) -> Input:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    rows = [
        [{"text": "what does it do question ", "train": False}, {"text": "answer is cat", "train": True}],
        [{"text": "the dog ran", "train": False}],
        [{"text": "word", "train": True}],
        [{"text": "the mat " * 60, "train": False}, {"text": "sat", "train": True}, {"text": " on", "train": False}],
        [{"text": "a plain text of one part, of which some words are given", "train": True}],
    ]
    rows += [[{"text": f"row {number}", "train": False}] for number in range(len(rows), len(TOKEN_ROWS))]
    classes = {"text": [f"text {number} of the test split" for number in range(len(CLASS_ROWS))], "label": [0] * 40}
    pq.write_table(pa.table(classes), folder / "test.parquet")
    kind = pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_())]))
    pq.write_table(pa.table({"parts": pa.array(rows, kind)}), folder / "validation.parquet")
    return Input(folder, "texts", {}, "sha256:2")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both tasks exported and evaluated, and evaluated again, each in one fresh process."""
    root = tmp_path_factory.mktemp("evaluated")
    said = texts(root / "texts")
    bert, llama = small_models.bert(root / "bert"), small_models.llama(root / "llama")
    packed = {"bert": classified(root / "rows"), "llama": chunked(root / "chunks")}
    settings = {"generation": {"prompts": 2, "max_new_tokens": 8}, "export_rows": 3, "prompts": ["the dog sat"]}
    calls = []
    for name, weights, batch, lengths in (("bert", bert, 2, [16, 32]), ("llama", llama, 1, [32])):
        asked = {"batch": batch} if len(lengths) > 1 else {"batch": batch, "length": lengths[0]}
        calls.append(small_models.call(EXPORT, asked, root / f"{name}-export", weights=weights))
        meta = {"target": "stablehlo", "batch": batch, "lengths": lengths, "task": packed[name].meta["task"]}
        parts = {"texts": said, "packed": packed[name], "weights": weights}
        parts["exported"] = Input(root / f"{name}-export", "exported", meta, "sha256:3")
        for run in (name, f"{name}-again"):
            calls.append(small_models.call(EVALUATE, settings, root / run / "out", **parts))
    results = small_models.run_calls(calls, root)
    assert not [result for result in results if "error" in result]
    made = {"bert": results[1], "bert-again": results[2], "llama": results[4], "llama-again": results[5]}
    return {"root": root, "packed": packed, "weights": {"bert": bert, "llama": llama}, **made}


def report(evaluated: dict[str, Any], name: str) -> Meta:
    return read_json(evaluated["root"] / name / "out" / "report.json")


def one_by_one(weights: Input, rows: Rows) -> list[int]:
    import torch

    model = load_model(weights.path, "classification")
    with torch.no_grad():
        return [int(model(torch.tensor([ids])).logits.argmax()) for ids, _ in rows]


@pytest.mark.xla
def test_classification_metrics_are_those_of_plain_calls(evaluated: dict[str, Any]) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    expected = [target for _, target in CLASS_ROWS]
    predicted = one_by_one(evaluated["weights"]["bert"], CLASS_ROWS)
    metrics = evaluated["bert"]["meta"]["metrics"]
    assert len(set(predicted)) > 1
    assert metrics["accuracy"] == pytest.approx(accuracy_score(expected, predicted))
    assert metrics["f1_weighted"] == pytest.approx(f1_score(expected, predicted, average="weighted"))
    assert metrics["f1_macro"] == pytest.approx(f1_score(expected, predicted, average="macro"))
    always = f1_score(expected, [1] * len(expected), average="weighted")
    assert metrics["f1_weighted_majority"] == pytest.approx(always)


@pytest.mark.xla
def test_the_classification_report(evaluated: dict[str, Any]) -> None:
    said = report(evaluated, "bert")
    assert (said["split"], said["rows"], said["task"]) == ("test", 40, "classification")
    assert [entry["label"] for entry in said["classes"]] == small_models.LABELS
    assert sum(entry["support"] for entry in said["classes"]) == 40 == sum(map(sum, said["confusion"]))
    assert evaluated["bert"]["meta"]["metrics"].items() < said["metrics"].items()
    assert any("samples_per_second" in event.get("figures", {}) for event in evaluated["bert"]["said"])


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.xla
def test_the_latency_of_a_row_is_a_figure_of_the_run_and_no_metric(evaluated: dict[str, Any], name: str) -> None:
    figures = {key: value for event in evaluated[name]["said"] for key, value in event.get("figures", {}).items()}
    assert 0 < figures["latency_p50_ms"] <= figures["latency_p95_ms"]
    assert "export_latency_p50_ms" not in figures  # without jax each call compiles
    assert figures["export_seconds"] > 0
    assert "seconds" not in json.dumps(report(evaluated, name)) + json.dumps(evaluated[name]["meta"])
    assert "latency" not in json.dumps(report(evaluated, name)) + json.dumps(evaluated[name]["meta"])


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.xla
def test_the_export_agrees_on_real_rows(evaluated: dict[str, Any], name: str) -> None:
    metrics, said = evaluated[name]["meta"]["metrics"], report(evaluated, name)["export"]
    assert 0 < metrics["export_max_difference"] < 1e-4
    assert metrics["export_agreement"] == 1.0
    # three rows of two lengths in batches of two: a batch of each; of one length in batches of one: three
    assert (said["calls"], said["rows"], said["lengths"]) == {"bert": (2, 4, [16, 32]), "llama": (3, 3, [32])}[name]
    unit = "4 rows" if name == "bert" else f"{said['compared']:,} tokens of 3 chunks"
    assert f"100% of {unit}" in (evaluated["root"] / name / "out" / "report.html").read_text()


WORST = """
import sys
from pathlib import Path
import torch
from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluation.models import load_model
from trnflow.tasks.export.agreement import compare, eager_call
folder = Path(sys.argv[1])
call = eager_call(load_model(folder / "bert", "classification"), [*torch.ones(2, 2, 16, dtype=torch.long)], 2, 1)
exported = Input(folder / "bert-export", "exported", {"batch": 2, "lengths": [16], "task": "classification"}, "sha256:3")
apart = compare(exported, [call._replace(logits=call.logits + 1), call], lambda *done: None)[1]
print(apart["export_max_difference"])
"""


@pytest.mark.xla
def test_the_difference_of_an_export_is_that_of_its_worst_call(evaluated: dict[str, Any]) -> None:
    environ = {**os.environ, **EAGER, **ENVIRON}
    command = [sys.executable, "-c", WORST, str(evaluated["root"])]
    process = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert float(process.stdout) == pytest.approx(1, abs=1e-3), process.stderr


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.xla
def test_twice_the_same_bytes(evaluated: dict[str, Any], name: str) -> None:
    one, other = (evaluated["root"] / run / "out" for run in (name, f"{name}-again"))
    files = sorted(file.name for file in one.iterdir())
    own = ["calibration.png", "confusion_matrix.png"] if name == "bert" else ["generations.jsonl"]
    assert files == [*own, "predictions.parquet", "report.html", "report.json"]
    for file in files:
        assert (one / file).read_bytes() == (other / file).read_bytes()
    assert evaluated[name]["meta"] == evaluated[f"{name}-again"]["meta"]


def plain_loss(weights: Input, rows: Rows) -> tuple[float, int]:
    """(mean loss, tokens) of each row on its own, through transformers' labels."""
    import torch

    model, total, tokens = load_model(weights.path, "causal_lm"), 0.0, 0
    for ids, supervised in rows:
        labels = torch.from_numpy(np.where(supervised, ids, -100))[None]
        count = int((labels[:, 1:] != -100).sum())
        if count:
            with torch.no_grad():
                total += float(model(torch.tensor([ids]), labels=labels).loss) * count
            tokens += count
    return total / tokens, tokens


@pytest.mark.xla
def test_a_packed_chunk_loses_what_its_rows_lose(evaluated: dict[str, Any]) -> None:
    rows = TOKEN_ROWS[:18] + [row for row in TOKEN_ROWS[18:] if len(row[0]) <= 10]
    loss, tokens = plain_loss(evaluated["weights"]["llama"], rows)
    metrics = evaluated["llama"]["meta"]["metrics"]
    assert report(evaluated, "llama")["tokens"] == tokens
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)


def test_a_decoder_whose_positions_begin_at_two_loses_what_it_loses_in_transformers(tmp_path: Path) -> None:
    weights, packed = small_models.roberta_decoder(tmp_path / "roberta"), chunked(tmp_path / "chunks")
    rows = TOKEN_ROWS[:18] + [row for row in TOKEN_ROWS[18:] if len(row[0]) <= 10]
    model = load_model(weights.path, "causal_lm")
    found = token_losses(model, Split(packed, "validation"), 4, lambda rows: None)
    loss, tokens = plain_loss(weights, rows)
    assert found.tokens.sum() == tokens
    assert found.loss == pytest.approx(loss, abs=1e-5)
    assert longest_sequence(model) == 64


def test_generations_of_such_a_decoder_are_those_of_its_own_positions(tmp_path: Path) -> None:
    import torch

    weights = small_models.roberta_decoder(tmp_path / "roberta")
    model, tokenizer = load_model(weights.path, "causal_lm"), read_tokenizer(weights.path)
    prompt = prompts(texts(tmp_path / "texts").path / "validation.parquet", 1)[0]
    encoder = prompt_encoder(tokenizer, {})
    config = GenerationConfig(max_new_tokens=12, top_k=1)
    made = generate(model, tokenizer, encoder, prompt, config, positions=longest_sequence(model), ends=[])
    ids = prompt_ids(encoder, prompt.parts)
    for _ in range(12):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    assert made["generated"] == tokenizer.tokenizer.decode(ids[-12:], skip_special_tokens=True)
    assert made["tokens"] == 12


@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.xla
def test_the_loss_does_not_depend_on_the_batch(evaluated: dict[str, Any], batch: int) -> None:
    model = load_model(evaluated["weights"]["llama"].path, "causal_lm")
    seen: list[int] = []
    found = token_losses(model, Split(evaluated["packed"]["llama"], "validation"), batch, seen.append)
    assert found.loss == pytest.approx(evaluated["llama"]["meta"]["metrics"]["loss"], abs=1e-6)
    assert seen[-1] == evaluated["packed"]["llama"].meta["rows"]["validation"]["32"]


@pytest.mark.xla
def test_validation_stands_in_for_test_and_says_so(evaluated: dict[str, Any]) -> None:
    said = report(evaluated, "llama")
    assert (said["asked"], said["split"]) == ("test", "validation")
    assert "no test split" in said["notes"][0] and said["notes"] == evaluated["llama"]["meta"]["notes"]


@pytest.mark.xla
def test_generations_go_from_prompt_to_file(evaluated: dict[str, Any]) -> None:
    lines = (evaluated["root"] / "llama" / "out" / "generations.jsonl").read_text().splitlines()
    given, first, second = made = [json.loads(line) for line in lines]
    assert (first["row"], first["prompt"], first["answer"]) == (1, "what does it do question ", "answer is cat")
    assert first["prompt_tokens"] == 6  # <s> and five words, without the closing </s>
    assert 0 < first["tokens"] <= 8
    # 121 tokens, of which the last 56 leave eight of the model's 64 positions free
    assert (second["row"], second["prompt_tokens"], second["prompt_tokens_cut"]) == (4, 121, 65)
    assert (given["row"], given["prompt"], given["answer"]) == (None, "the dog sat", None)
    assert report(evaluated, "llama")["generations"] == made


@pytest.mark.xla
def test_a_greedy_text_is_what_transformers_generates(evaluated: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    folder = evaluated["weights"]["llama"].path
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer("the dog sat", return_tensors="pt")["input_ids"][:, :-1]  # without the closing </s>
    made = model.generate(ids, do_sample=False, max_new_tokens=8, eos_token_id=2, pad_token_id=2)[0, ids.shape[1] :]
    lines = (evaluated["root"] / "llama" / "out" / "generations.jsonl").read_text().splitlines()
    given, *others = map(json.loads, lines)
    assert given["generated"] == tokenizer.decode(made, skip_special_tokens=True)
    assert any(one["generated"] != one["sampled"] for one in (given, *others))
    assert given["ended"] == (int(made[-1]) == 2)


@pytest.mark.xla
def test_answers_are_scored_from_the_generations(evaluated: dict[str, Any]) -> None:
    said = report(evaluated, "llama")
    assert said["answered"] == 2
    assert {"exact_match", "rouge1", "rouge2", "rougeL"} <= said["metrics"].keys()
    assert said["metrics"]["exact_match"] == 0.0


def test_messages_become_a_prompt_by_the_tokenizers_chat_template(tmp_path: Path) -> None:
    folder = small_models.llama(tmp_path / "llama").path
    message = {"role": "user", "content": "what is it"}
    rows = {"settings": {"task": "chat", "date": "2024-07-26", "template_arguments": {"mood": "calm"}}}
    trained = {"framed": True, "rows": rows}
    with pytest.raises(ConfigError, match="was not trained with a chat template"):
        given_prompts(("the cat", (message,)), folder, trained)
    turns = "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}"
    template = turns + "{{ mood }} {{ strftime_now('%Y-%m-%d') }} {% if add_generation_prompt %}[answer] {% endif %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template})
    )
    text, chat = given_prompts(("the cat", (message,)), folder, trained)
    assert (text.text, chat.text, chat.answer) == ("the cat", "[user] what is it calm 2024-07-26 [answer] ", None)
    with pytest.raises(ConfigError, match="was not trained with a chat template"):
        given_prompts(((message,),), folder, {"framed": False, "rows": rows})


def test_evaluation_is_on_the_device_that_trains() -> None:
    assert EvaluateConfig().on_device_of("cuda").device == "cuda"
    assert EvaluateConfig().on_device_of("neuron").device == EvaluateConfig().on_device_of("cpu").device == "cpu"
    assert EvaluateConfig(device="cpu").on_device_of("cuda").device == "cpu"


def test_prompts_are_rows_with_something_to_complete(tmp_path: Path) -> None:
    file = texts(tmp_path / "texts").path / "validation.parquet"
    found = prompts(file, 5)
    assert [prompt.answer for prompt in found] == ["answer is cat", "sat", " some words are given"]
    assert found[2].text == "a plain text of one part, of which"
    assert len(prompts(file, 1)) == 1 and prompts(file, 0) == []


def test_an_answer_is_that_of_its_turn_and_none_that_is_undesirable(tmp_path: Path) -> None:
    def turn(asked: str, answer: str) -> list[Meta]:
        return [{"text": asked, "train": False, "ends_prompt": True}, {"text": answer, "train": True}]

    rows = [[*turn("one? ", "yes"), *turn("two? ", "also")], turn("three? ", "never"), turn("four? ", "no")]
    pq.write_table(pa.table({"parts": rows, "label": [1, 0, 1]}), tmp_path / "a.parquet")
    found = [(prompt.text, prompt.answer, prompt.row) for prompt in prompts(tmp_path / "a.parquet", 5)]
    assert found == [("one? ", "yes", 1), ("four? ", "no", 3)]


def test_a_long_prompt_keeps_its_beginning_mark_and_its_end() -> None:
    assert shortened([1, 5, 6, 7, 8], room=3, opening=1) == [1, 7, 8]
    assert shortened([5, 6, 7, 8], room=3, opening=0) == [6, 7, 8]
    assert shortened([1, 5, 6], room=3, opening=1) == [1, 5, 6]


def test_a_seed_fixes_a_generation(tmp_path: Path) -> None:
    weights = small_models.llama(tmp_path / "llama")
    model, tokenizer = load_model(weights.path, "causal_lm"), read_tokenizer(weights.path)
    prompt = prompts(texts(tmp_path / "texts").path / "validation.parquet", 1)[0]
    positions, encoder = longest_sequence(model), prompt_encoder(tokenizer, {})

    def sample(seed: int) -> str:
        config = GenerationConfig(max_new_tokens=20, seed=seed)
        return str(generate(model, tokenizer, encoder, prompt, config, positions=positions, ends=[2])["generated"])

    assert sample(0) == sample(0)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_prompts_do_not_share_their_random_numbers(tmp_path: Path) -> None:
    """Of a model that finds all tokens alike likely, a text depends on the random numbers alone."""
    import torch

    weights = small_models.llama(tmp_path / "llama")
    model: Any = load_model(weights.path, "causal_lm")
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    tokenizer, encoder = read_tokenizer(weights.path), prompt_encoder(read_tokenizer(weights.path), {})
    config = GenerationConfig(max_new_tokens=20, top_k=64, top_p=1.0)

    def sample(text: str) -> str:
        prompt = Prompt([{"text": text, "train": False}])
        return str(generate(model, tokenizer, encoder, prompt, config, positions=64, ends=[])["generated"])

    assert sample("the cat") == sample("the cat") != sample("the dog")


def test_a_tokenizer_that_closes_its_rows_does_not_close_prompts(tmp_path: Path) -> None:
    made = read_tokenizer(small_models.llama(tmp_path / "llama").path)
    ids = made.tokenizer.encode("the cat").ids
    assert ids[-1] == 2
    assert prompt_ids(prompt_encoder(made, {}), [{"text": "the cat", "train": False}]) == ids[:-1]
    # a text of task `text` ends no prompt, as Parquet has it
    unset = {"plain": None, "ends_prompt": None, "held_out": None, "token": None}
    assert prompt_ids(prompt_encoder(made, {}), [{"text": "the cat", "train": True, **unset}]) == ids[:-1]


def test_a_picture_has_the_same_bytes_and_no_name_of_its_maker(tmp_path: Path) -> None:
    counts = np.array([[5, 1], [0, 7]])
    for name in ("a.png", "b.png"):
        confusion_matrix(counts, ["plain", "costs $5 and is " + "very " * 9 + "long"], "a title", tmp_path / name)
    data = (tmp_path / "a.png").read_bytes()
    assert data == (tmp_path / "b.png").read_bytes()
    assert data.startswith(b"\x89PNG") and b"Software" not in data and b"matplotlib" not in data.lower()


def test_the_title_of_a_matrix_in_a_frame_is_in_what_a_page_shows_first(tmp_path: Path) -> None:
    confusion_matrix(np.eye(77, dtype=np.int64), ["a"] * 77, "accuracy 0.272, weighted F1 0.224", tmp_path / "a.png")
    title = np.asarray(Image.open(tmp_path / "a.png").convert("L"))[:24] < 128
    assert title.any() and np.flatnonzero(title.any(axis=0)).max() < 900


def test_without_an_export_the_weights_alone_are_judged(tmp_path: Path) -> None:
    rows, bert = classified(tmp_path / "rows"), small_models.bert(tmp_path / "model")
    out = small_models.workdir(tmp_path / "out")
    inputs = {"texts": texts(tmp_path / "texts"), "packed": rows, "weights": bert}
    meta = run_whole(evaluate_model, EvaluateConfig(), inputs, out)
    assert not [name for name in meta["metrics"] if name.startswith("export")]
    said = read_json(out.path / "report.json")["export"]
    assert said == {"target": "none", "note": "not compared: there is no export (export.target)"}
    assert "there is no export" in (out.path / "report.html").read_text()


def fails(tmp_path: Path, packed: Input, **config: Any) -> None:
    nothing = Input(tmp_path, "none", {"target": "stablehlo", "task": packed.meta["task"]}, "sha256:0")
    weights = (small_models.bert if packed.meta["task"] == "classification" else small_models.llama)(tmp_path / "model")
    out = small_models.workdir(tmp_path / "out")
    inputs = {"texts": nothing, "packed": packed, "weights": weights, "exported": nothing}
    run_whole(evaluate_model, EvaluateConfig(**config), inputs, out)


def test_a_missing_split_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no rows in its validation split \(it has: test, train\)"):
        fails(tmp_path, classified(tmp_path / "rows"), split="validation")


def test_a_split_without_a_supervised_token(tmp_path: Path) -> None:
    rows = [[(ids, np.zeros(len(ids), bool))] for ids, _ in TOKEN_ROWS[:3]]
    packed = small_models.packed_rows(tmp_path / "rows", "causal_lm", {"train": {32: rows}, "test": {32: rows}})
    with pytest.raises(DataError, match=r"the split has no supervised tokens\. Fix: check which parts of a row"):
        fails(tmp_path, packed)
    assert not list((tmp_path / "out").glob("report.*"))


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(MissingDependency, match=r"evaluate\.device=cuda"):
        fails(tmp_path, classified(tmp_path / "rows"), device="cuda")


def test_latencies_are_the_median_and_the_95th_percentile_in_milliseconds() -> None:
    seconds = [number / 1000 for number in range(101)]
    assert _latency("export_", seconds[::-1]) == {"export_latency_p50_ms": 50.0, "export_latency_p95_ms": 95.0}


@pytest.mark.parametrize(("rows", "parameters", "timed"), [(6, 10**12, 3), (4, 1, 4), (200, 1, 50)])
def test_single_rows_are_timed_evenly_and_the_first_pass_is_not_counted(
    tmp_path: Path, rows: int, parameters: int, timed: int
) -> None:
    import torch

    read: list[int] = []

    class Model:
        device = "cpu"

        def num_parameters(self) -> int:
            return parameters

        def forward(self, input_ids: Any, attention_mask: Any) -> None: ...

        def __call__(self, **inputs: Any) -> Any:
            read.append(len(inputs["input_ids"]))
            return SimpleNamespace(logits=torch.zeros(1))

    split = Split(packed_classes(tmp_path / "packed", rows=rows, lengths=[8]), "train")
    assert len(single_row_seconds(Model(), split)) == timed
    assert read == [1] * (timed + 1)


def test_code_in_a_model_s_folder_is_neither_run_nor_asked_for(tmp_path, monkeypatch):
    """transformers asked on the terminal, and ran it if a row of standard input began with y."""
    code = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": code}))
    (tmp_path / "evil.py").write_text("raise SystemExit('the code ran')")
    monkeypatch.setattr("builtins.input", lambda text: "y")
    with pytest.raises(ModelError, match="trust_remote_code"):
        load_model(tmp_path, "causal_lm")


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_a_model_s_folder_chooses_no_program_of_attention(tmp_path, name):
    """Of a name such as org/kernel transformers downloads a program from the hub, where the package `kernels` is installed."""
    bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, name: "evil/kernel"}))
    assert load_model(tmp_path, "classification").config._attn_implementation == "sdpa"


@pytest.mark.parametrize("error", [Interrupted("stopped by a signal", ""), MemoryError("no memory")])
def test_a_signal_while_a_model_is_loaded_is_no_fault_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def stopped(*arguments: Any, **others: Any) -> None:
        raise error

    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", stopped)
    with pytest.raises(type(error)):
        load_model(tmp_path, "causal_lm")
