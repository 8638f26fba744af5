"""`--on auto`: what is chosen for machines whose NVML is planted, and why. No GPU is here: nothing has run on one."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.flows.prefect_api import PROJECT
from tests.helpers.command_line import InProcessShell
from tests.system.planted_nvml import A10G, H100, MACHINES, T4, Machine
from tests.system.test_gpus import BUILD
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes import hardware
from trnflow.flows.recipes import recipe as settings
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system import gpus

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

OPEN = """
data: {source: rows.csv, text: text, label: label, split: {validation: 0.2, test: 0.2}}
format: {task: classification}
model: {config: {model_type: bert}}
tokenize: {max_length: 16, train: {kind: wordpiece, vocab_size: 200}}
pack: {strategy: pad, chunk_length: 16}
train: {TRAIN}
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make this machine look like another one."""

    def plant(made_up: Machine | None) -> None:
        folder = Path(mkdtemp(dir=tmp_path))  # a library that is loaded is never loaded anew
        monkeypatch.setattr(gpus, "NVML", (str(made_up.library(folder)),) if made_up else ())
        monkeypatch.setattr(gpus, "SMI", ())
        monkeypatch.setattr(gpus, "installed_torch", lambda: BUILD)
        monkeypatch.setattr(hardware, "torch_xla_lacks", lambda: "")
        hardware.find_gpus.cache_clear()
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    plant(None)
    yield plant
    hardware.find_gpus.cache_clear()


@pytest.fixture
def recipe(tmp_path: Path):
    """Load a recipe that fixes no hardware."""

    def load(train: str = "global_batch: 32", *overrides: str) -> settings.Recipe:
        (tmp_path / "own.yaml").write_text(OPEN.replace("TRAIN", train))
        return settings.load(str(tmp_path / "own.yaml"), overrides)

    return load


def test_the_documented_table_is_what_is_chosen(machine, recipe) -> None:
    rows = []
    for name, made_up in MACHINES.items():
        machine(made_up)
        rows.append(f"| {name} | {recipe().machine.removeprefix('this machine: ')} |")
    assert "\n".join(rows) in (PROJECT / "docs/machines.md").read_text()


@pytest.mark.parametrize(("card", "count", "dtype"), [(T4, 1, "float16"), (A10G, 1, "bfloat16"), (H100, 8, "bfloat16")])
def test_gpus_get_all_cards_their_dtype_a_micro_batch_that_fits_and_no_export(
    machine, recipe, card, count: int, dtype: str
) -> None:
    machine(Machine((card,) * count))
    chosen = recipe()
    train = chosen.train
    assert (train.engine, train.device, train.devices, train.dtype) == ("native", "cuda", count, dtype)
    assert (train.micro_batch, train.global_batch, chosen.export.target) == ("auto", 32, "none")
    assert chosen.hardware.memory_gib == card.mib * 10 // 1024 / 10
    assert "export_neuron" not in finetune(chosen).stages


@pytest.mark.parametrize("on", [(), ("on=gpu",), ("on=auto",)])
def test_an_export_that_any_machine_makes_stays_on_gpus(machine, recipe, tmp_path: Path, on: tuple[str, ...]) -> None:
    machine(Machine((H100,)))
    (tmp_path / "mine.yaml").write_text("extends: own.yaml\nexport: {target: onnx}\n")
    recipe()
    chosen = settings.load(str(tmp_path / "mine.yaml"), on)
    assert (chosen.train.device, chosen.export.target) == ("cuda", "onnx") and "no export" not in chosen.machine


def test_the_global_batch_stays(machine, recipe) -> None:
    machine(Machine((H100,) * 8))
    chosen = recipe("global_batch: 100")
    assert (chosen.train.devices, chosen.train.global_batch) == (4, 100)
    assert "4 x NVIDIA H100 80GB HBM3" in chosen.machine and "of 8: a global batch of 100" in chosen.machine


@pytest.mark.parametrize(
    ("card", "train", "named"),
    [
        (H100, "global_batch: 32", True),
        (H100, "compile: false", False),
        (H100, "deterministic: true", False),
        (H100, "dtype: float32", False),
        (T4, "global_batch: 32", False),
    ],
)
def test_a_plan_names_the_settings_that_train_faster_and_does_not_choose_them(
    machine, recipe, card, train: str, named: bool
) -> None:
    machine(Machine((card,)))
    chosen = recipe(train)
    assert ("train.compile=true train.deterministic=false" in chosen.machine) == named
    assert (chosen.train.compile, chosen.train.deterministic) == (False, True)
    faster = recipe(train, "train.compile=true", "train.deterministic=false")
    assert "train.compile" not in faster.machine and faster.train.compile


def test_compiling_is_not_named_where_layers_are_split(machine, recipe) -> None:
    machine(Machine((H100,) * 2))
    chosen = recipe("global_batch: 32", "on=gpu", "train.tensor_parallel_size=2")
    assert chosen.train.tensor_parallel_size == 2 and "train.compile" not in chosen.machine


def test_overrides_beside_on_gpu_decide_what_is_chosen(machine, recipe) -> None:
    machine(Machine((H100,) * 8))
    chosen = recipe("global_batch: 32", "on=gpu", "train.global_batch=100", "train.method=lora", "train.micro_batch=5")
    assert (chosen.train.devices, chosen.train.micro_batch, chosen.consolidate.dtype) == (4, 5, "base")


def test_only_the_gpus_that_the_training_process_sees_count(machine, recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(Machine((T4, A10G, A10G)))

    def choice(variables: str, *overrides: str) -> tuple[str, int]:
        chosen = recipe("global_batch: 32", *overrides, f"launch.environment={variables}")
        return chosen.hardware.name, chosen.train.devices

    for on in ((), ("on=auto",)):
        assert choice("{CUDA_VISIBLE_DEVICES: '1'}", *on) == ("NVIDIA A10G", 1)
        by_address = "{CUDA_VISIBLE_DEVICES: '0', CUDA_DEVICE_ORDER: PCI_BUS_ID}"
        assert choice(by_address, *on) == ("Tesla T4", 1)
        assert choice("{CUDA_VISIBLE_DEVICES: ''}", *on) == ("this machine", 1)
    with pytest.raises(ConfigError, match="--on gpu: CUDA_VISIBLE_DEVICES= hides 1 x Tesla T4, 2 x NVIDIA A10G"):
        choice("{CUDA_VISIBLE_DEVICES: ''}", "on=gpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CARDS", "0,1")
    assert choice("{CUDA_VISIBLE_DEVICES: '${CARDS}'}") == ("2 x NVIDIA A10G", 2)
    monkeypatch.delenv("CARDS")
    with pytest.raises(ConfigError, match="launch.environment.CUDA_VISIBLE_DEVICES: the environment variable CARDS"):
        choice("{CUDA_VISIBLE_DEVICES: '${CARDS}'}")


def test_an_amd_gpu_and_wsl_are_named(machine, recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "device").touch()
    monkeypatch.setattr(gpus, "ROCM", tmp_path / "device")
    assert "on the processor, because the AMD GPU here needs ROCm, which is not supported" in recipe().machine
    machine(Machine((A10G,)))
    monkeypatch.setattr(gpus, "WSL", tmp_path / "device")
    assert "trains on NVIDIA A10G (22.4 GiB, driver 570.86.15, WSL)" in recipe().machine


def test_what_a_recipe_says_stays_and_one_that_fixes_its_hardware_is_left_alone(machine, recipe) -> None:
    machine(Machine((A10G,)))
    train = recipe("dtype: float32, micro_batch: 4").train
    assert (train.device, train.dtype, train.micro_batch) == ("cuda", "float32", 4)
    assert recipe("global_batch: 32", "export.target=stablehlo").export.target == "stablehlo"
    for fixed in ("device: cpu", "engine: xla", "devices: 2"):
        assert recipe(fixed).train.device == "cpu" and recipe(fixed).machine == ""
    assert recipe("global_batch: 32", "train.device=cpu").machine == ""
    assert settings.load("demo").machine == "" and settings.load("demo").train.engine == "xla"


def test_on_gpu_and_on_cpu_force_it(machine, recipe) -> None:
    with pytest.raises(ConfigError, match="--on gpu: no NVIDIA GPU was found"):
        recipe("global_batch: 32", "on=gpu")
    machine(Machine((A10G,)))
    assert recipe("device: cpu", "on=gpu").train.device == "cuda"
    assert recipe("global_batch: 32", "on=cpu").train.device == "cpu"
    assert settings.load("demo", ["on=auto"]).train.device == "cuda"


def test_a_recipe_s_type_stays_where_the_gpu_computes_in_it(machine, recipe) -> None:
    machine(Machine((T4,)))
    chosen = {name: recipe(f"dtype: {name}", "on=gpu").train.dtype for name in ("float32", "float16", "bfloat16")}
    assert chosen == {"float32": "float32", "float16": "float16", "bfloat16": "float16"}
    assert not recipe("dtype: bfloat16, stochastic_rounding: true", "on=gpu").train.stochastic_rounding


def test_lora_is_published_in_its_bases_type(machine) -> None:
    machine(Machine((A10G,)))
    chosen = settings.load("llama2-7b-dolly-lora", ["on=auto"])
    assert (chosen.consolidate.dtype, chosen.train.tensor_parallel_size, chosen.train.zero1) == ("base", 1, False)


def test_a_recipe_for_trainium_says_what_differs_here(machine) -> None:
    for name in ("auto", "cpu"):
        said = settings.load("llama2-7b-dolly", [f"on={name}"]).machine
        assert "the recipe is made for trn1.32xlarge, and differs here: " in said
        for change in ("engine xla -> native", "device neuron -> cpu", "devices 32 -> 1", "dtype bfloat16 -> float32"):
            assert f"train.{change}" in said
        assert "export.target neuron -> stablehlo" in said
    assert settings.load("demo", ["on=cpu"]).machine == ""


def test_a_plan_says_what_was_chosen(tmp_path: Path) -> None:
    shell = InProcessShell(tmp_path)
    (tmp_path / "own.yaml").write_text(OPEN.replace("TRAIN", "global_batch: 32"))
    (tmp_path / "rows.csv").write_text(
        "text,label\n" + "".join(f"row {number},{'ab'[number % 2]}\n" for number in range(40))
    )
    notes = shell.json("plan", "own.yaml")["notes"]
    assert [note for note in notes if note.startswith("this machine: trains on ")]
    assert "export.target is none" in shell.error(
        "get", "own.yaml", "export_neuron", "folder", "export.target=none", code=2
    )
