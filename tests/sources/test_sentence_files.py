"""What is read of the files of sentence-transformers."""

from __future__ import annotations

from typing import Any

import pytest

from trnflow.tasks.sources.sentence_files import sentence_files

MODULES: list[Any] = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
]


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, {"pooling": None, "max_seq_length": None, "do_lower_case": False, "prompts": {}}),
        ({"1_Pooling/config.json": {"pooling_mode": "cls"}}, {"pooling": "cls"}),
        (
            {"1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "dim": 3}},
            {"pooling": "mean+cls"},
        ),
        (
            {"1_Pooling/config.json": {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}},
            {"pooling": "cls"},
        ),
        ({"sentence_bert_config.json": {"max_seq_length": 32}}, {"max_seq_length": 32, "do_lower_case": False}),
        ({"sentence_bert_config.json": {"do_lower_case": True}}, {"do_lower_case": True}),
        (
            {"config_sentence_transformers.json": {"prompts": {"query": "q: ", "none": ""}}},
            {"prompts": {"query": "q: "}},
        ),
    ],
)
def test_what_the_files_say_and_nothing_more(files: dict[str, Any], told: dict[str, Any]) -> None:
    there = {"modules.json": MODULES, **files}
    found = sentence_files(there, there.__getitem__)
    assert found is not None and found["modules"] == ["Transformer", "Pooling"]
    assert {name: found[name] for name in told} == told
    assert sentence_files(files, there.__getitem__) is None
