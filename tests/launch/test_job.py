"""Job specs survive the trip through a file, and refuse what would not."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, PlainSerializer

from tests.launch import stages
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.launch.job import JobSpec, resolve


class Lossy(StageConfig):
    """A config whose JSON says less than it does."""

    rate: Annotated[float, PlainSerializer(lambda value: round(value), return_type=int)] = Field(default=0.5)


def spec_of(folder: Path, **more: object) -> JobSpec:
    inputs = {
        "rows": Input(folder / "in", "rows", {"splits": {"train": 3}}, "sha256:aa"),
        "model": Source("model", {"commit": "abc"}, {"folder": "x"}, "last resolution"),
    }
    config = stages.NapConfig(how="é", pids=folder / "pids")
    return JobSpec.of(stages.describe, config, inputs, out=folder / "out", scratch=folder / "scratch", **more)


def test_a_spec_comes_back_from_its_file_as_it_was(tmp_path):
    spec = spec_of(tmp_path, partial={"root": "s", "home": "h", "key": "k"}, environ={"A": "1"}, log=tmp_path / "l/log")
    spec.save()
    assert JobSpec.load(spec.file) == spec
    assert stat.S_IMODE(spec.file.stat().st_mode) == 0o600


def test_names_lead_back_to_the_function_and_its_config(tmp_path):
    spec = spec_of(tmp_path)
    assert resolve(spec.function) is stages.describe
    assert resolve(spec.config_type) is stages.NapConfig
    assert spec.name == "describe"
    assert spec.search == (str(Path(__file__).parents[2]),)


def test_a_function_that_has_no_importable_name_is_refused(tmp_path):
    def local(config: StageConfig, out: object) -> Meta:
        return {}

    with pytest.raises(TypeError, match="top level of an importable module"):
        JobSpec.of(local, stages.NapConfig(), {}, out=tmp_path, scratch=tmp_path)


def test_a_config_that_json_would_change_is_refused(tmp_path):
    with pytest.raises(TypeError, match="Lossy changes when it is written as JSON"):
        JobSpec.of(stages.empty, Lossy(), {}, out=tmp_path, scratch=tmp_path)
