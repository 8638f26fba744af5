"""GPUs are found by NVML or nvidia-smi, in CUDA's order; nothing imports torch. No GPU is here: NVML's answers are planted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.planted_nvml import A10G, GTX, H100, K80, MACHINES, PART, T4, V100, Card, Machine
from trnflow.tasks.system import gpus
from trnflow.tasks.system.gpus import Torch, by_nvml, by_smi, installed_torch, torch_in, usable, visible

BUILD = Torch("2.9.1+cu128", "12.8", "", ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))

LATER = BUILD._replace(architectures=BUILD.architectures[1:])

compiled = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def found(machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> gpus.Driver:
    monkeypatch.setattr(gpus, "NVML", (str(machine.library(folder)),))
    answer = by_nvml()
    assert answer is not None
    return answer


@compiled
def test_nvml_names_gpus_memory_capability_driver_and_mig_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine((H100, A10G, PART, PART._replace(name="MIG 2g.20gb")), "570.86.15", (12, 8))
    whole, other = (answer := found(machine, tmp_path, monkeypatch)).gpus
    assert (answer.version, answer.cuda) == ("570.86.15", (12, 8))
    assert (other.name, other.memory, other.capability, other.parts) == ("NVIDIA A10G", 23028 << 20, (8, 6), None)
    assert whole.parts is not None and [part.name for part in whole.parts] == [PART.name, "MIG 2g.20gb"]
    assert {part.capability for part in whole.parts} == {(9, 0)} and whole.parts[0].memory == 9984 << 20


@compiled
@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, ["NVIDIA H100 80GB HBM3", "NVIDIA A10G", "Tesla T4"]),  # the fastest first
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["Tesla T4", "NVIDIA A10G", "NVIDIA H100 80GB HBM3"]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, ["NVIDIA A10G", "NVIDIA H100 80GB HBM3"]),
        ({"CUDA_VISIBLE_DEVICES": " 2 , 7, 0"}, ["Tesla T4"]),  # none behind a number that is none
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000001"}, ["NVIDIA A10G"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0"}, []),  # three begin so
        ({"CUDA_VISIBLE_DEVICES": "0,0"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_cuda_shows_what_its_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], names: list[str]
) -> None:
    answer = found(Machine((T4, A10G, H100)), tmp_path, monkeypatch)
    assert [gpu.name for gpu in visible(answer.gpus, variables)] == names


@compiled
def test_of_mig_devices_one_is_shown_and_a_uuid_chooses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine((H100, PART, PART))
    cards = found(machine, tmp_path, monkeypatch).gpus
    for variables, uuid in (({}, machine.uuid(1)), ({"CUDA_VISIBLE_DEVICES": machine.uuid(2)}, machine.uuid(2))):
        assert [gpu.uuid for gpu in visible(cards, variables)] == [uuid]
    assert "MIG mode has no device" in usable(gpus.Driver((cards[0]._replace(parts=()),)), BUILD, {}).why


@compiled
@pytest.mark.parametrize(
    ("build", "why"),
    [
        (Torch("2.9.1+cpu"), "built without CUDA"),
        (Torch("2.9.1+rocm6.4", "", "6.4"), "built for ROCm, which is not supported"),
        (BUILD._replace(cuda="13.0"), "knows CUDA 12.8, and torch 2.9.1+cu128 needs CUDA 13.0: update the driver"),
        (BUILD._replace(architectures=("sm_90",)), "has capability 8.6, and torch 2.9.1+cu128 has code for sm_90"),
        (BUILD._replace(architectures=("sm_75", "compute_80")), ""),
        (BUILD, ""),
    ],
)
def test_the_installed_torch_must_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Torch, why: str) -> None:
    answer = usable(found(Machine((A10G, A10G)), tmp_path, monkeypatch), build, {})
    assert why in answer.why and len(answer.gpus) == (0 if why else 2)


@compiled
@pytest.mark.parametrize(("card", "build", "number"), [(K80, BUILD, "3.7"), (V100, LATER, "7.0")])
def test_a_card_older_than_the_installed_torch_is_refused_by_name(
    card: Card, build: Torch, number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = usable(found(Machine((card,)), tmp_path, monkeypatch), build, {})
    assert not answer.gpus and answer.why.startswith(f"{card.name} has capability {number}, and torch 2.9.1+cu128 has")


@compiled
def test_cards_of_several_kinds_train_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = found(Machine((T4, A10G, GTX, A10G)), tmp_path, monkeypatch)
    assert [gpu.name for gpu in usable(answer, BUILD, {}).gpus] == ["NVIDIA A10G"] * 2
    assert "too old for torch" in usable(answer, BUILD, {"CUDA_VISIBLE_DEVICES": "3,0"}).why


def test_nvidia_smi_is_asked_where_nvml_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        """#!/bin/sh
case "$1" in
--query*) echo "NVIDIA A10G, GPU-1, 23028, 8.6, 550.54.14, [N/A]"; echo "NVIDIA H100, GPU-2, 81559, 9.0, 550.54.14, Enabled";;
-L) echo "GPU 0: NVIDIA A10G (UUID: GPU-1)"; echo "GPU 1: NVIDIA H100 (UUID: GPU-2)"
    echo "  MIG 1g.10gb     Device  0: (UUID: MIG-3)";;
*) echo "| NVIDIA-SMI 550.54.14    Driver Version: 550.54.14    CUDA Version: 12.4 |";;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setattr(gpus, "NVML", ())
    monkeypatch.setattr(gpus, "SMI", (str(tmp_path / "none"), str(program)))
    answer = by_smi()
    assert answer is not None
    assert (answer.version, answer.cuda) == ("550.54.14", (12, 4))
    plain, split = answer.gpus
    assert (plain.name, plain.memory, plain.capability, plain.parts) == ("NVIDIA A10G", 23028 << 20, (8, 6), None)
    assert split.parts is not None and [(part.uuid, part.memory) for part in split.parts] == [("MIG-3", 10 << 30)]


def test_the_architectures_of_the_installed_torch_are_those_that_it_names(tmp_path: Path) -> None:
    import torch

    build = installed_torch()
    assert (build.version, build.cuda or None) == (torch.__version__, torch.version.cuda)
    assert list(build.architectures) == torch._C._cuda_getArchFlags().split() if torch.version.cuda else True
    (tmp_path / "version.py").write_text("__version__ = '2.9.1+cpu'\ncuda: Optional[str] = None\nhip = None\n")
    assert torch_in(tmp_path) == Torch("2.9.1+cpu")


@compiled
def test_the_command_finds_planted_gpus_without_importing_torch(tmp_path: Path) -> None:
    machine = MACHINES["8 x H100"]
    assert machine is not None
    machine.library(tmp_path)
    code = (
        "import sys\nfrom trnflow.tasks.system.gpus import usable_gpus\nprint(usable_gpus())\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True
    ).stdout
    torch = installed_torch()
    fits = not torch.cuda or torch.cuda.startswith("12.")  # the planted driver knows CUDA 12
    needs = f"knows CUDA 12.8, and torch {torch.version} needs CUDA {torch.cuda}: update the driver"
    assert (
        printed.startswith("8 x NVIDIA H100 80GB HBM3 (79.6 GiB each, driver 570.86.15") if fits else needs in printed
    )
