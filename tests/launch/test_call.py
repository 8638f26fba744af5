"""Calls survive the trip through a file, and refuse what would not."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, PlainSerializer

from tests.launch import stages
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import ORDERED, StageConfig, keyed_params
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.launch.call import Call, resolve


class Lossy(StageConfig):
    rate: Annotated[float, PlainSerializer(lambda value: round(value), return_type=int)] = Field(default=0.5)


def call_of(folder: Path, **more: object) -> Call:
    inputs = {
        "rows": Input(folder / "in", "rows", {"splits": {"train": 3}}, "sha256:aa"),
        "model": Source("model", {"commit": "abc"}, {"folder": "x"}, "last resolution"),
    }
    config = stages.NapConfig(how="é", pids=folder / "pids")
    return Call.of(stages.describe, config, inputs, folder / "out", **more)


def test_a_call_comes_back_from_its_file_as_it_was(tmp_path):
    call = call_of(
        tmp_path, root="s3://bucket/store", home="h", attempt="a", environ={"A": "1"}, log=tmp_path / "l/log"
    )
    call.save()
    assert Call.load(call.file) == call
    assert stat.S_IMODE(call.file.stat().st_mode) == 0o600


def test_the_file_does_not_hold_the_password_of_the_store(tmp_path: Path) -> None:
    call = call_of(tmp_path, root="s3://KEY:hunter2@bucket/store")
    call.save()
    assert "hunter2" not in call.file.read_text() and Call.load(call.file).root == "s3://***@bucket/store"


def test_names_lead_back_to_the_function_and_its_config(tmp_path):
    call = call_of(tmp_path)
    assert resolve(call.function) is stages.describe
    assert resolve(call.config_type) is stages.NapConfig
    assert call.name == "describe"
    assert call.search == (str(Path(__file__).parents[2]),)


def test_a_function_that_has_no_importable_name_is_refused(tmp_path):
    def local(config: StageConfig, out: object) -> Meta:
        return {}

    with pytest.raises(TypeError, match="top level of an importable module"):
        Call.of(local, stages.NapConfig(), {}, tmp_path)


def test_a_config_that_json_would_change_is_refused(tmp_path):
    with pytest.raises(TypeError, match="Lossy changes when it is written as JSON"):
        Call.of(stages.empty, Lossy(), {}, tmp_path)


class Tables(StageConfig):
    names: dict[str, int] = {}
    rules: Annotated[dict[str, int], ORDERED] = {}


def test_a_stage_sees_names_sorted_as_in_the_key_but_those_whose_order_counts(tmp_path: Path) -> None:
    """So its files can't depend on whether another command made its inputs, or how the recipe was written."""

    def text(names: dict[str, int], rules: dict[str, int]) -> str:
        inputs = {
            "rows": Input(tmp_path, "rows", {"metrics": names}, "sha256:aa"),
            "model": Source("model", {"config": names}, {}),
        }
        call = Call.of(stages.empty, Tables(names=names, rules=rules), inputs, tmp_path / "out")
        call.save()
        return call.file.read_text()

    some, turned = {"b": 1, "a": 2}, {"a": 2, "b": 1}
    assert text(some, some) == text(turned, some) != text(some, turned)
    keys = [digest_of(keyed_params(Tables(names=some, rules=rules))) for rules in (some, turned)]
    assert keys[0] != keys[1] and digest_of(keyed_params(Tables(names=turned, rules=some))) == keys[0]
