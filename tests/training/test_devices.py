"""What device neuron needs is there, and counted, before anything is compiled."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.training.run_stage import PROJECT, run_stage
from tests.training.toys import BERT, packed_classes, scratch
from trnflow.tasks.errors import MissingDependency, ModelError
from trnflow.tasks.precompile import precompile
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training import devices

pytestmark = pytest.mark.xla  # without it no Neuron package is asked for

NEURON = ("libneuronxla", "neuronx-cc", "torch-neuronx")
TWO_CORES = TrainConfig(device="neuron", devices=2)


def installed(site: Path, **versions: str) -> Path:
    """A folder for `sys.path` with packages of these names and versions. Those of PyPI raise as soon as they are imported."""
    for name, version in versions.items():
        module = site / name / "__init__.py"
        module.parent.mkdir(parents=True)
        module.write_text('raise ImportError("WRONG PACKAGE")' if version.startswith("1.0") else "")
        about = site / f"{name}-{version}.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    return site


def driver(folder: Path, *cores: int, instance: str = "Trn1") -> Path:
    """The driver's folder in sysfs, as AWS documents it, with a device for each number of cores."""
    for number, count in enumerate(cores):
        device = folder / f"neuron{number}"
        (device / "info" / "architecture").mkdir(parents=True)
        (device / "core_count").write_text(f"{count}\n")
        (device / "info" / "architecture" / "instance_type").write_text(f"{instance}\n")
    return folder


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = installed(tmp_path / "aws", libneuronxla="2.2.15515.0", neuronx_cc="2.23.6484.0", torch_neuronx="2.9.0.2.12")
    monkeypatch.syspath_prepend(str(site))


@pytest.mark.parametrize("empty", NEURON)
def test_pypi_s_empty_packages_are_told_from_aws_s(
    empty: str, aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path / "pypi", **{empty.replace("-", "_"): "1.0.post1"})))
    with pytest.raises(MissingDependency, match=f"{empty} 1.0.post1 is PyPI's empty placeholder package") as caught:
        devices.check_device(TWO_CORES)
    assert f"pip uninstall {empty}" in caught.value.fix and "AWS's Neuron package index" in caught.value.fix


def test_a_stage_s_process_names_the_empty_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole stage, in its own process, where importing one of them would raise."""
    site = installed(tmp_path / "pypi", libneuronxla="1.0", neuronx_cc="1.0.post1", torch_neuronx="1.0")
    monkeypatch.setenv("PYTHONPATH", str(site))
    inputs = {"model": scratch(**BERT), "packed": packed_classes(tmp_path / "packed")}
    with pytest.raises(MissingDependency, match="libneuronxla 1.0 is PyPI's empty placeholder package"):
        run_stage(precompile, TWO_CORES, tmp_path / "run", **inputs)


def test_a_package_that_is_not_there_is_named(aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(tmp_path / "aws" / "neuronx_cc-2.23.6484.0.dist-info")
    with pytest.raises(MissingDependency, match="Neuron compiler and runtime .* neuronx-cc is not installed"):
        devices.check_device(TWO_CORES)


@pytest.mark.parametrize(
    ("cores", "instance", "logical", "there"),
    [((2,), "Trn1", None, 2), ((2, 2), "Trn1", None, 4), ((8,), "trn2", None, 4), ((8,), "Trn2", "1", 8)],
)
def test_neuron_cores_are_counted(
    cores: tuple[int, ...],
    instance: str,
    logical: str | None,
    there: int,
    aws: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A logical core of Trn2 is two cores, unless the runtime's variable says otherwise."""
    monkeypatch.setattr(devices, "NEURON_DEVICES", driver(tmp_path / "sys", *cores, instance=instance))
    monkeypatch.delenv("NEURON_LOGICAL_NC_CONFIG", raising=False)
    if logical:
        monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", logical)
    devices.check_device(TrainConfig(device="neuron", devices=there))
    with pytest.raises(ModelError, match=f"train.devices is {2 * there}, and there are {there} NeuronCores here"):
        devices.check_device(TrainConfig(device="neuron", devices=2 * there))


def test_a_machine_without_a_neuron_device_is_refused(
    aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "NEURON_DEVICES", tmp_path / "none")
    with pytest.raises(ModelError, match="there are 0 NeuronCores here") as caught:
        devices.check_device(TWO_CORES)
    assert "train.device=cpu" in caught.value.fix


def test_a_driver_that_does_not_tell_is_left_to_the_runtime(
    aws: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS moved nodes of this tree before (driver 2.31): XLA counts the devices again when it starts."""
    (tmp_path / "sys" / "neuron0").mkdir(parents=True)
    monkeypatch.setattr(devices, "NEURON_DEVICES", tmp_path / "sys")
    devices.check_device(TWO_CORES)


STANDING_IN = ("torch_xla", "torch_xla.debug", "torch_xla.debug.metrics", "torch_xla.distributed", "torch_xla.runtime")


@pytest.mark.parametrize(
    ("fields", "mesh"),
    [
        ({"devices": 1}, False),
        ({"devices": 2}, True),
        ({"device": "neuron", "devices": 1}, False),
        ({"device": "neuron", "devices": 2}, False),
    ],
)
def test_only_one_process_of_several_devices_has_a_mesh(
    fields: dict[str, Any], mesh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules stand in for torch_xla, which this process must not import, and for devices that are not here."""
    for name in (*STANDING_IN, "torch_xla.distributed.spmd"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    config = TrainConfig(**{"engine": "xla", "global_batch": 2, **fields})
    spec = importlib.util.spec_from_file_location("xla_devices", PROJECT / "tasks/training/xla/devices.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.torch_xla.device, module.xs.Mesh = lambda: "xla:0", lambda *sizes: "mesh"
    module.xr.global_runtime_device_count, module.xr.use_spmd = lambda: config.devices, lambda: None
    assert module.start_devices(config) == ("xla:0", "mesh" if mesh else None)
