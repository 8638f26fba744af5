"""`launch.memory_gib`: a real stage that passes it says so, with the settings that help."""

from __future__ import annotations

import re

from tests.conftest import PROJECT
from tests.helpers.command_line import Shell
from trnflow.flows.finetune import FUNCTIONS
from trnflow.flows.recipes.recipe import Recipe
from trnflow.tasks.launch.memory import TAKES_LESS


def test_a_data_stage_names_the_settings_of_data(trnflow: Shell) -> None:
    row = '{"text": "train is good", "label": "pos"}\n'
    (trnflow.folder / "rows/train.jsonl").write_text(row * 200_000)  # so that load_data is looked at before it ends
    alone = ("--until", "load_data", "--direct", "tracking.enabled=false")
    said = trnflow.error("run", "mine.yaml", *alone, "launch.memory_gib=0.02", code=1)
    assert "load_data took 0." in said and "more than the 0.02 GiB it may take" in said
    assert "lower data.max_cell_mb" in said and "launch.memory_gib" in said and "batch" not in said


def test_each_stage_has_settings_with_which_it_takes_less() -> None:
    # evaluate_model scores what others make, which takes the memory
    evaluating = {"predict_rows", "fit_baseline", "predict_before"}
    assert {*TAKES_LESS} == {function.__name__ for function in FUNCTIONS} - {"evaluate_model"} | evaluating
    for words in " ".join(TAKES_LESS.values()).replace(",", "").replace("=", " ").split():
        section, _, setting = words.partition(".")
        if setting:
            assert setting in Recipe.model_fields[section].annotation.model_fields


def test_the_page_has_the_same_settings() -> None:
    page = (PROJECT / "docs/machines.md").read_text().replace("`", "")
    for stage, words in TAKES_LESS.items():
        assert re.search(rf"^\| (?:{stage}|.*\({stage}\)) \| {re.escape(words)} \|$", page, re.MULTILINE), stage
