"""Pairs of answers: from published shapes to packed documents, trained alike on any mesh, resumed to the same bits, judged."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.conftest import PROJECT
from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import Bench
from tests.kinds.preferences import packed_preferences, rows_of, started
from tests.training.run_stage import (
    Result,
    check_resumes_after_a_kill,
    counted,
    files_of,
    run_in_turn,
    run_stage,
    traced_and_trained,
)
from trnflow.tasks.artifact import Input
from trnflow.tasks.compute_reference import compute_reference
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.config import TrainConfig

ASKED, YES, NO = (
    {"role": role, "content": text} for role, text in (("user", "Why?"), ("assistant", "So."), ("assistant", "No."))
)
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
SHAPES: dict[str, dict[str, Any]] = {
    "texts": {"prompt": "Why?", "chosen": "So.", "rejected": "No."},
    "texts that hold the prompt": {"prompt": "Why?", "chosen": "Why?So.", "rejected": "Why?No."},
    "texts without a prompt": {"chosen": "Why? So.", "rejected": "Why? No."},
    "messages": {"prompt": [ASKED], "chosen": [YES], "rejected": [NO]},
    "a message each": {"prompt": [ASKED], "chosen": YES, "rejected": {"from": "gpt", "value": "No."}},
    "conversations": {"chosen": [ASKED, YES], "rejected": [ASKED, NO]},
    "conversations and a text": {"prompt": "Why?", "chosen": [ASKED, YES], "rejected": [ASKED, NO], "score": 1.5},
    "conversations and their prompt": {"prompt": [ASKED], "chosen": [ASKED, YES], "rejected": [ASKED, NO]},
}
COMMON: dict[str, Any] = {
    "global_batch": 8, "learning_rate": 3e-3, "log_every": 1, "max_steps": 20, "seed": 5, "engine": "native", "threads": 1,
    "objective": "dpo",
}  # fmt: skip


def texts_of(folder: Path, *rows: dict[str, Any]) -> tuple[Bench, Input]:
    bench = Bench(folder, [])
    (folder / "rows").mkdir()
    (folder / "rows/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return bench, bench.texts(bench.rows(source=str(folder / "rows")), task="preference", chat_template=TEMPLATE)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_published_shape_gives_the_same_prompt_and_answers(shape: str, tmp_path: Path) -> None:
    row = SHAPES[shape]
    _, texts = texts_of(tmp_path, row)
    (made,) = pq.read_table(texts.path / "train.parquet").to_pylist()
    parts = [[(part["text"], part["train"]) for part in made[name]] for name in ("parts", "rejected")]
    prompt, blank = ("[user]Why?[assistant]", "") if "role" in str(row) else ("Why?", " " * ("without" in shape))
    assert parts == [[(prompt, False), (f"{blank}So.", True)], [(prompt, False), (f"{blank}No.", True)]]
    assert texts.meta["framed"] == ("role" in str(row))


def test_ties_and_empty_answers_are_dropped_and_counted(tmp_path: Path) -> None:
    good = SHAPES["texts"]
    bench, texts = texts_of(
        tmp_path, good, {**good, "chosen": "No."}, {**good, "rejected": ""}, {**good, "chosen": "No."}
    )
    assert texts.meta["splits"] == {"train": 1} and texts.meta["dropped"] == {"empty": 1, "tied": 2}
    told = [event["info"] for event in bench.said if "info" in event]
    assert "pairs with equal answers dropped: 2 (the first: split train row 2)" in told


def test_pairs_whose_scores_say_that_they_are_exchanged_are_counted(tmp_path: Path) -> None:
    good = SHAPES["texts"]
    scores = [(8.5, 3), (3.0, 8.5), (5, 5), (None, 4), (1, 2)]
    rows = [{**good, "chosen": f"So {n}.", "score_chosen": a, "score_rejected": b} for n, (a, b) in enumerate(scores)]
    bench, _ = texts_of(tmp_path, *rows)
    (told,) = bench.warnings()
    assert told == (
        "pairs whose rejected answer has the higher score, as if the two were exchanged: 2 (the first: split train row 2)"
    )


def test_a_pair_of_which_one_answer_is_too_long_is_dropped_and_counted(tmp_path: Path) -> None:
    good, long = SHAPES["texts"], " and so on" * 20
    bench, texts = texts_of(tmp_path, {**good, "chosen": long}, good, {**good, "rejected": long})
    trains = {"kind": "bpe", "vocab_size": 260}  # a token of each byte
    tokens = bench.tokens(texts, {"config": {"model_type": "llama"}}, max_length=50, train=trains, overlong="drop")
    assert np.load(tokens.path / "train/source_row.npy").tolist() == [1]
    assert tokens.meta["splits"] == {"train": 1} and tokens.meta["dropped"] == {"overlong": 2}


def test_a_pair_of_which_one_answer_is_too_long_is_cut_or_refused(tmp_path: Path) -> None:
    bench, texts = texts_of(tmp_path, SHAPES["texts"] | {"chosen": " and so on" * 20})
    model, settings = (
        {"config": {"model_type": "llama"}},
        {"max_length": 50, "train": {"kind": "bpe", "vocab_size": 260}},
    )
    assert bench.tokens(texts, model, overlong="truncate", **settings).meta["longest"] <= 2 * 50
    with pytest.raises(DataError, match=r"tokens, more than tokenize\.max_length 50"):
        bench.tokens(texts, model, overlong="error", **settings)


def test_rows_that_suit_another_task_are_told_which() -> None:
    for columns, fix in ((("prompt", "completion"), "instruction"), (("completion", "label"), "unpaired_preference")):
        with pytest.raises(ConfigError, match=f"set format.task={fix}$"):
            FORMATS["preference"].check_rows(None, {"columns": list(columns)})


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({**SHAPES["texts"], "chosen": "Why? So."}, "rejected"),
        ({**SHAPES["texts"], "rejected": "Why? No."}, "chosen"),
        ({**SHAPES["conversations and a text"], "prompt": "When?"}, "chosen"),
        ({**SHAPES["conversations and their prompt"], "prompt": [{**ASKED, "content": "When?"}]}, "chosen"),
    ],
)
def test_a_prompt_that_does_not_begin_both_answers_is_named_with_its_row(
    row: dict[str, Any], named: str, tmp_path: Path
) -> None:
    kind = SHAPES["texts" if isinstance(row["chosen"], str) else "conversations and a text"]
    with pytest.raises(DataError, match=f"split train row 2: {named} does not begin with the row's prompt"):
        texts_of(tmp_path, {**kind, "prompt": row["prompt"] if isinstance(row["prompt"], list) else kind["prompt"]} if
                 not isinstance(row["prompt"], list) else {**row, "prompt": [ASKED]}, row)  # fmt: skip


@pytest.mark.parametrize(
    "pack", [{"strategy": "bfd", "chunk_length": 256}, {"strategy": "bucket", "chunk_length": 256}]
)
def test_a_pair_is_two_documents_that_follow_each_other(pack: dict[str, Any], tmp_path: Path) -> None:
    packed, rows = packed_preferences(tmp_path, pack=pack, most=128)
    from tokenizers import Tokenizer

    tokenizer, seen = Tokenizer.from_file(str(packed.path / "tokenizer/tokenizer.json")), []
    for length in packed.meta["rows"]["train"]:
        columns = open_chunks(packed, "train", int(length))
        for ids, labels, segments, positions in zip(*columns.values(), strict=True):
            documents = [segments == number for number in range(1, int(segments.max()) + 1)]
            assert len(documents) % 2 == 0
            assert all(positions[here].tolist() == list(range(here.sum())) for here in documents)
            answers = [tokenizer.decode(ids[here & (labels != -100)].tolist()).strip() for here in documents]
            seen += [*zip(answers[::2], answers[1::2], strict=True)]
    assert sorted(seen) == sorted((row["chosen"], row["rejected"]) for row in rows)
    files = [(split, int(length)) for split, counts in packed.meta["rows"].items() for length in counts]
    fullest = max(int(open_chunks(packed, *file)["segment_ids"].max()) for file in files)
    assert packed.meta["documents"] == 2 ** math.ceil(math.log2(fullest))
    counts = [int(batch.supervised) for batch in map(Split(packed, "train").read, Split(packed, "train").in_order(4))]
    assert sum(counts) == len(rows)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("preferences")
    packed, _ = packed_preferences(folder / "data")
    model = started(folder / "model", packed)
    config = TrainConfig(**COMMON)
    reference = run_stage(compute_reference, config, folder / "reference", model=model, packed=packed).artifact
    return {"model": model, "packed": packed, "reference": reference}


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(given: dict[str, Any], tmp_path: Path) -> None:
    config = TrainConfig(**{**COMMON, "max_steps": 60, "checkpoint_every": 8})
    check_resumes_after_a_kill(config, tmp_path, given)


TP: dict[str, Any] = {"tensor_parallel_size": 2}
SP: dict[str, Any] = {**TP, "sequence_parallel": True, "micro_batch": 4}
TWO: dict[str, list[dict[str, Any]]] = {
    "native": [TP, SP, {"micro_batch": 2, "fsdp": True}],
    "xla": [{"micro_batch": 2}, {"zero1": True}, TP, SP],
}


@pytest.mark.parametrize("engine", ["native", pytest.param("xla", marks=pytest.mark.xla)])
@pytest.mark.parametrize(
    "objective",
    [
        pytest.param("dpo", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("orpo", "simpo", "reward")),
    ],
)
def test_layouts_and_engines_train_as_one_process(
    objective: str, engine: str, given: dict[str, Any], tmp_path: Path
) -> None:
    inputs = given if objective == "dpo" else {name: given[name] for name in ("model", "packed")}
    common = {**COMMON, "objective": objective, "max_steps": 6, "learning_rate": 1e-3}
    alone = run_stage(traced_and_trained, TrainConfig(**common), tmp_path / "alone", **inputs)
    common["engine"] = engine
    # the nightly objectives have all
    layouts = TWO[engine][1::2] if objective == "dpo" else TWO[engine]
    configs = [TrainConfig(**common, **layout, devices=2) for layout in layouts]
    ran = run_in_turn(configs, tmp_path / "two", **inputs)
    if engine == "native":
        config = TrainConfig(**common, **TP, devices=4, fsdp=True)
        ran.append(run_stage(traced_and_trained, config, tmp_path / "four", **inputs))
    for found in ran:
        check_alike(found, alone)


def check_alike(found: Result, alone: Result) -> None:
    for name in ("loss", "reward_chosen", "reward_margin", "eval_loss", "eval_reward_margin"):
        values, wanted = (list(each.curve(name).values()) for each in (found, alone))
        apart = np.abs(np.array(values) - wanted).max()
        print(f"{name}: largest difference {apart:.1e}")
        assert len(values) >= 2 and apart <= 1e-5, name


@pytest.mark.slow
@pytest.mark.xla
def test_engine_xla_compiles_one_graph_for_rows_of_other_numbers_of_pairs(
    given: dict[str, Any], tmp_path: Path
) -> None:
    packed, config = given["packed"], TrainConfig(**{**COMMON, "engine": "xla"})
    assert packed.meta["documents"] in (4, 8, 16)
    counts = open_chunks(packed, "train", 256)["segment_ids"].max(1)
    assert len({*counts.tolist()}) > 1 and counts.max() <= packed.meta["documents"] < 2 * counts.max()
    found = run_stage(counted, config, tmp_path / "xla", **given)
    assert len(found.curve("loss")) == 20
    # of training and of evaluation; another one is an error
    assert found.figures["compiled_graphs"] == found.figures["all_compiled"] == 2
    own = {name: given[name] for name in ("model", "packed")}
    reference = run_stage(compute_reference, config, tmp_path / "reference", **own).artifact
    assert files_of(reference) == files_of(given["reference"])


@pytest.mark.slow
def test_the_reference_of_lora_is_its_base(given: dict[str, Any], tmp_path: Path) -> None:
    config = TrainConfig(**{**COMMON, "method": "lora", "max_steps": 2})
    margins = run_stage(traced_and_trained, config, tmp_path, **given).curve("reward_margin")
    assert margins[1] == pytest.approx(0, abs=1e-6) and abs(margins[2]) > 1e-4


def test_an_output_layer_in_chunks_gives_the_same_numbers(given: dict[str, Any]) -> None:
    import torch

    from trnflow.tasks.training.model.build import build
    from trnflow.tasks.training.pair_answers import answers, numbers_of

    batch, found = Split(given["packed"], "train").read(next(iter(Split(given["packed"], "train").in_order(4)))), []
    config = TrainConfig(**{**COMMON, "objective": "orpo"})
    for chunk in (0, 16):
        built = build(given["model"], given["packed"], seed=0, weights=True)
        arrays = (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids, batch.reference)
        *columns, reference = (torch.from_numpy(array) for array in arrays)
        numbers = numbers_of(config, answers(built, columns, reference, whole=True, chunk=chunk), batch.surprise_share)
        numbers[0].backward()  # type: ignore[no-untyped-call]
        found.append([numbers.detach(), *(parameter.grad for parameter in built.parameters().values())])
    assert batch.input_ids.size > 16
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-5)


RECIPE = """
extends: demo-llm
name: mine
data: {source: rows, name: null, split: {validation: 0.2, test: 0.2}}
format: {task: preference}
model: {source: model, config: null}
tokenize: {max_length: 64, train: null}
pack: {chunk_length: 256}
train: {objective: dpo, engine: native, tensor_parallel_size: 1, zero1: false, devices: 1, max_steps: 12}
export: {target: none}
evaluate: {split: validation, generation: {prompts: 1, max_new_tokens: 4}}
"""
SMALL = ("tracking.enabled=false", "--on", "cpu")


@pytest.mark.slow
def test_a_pair_goes_through_all_stages_and_another_beta_computes_no_reference(
    given: dict[str, Any], tmp_path: Path
) -> None:
    shell = InProcessShell(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/train.jsonl").write_text("\n".join(map(json.dumps, rows_of(80))))
    (tmp_path / "mine.yaml").write_text(RECIPE)
    model = given["model"].location["model"]["folder"]
    tokenizer = given["packed"].path / "tokenizer"
    places = (f"model.source={model}", f"model.tokenizer={tokenizer}")
    first = shell.json("run", "mine.yaml", "--direct", "--no-rehearse", *SMALL, *places)
    metrics = {stage["stage"]: stage["metrics"] for stage in first["stages"]}
    for name in ("reward_accuracy", "reward_margin", "loss"):
        assert metrics["evaluate_model"][name] == pytest.approx(metrics["train"][f"eval_{name}"], abs=1e-5)
    assert metrics["evaluate_model"]["reward_accuracy"] > 0.6
    for changed in (("train.beta=0.3", "train.learning_rate=2e-3", "train.max_steps=9"), ("train.method=lora",)):
        plan = shell.json("plan", "mine.yaml", *SMALL, *places, *changed)
        actions = {step["stage"]: step["action"] for step in plan["stages"]}
        assert (actions["compute_reference"], actions["train"]) == ("hit", "run")
    plan = shell.json("plan", "mine.yaml", *SMALL, *places, "train.objective=simpo")
    assert "compute_reference" not in {step["stage"] for step in plan["stages"]}
    answer = shell.json("predict", "mine.yaml", *SMALL, *places, "Question 3: what does the baker say?\n")["results"]
    assert answer[0]["generated"]

    # champion and challenger by frozen pairs, as evaluate_model judges the same rows
    assert shell.json("freeze", "mine.yaml", *SMALL, *places)["rows"] == 17
    assert shell.json("promote", "mine.yaml", *SMALL, *places)["promoted"]
    other = (
        "train.learning_rate=5e-3",
        "train.keep_best=true",
        "train.best_metric=reward_accuracy",
        "evaluate.split=test",
    )
    second = shell.json("run", "mine.yaml", "--direct", "--no-rehearse", *SMALL, *places, *other)
    judged = {stage["stage"]: stage["metrics"] for stage in second["stages"]}["evaluate_model"]
    compared = shell.json("promote", "mine.yaml", *SMALL, *places, *other)["comparison"]
    assert (compared["metric"], compared["rows"]) == ("likelihood_accuracy", 17)
    assert compared["challenger"] == pytest.approx(judged["likelihood_accuracy"])
    # and by a function of the user's, which reads both numbers of a pair
    (tmp_path / "mine_of_pairs.py").write_text(
        "def likelier(p):\n    return float((p.probabilities[:, 0] > p.probabilities[:, 1]).mean())\n"
    )
    metric = "metrics: [{function: 'mine_of_pairs:likelier', less_is_better: false, may_promote: true}]"
    (tmp_path / "mine.yaml").write_text(RECIPE.replace("evaluate: {", f"evaluate: {{{metric}, "))
    shell.json("run", "mine.yaml", "--direct", "--no-rehearse", *SMALL, *places, *other)
    own = shell.json("promote", "mine.yaml", *SMALL, *places, *other, "promote.metric=likelier")["comparison"]
    assert (own["metric"], own["challenger"]) == ("likelier", pytest.approx(judged["likelihood_accuracy"]))


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        (("train.objective=grpo",), "rank its answers beforehand, and set objective=dpo"),
        (("train.objective=sft",), "set train.objective=dpo or orpo or simpo or reward, which these columns suit"),
        (("format.task=text", "data.text=prompt"), "the task causal_lm has one"),
        (("train.objective=orpo", "train.loss_type=ipo"), "loss_type is not read by objective orpo"),
        (("train.label_smoothing=0.1",), "label_smoothing is not read by loss_type sigmoid: set loss_type=robust"),
        (("pack.strategy=concat",), "the answers of a pair stay together"),
        (("tokenize.overlong=split",), "an answer that is compared can't be split"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    given_settings: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    shell = InProcessShell(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/train.jsonl").write_text("\n".join(map(json.dumps, rows_of(20))))
    recipe = RECIPE.replace("model: {source: model, config: null}\n", "").replace(", train: null", "")
    (tmp_path / "mine.yaml").write_text(recipe)
    shell("run", "mine.yaml", "--direct", "--until", "load_data", *SMALL)
    assert message in shell.error("plan", "mine.yaml", *SMALL, *given_settings, code=2)


@pytest.mark.slow
def test_the_recipe_of_the_page_trains_an_adapter_by_pairs(given: dict[str, Any], tmp_path: Path) -> None:
    shell = InProcessShell(tmp_path)
    page = (PROJECT / "docs/tasks.md").read_text().partition("## Pairs of answers")[2]
    (tmp_path / "pairs.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows_of(80))))
    small = (
        f"model.source={given['model'].location['model']['folder']}",
        f"model.tokenizer={given['packed'].path / 'tokenizer'}",
        "train.max_steps=8", "train.learning_rate=1e-3", "tokenize.max_length=64", "pack.chunk_length=256",
        "format.chat_template=null",
    )  # fmt: skip
    made = shell.json("run", "pairs.yaml", "--direct", "--until", "consolidate", *SMALL, *small)
    metrics = {stage["stage"]: stage["metrics"] for stage in made["stages"]}["train"]
    assert metrics["eval_reward_margin"] > 0
    assert shell("get", "pairs.yaml", "consolidate", "model", *SMALL, *small).returncode == 0
    adapter = json.loads((tmp_path / "model/adapter/adapter_config.json").read_text())
    assert (adapter["r"], adapter["lora_alpha"]) == (16, 32)
