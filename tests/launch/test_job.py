"""Jobs survive the trip through a file, and refuse what would not."""

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
from trnflow.tasks.launch.job import Job, resolve


class Lossy(StageConfig):
    rate: Annotated[float, PlainSerializer(lambda value: round(value), return_type=int)] = Field(default=0.5)


def job_of(folder: Path, **more: object) -> Job:
    inputs = {
        "rows": Input(folder / "in", "rows", {"splits": {"train": 3}}, "sha256:aa"),
        "model": Source("model", {"commit": "abc"}, {"folder": "x"}, "last resolution"),
    }
    config = stages.NapConfig(how="é", pids=folder / "pids")
    return Job.of(stages.describe, config, inputs, folder / "out", **more)


def test_a_job_comes_back_from_its_file_as_it_was(tmp_path):
    job = job_of(tmp_path, root="s3://bucket/store", home="h", attempt="a", environ={"A": "1"}, log=tmp_path / "l/log")
    job.save()
    assert Job.load(job.file) == job
    assert stat.S_IMODE(job.file.stat().st_mode) == 0o600


def test_the_file_does_not_hold_the_password_of_the_store(tmp_path: Path) -> None:
    job = job_of(tmp_path, root="s3://KEY:hunter2@bucket/store")
    job.save()
    assert "hunter2" not in job.file.read_text() and Job.load(job.file).root == "s3://***@bucket/store"


def test_names_lead_back_to_the_function_and_its_config(tmp_path):
    job = job_of(tmp_path)
    assert resolve(job.function) is stages.describe
    assert resolve(job.config_type) is stages.NapConfig
    assert job.name == "describe"
    assert job.search == (str(Path(__file__).parents[2]),)


def test_a_function_that_has_no_importable_name_is_refused(tmp_path):
    def local(config: StageConfig, out: object) -> Meta:
        return {}

    with pytest.raises(TypeError, match="top level of an importable module"):
        Job.of(local, stages.NapConfig(), {}, tmp_path)


def test_a_config_that_json_would_change_is_refused(tmp_path):
    with pytest.raises(TypeError, match="Lossy changes when it is written as JSON"):
        Job.of(stages.empty, Lossy(), {}, tmp_path)


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
        job = Job.of(stages.empty, Tables(names=names, rules=rules), inputs, tmp_path / "out")
        job.save()
        return job.file.read_text()

    some, turned = {"b": 1, "a": 2}, {"a": 2, "b": 1}
    assert text(some, some) == text(turned, some) != text(some, turned)
    keys = [digest_of(keyed_params(Tables(names=some, rules=rules))) for rules in (some, turned)]
    assert keys[0] != keys[1] and digest_of(keyed_params(Tables(names=turned, rules=some))) == keys[0]
