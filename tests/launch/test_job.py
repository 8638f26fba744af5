"""Jobs survive the trip through a file, and refuse what would not."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, PlainSerializer

from tests.launch import stages
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import StageConfig
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
    job = job_of(tmp_path, root="s", home="h", attempt="a", environ={"A": "1"}, log=tmp_path / "l/log")
    job.save()
    assert Job.load(job.file) == job
    assert stat.S_IMODE(job.file.stat().st_mode) == 0o600


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
