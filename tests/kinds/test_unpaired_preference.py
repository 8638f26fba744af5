"""Answers marked desirable or not: from published shapes to packed documents, trained alike on any mesh, judged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import Bench
from tests.kinds.preferences import marked_rows_of, packed_preferences, started
from tests.kinds.test_preference import ASKED, COMMON, NO, RECIPE, SMALL, TEMPLATE, YES
from tests.training.run_stage import check_resumes_after_a_kill, run_stage, traced_and_trained
from trnflow.tasks.artifact import Input
from trnflow.tasks.compute_reference import compute_reference
from trnflow.tasks.data.chunks import open_chunks, open_marks, open_segments
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.config import TrainConfig

TASK = "unpaired_preference"
KTO = {**COMMON, "objective": "kto"}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "texts": [
        {"prompt": "Why?", "completion": "So.", "label": True},
        {"prompt": "Why?", "completion": "No.", "label": False},
    ],
    "texts that hold the prompt, and numbers": [
        {"prompt": "Why?", "completion": "Why?So.", "label": 1},
        {"prompt": "Why?", "completion": "Why?No.", "label": 0},
    ],
    "messages": [
        {"prompt": [ASKED], "completion": [YES], "label": True},
        {"prompt": [ASKED], "completion": [NO], "label": False},
    ],
    "conversations": [{"completion": [ASKED, YES], "label": "true"}, {"completion": [ASKED, NO], "label": "false"}],
    "pairs": [{"prompt": "Why?", "chosen": "So.", "rejected": "No."}],
    "pairs of messages": [{"prompt": [ASKED], "chosen": [YES], "rejected": [NO]}],
}


def texts_of(folder: Path, rows: list[dict[str, Any]]) -> tuple[Bench, Input]:
    bench = Bench(folder, [])
    (folder / "rows").mkdir()
    (folder / "rows/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return bench, bench.texts(bench.rows(source=str(folder / "rows")), task=TASK, chat_template=TEMPLATE)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_published_shape_gives_the_same_marked_answers(shape: str, tmp_path: Path) -> None:
    bench, texts = texts_of(tmp_path, SHAPES[shape])
    made = pq.read_table(texts.path / "train.parquet").to_pylist()
    parts = [([(part["text"], part["train"]) for part in row["parts"]], row["label"]) for row in made]
    prompt = "[user]Why?[assistant]" if "role" in str(SHAPES[shape]) else "Why?"
    assert parts == [([(prompt, False), ("So.", True)], 1), ([(prompt, False), ("No.", True)], 0)]
    assert "answers: 1 desirable, 1 undesirable" in [event["info"] for event in bench.said if "info" in event]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (
            [{**SHAPES["texts"][0], "label": "good"}],
            DataError,
            "split train row 1: the label is 'good', neither true nor",
        ),
        (
            [SHAPES["texts"][0], {**SHAPES["texts"][0], "prompt": "When?"}],
            DataError,
            "all answers of train are desirable",
        ),
        ([{"prompt": "Why?", "completion": "So."}], ConfigError, "no column label .*suit train.objective=sft"),
        ([{"messages": [ASKED, YES], "label": True}], ConfigError, "rename with data.columns.completion=messages"),
    ],
)
def test_bad_rows_are_named(rows: list[dict[str, Any]], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        texts_of(tmp_path, rows)
    assert re.search(message, f"{caught.value}", re.DOTALL), caught.value


def test_a_row_is_its_answer_and_that_of_a_row_of_another_prompt(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    rows = marked_rows_of(40)
    # prompts with two answers
    rows += [{**row, "completion": f"Neither, {number}.", "label": False} for number, row in enumerate(rows[:9])]
    packed, train = packed_preferences(tmp_path, rows, {"strategy": "bfd", "chunk_length": 256}, 128, task=TASK)
    tokenizer = Tokenizer.from_file(str(packed.path / "tokenizer/tokenizer.json"))
    own, other, marks = list[Any](), list[Any](), list[bool]()
    for length in map(int, packed.meta["rows"]["train"]):
        columns, places = open_chunks(packed, "train", length), iter(open_segments(packed, "train", length)[:, 0])
        stored = open_marks(packed, "train", length)
        for chunk, (ids, labels, segments, _) in enumerate(zip(*columns.values(), strict=True)):
            for pair in range(int(segments.max()) // 2):
                row = train[int(next(places))]
                for number, texts in ((2 * pair + 1, own), (2 * pair + 2, other)):
                    here, learnt = segments == number, (segments == number) & (labels != -100)
                    asked, said = (tokenizer.decode(ids[part].tolist()) for part in (here & ~learnt, learnt))
                    assert asked.strip() == row["prompt"].strip()
                    texts.append((asked, said.strip()))
                assert own[-1][1] == row["completion"].strip()
                marks.append(stored[chunk, pair] == (1 if row["label"] else -1))
    assert all(marks) and len(own) == len(train)
    # the same answers, each moved on to another prompt
    assert sorted(said for _, said in own) == sorted(said for _, said in other) and not {*own} & {*other}
    split = Split(packed, "train")
    batch = split.read(next(iter(split.in_order(4))))
    first, second = (batch.documents(which, (1, 1)) for which in (0, 1))
    assert first.supervised == second.supervised == batch.supervised
    assert first.real + second.real == batch.real and first.input_ids.shape[1] < batch.input_ids.shape[1]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("marked")
    packed, _ = packed_preferences(folder / "data", marked_rows_of(150), most=64, task=TASK)
    model = started(folder / "model", packed)
    reference = run_stage(
        compute_reference, TrainConfig(**KTO), folder / "reference", model=model, packed=packed
    ).artifact
    return {"model": model, "packed": packed, "reference": reference}


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(given: dict[str, Any], tmp_path: Path) -> None:
    check_resumes_after_a_kill(TrainConfig(**{**KTO, "max_steps": 60, "checkpoint_every": 8}), tmp_path, given)


@pytest.mark.slow
def test_two_ranks_and_two_passes_train_as_one(given: dict[str, Any], tmp_path: Path) -> None:
    layouts: list[dict[str, Any]] = [
        {}, {"devices": 2, "micro_batch": 2, "fsdp": True}, {"micro_batch": 2},
        {"devices": 2, "tensor_parallel_size": 2, "sequence_parallel": True},
    ]  # fmt: skip
    ran = [
        run_stage(traced_and_trained, TrainConfig(**KTO, **layout), tmp_path / str(number), **given)
        for number, layout in enumerate(layouts)
    ]
    assert ran[0].curve("kl")[20] > 1e-3
    for name in ("loss", "reward_chosen", "reward_margin", "kl", "eval_loss", "eval_reward_margin", "eval_kl"):
        one, *others = (list(each.curve(name).values()) for each in ran)
        for other in others:
            assert np.abs(np.array(other) - one).max() <= 1e-5, name


@pytest.mark.slow
def test_marked_answers_go_through_all_stages(given: dict[str, Any], tmp_path: Path) -> None:
    shell = InProcessShell(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/train.jsonl").write_text("\n".join(map(json.dumps, marked_rows_of(120))))
    (tmp_path / "mine.yaml").write_text(
        RECIPE.replace("task: preference", f"task: {TASK}").replace("objective: dpo", "objective: kto")
    )
    places = (
        f"model.source={given['model'].location['model']['folder']}",
        f"model.tokenizer={given['packed'].path / 'tokenizer'}",
        "train.learning_rate=3e-3",
    )
    rehearsed = shell("rehearse", "mine.yaml", *SMALL, *places)
    assert rehearsed.returncode == 0, rehearsed.stderr
    first = shell.json("run", "mine.yaml", "--direct", "--no-rehearse", *SMALL, *places)
    metrics = {stage["stage"]: stage["metrics"] for stage in first["stages"]}
    for name in (
        "reward_accuracy",
        "reward_margin",
        "likelihood_margin",
        "reward_chosen",
        "reward_rejected",
        "kl",
        "loss",
    ):
        assert metrics["evaluate_model"][name] == pytest.approx(metrics["train"][f"eval_{name}"], abs=1e-5), name
    assert metrics["evaluate_model"]["reward_margin"] > 0
    for changed in (("train.beta=0.3", "train.undesirable_weight=2"), ("train.loss_type=apo_zero_unpaired",)):
        plan = shell.json("plan", "mine.yaml", *SMALL, *places, *changed)
        actions = {step["stage"]: step["action"] for step in plan["stages"]}
        assert (actions["compute_reference"], actions["train"]) == ("hit", "run")
    answer = shell.json("predict", "mine.yaml", *SMALL, *places, "Question 3: what does the baker say?\n")["results"]
    assert answer[0]["generated"]

    assert shell.json("freeze", "mine.yaml", *SMALL, *places)["rows"] > 10
    assert shell.json("promote", "mine.yaml", *SMALL, *places)["promoted"]
    other = ("train.max_steps=16", "train.keep_best=true", "train.best_metric=likelihood_margin", "evaluate.split=test")
    second = shell.json("run", "mine.yaml", "--direct", "--no-rehearse", *SMALL, *places, *other)
    judged = {stage["stage"]: stage["metrics"] for stage in second["stages"]}["evaluate_model"]
    compared = shell.json("promote", "mine.yaml", *SMALL, *places, *other)["comparison"]
    assert compared["metric"] == "likelihood_margin"
    assert compared["challenger"] == pytest.approx(judged["likelihood_margin"], abs=1e-5)


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        (("train.objective=dpo",), "set format.task=preference, or train.objective=kto, which these columns suit"),
        (("train.objective=sft",), "set train.objective=kto, which these columns suit"),
        (("format.task=preference",), "suit train.objective=kto: set format.task=unpaired_preference"),
        (
            ("format.task=instruction", "format.instruction=prompt", "format.response=completion"),
            "set format.task=unpaired_preference for rows of",
        ),
        (("train.loss_type=ipo",), "set loss_type=kto or apo_zero_unpaired"),
        (("train.simpo_gamma=1",), "simpo_gamma is not read by objective kto"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    given_settings: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    shell = InProcessShell(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/train.jsonl").write_text("\n".join(map(json.dumps, marked_rows_of(30))))
    recipe = RECIPE.replace("model: {source: model, config: null}\n", "").replace(", train: null", "")
    recipe = recipe.replace("task: preference", f"task: {TASK}").replace("objective: dpo", "objective: kto")
    (tmp_path / "mine.yaml").write_text(recipe)
    shell("run", "mine.yaml", "--direct", "--until", "load_data", *SMALL)
    assert message in shell.error("plan", "mine.yaml", *SMALL, *given_settings, code=2)
