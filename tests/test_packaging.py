"""The wheel, built and installed elsewhere, run from another folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.release import EXTRAS, PYTHONS, compare, interpreter

PROJECT = Path(__file__).resolve().parents[1]


def build(target: str, source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return next(folder.glob("*.whl" if target == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", PROJECT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script in an environment of its own, which sees the dependencies but not the checkout."""
    folder = tmp_path_factory.mktemp("elsewhere") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python")]  # to install a pip there takes seconds
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    place = next((folder / "lib").glob("python*/site-packages"))
    # a path in a .pth file is added without reading the .pth files inside it: the editable install stays out
    (place / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin/trnflow"


def test_the_wheel_holds_the_packages_the_recipes_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"trnflow"}
    assert "trnflow/flows/conf/demo.yaml" in names
    assert "trnflow/flows/conf/base/hardware/trn1.2xlarge.yaml" in names
    assert {"trnflow/tasks/data/load/rows/tickets.jsonl", "trnflow/flows/recipes/other_names.yaml"} <= {*names}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_console_script_works_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run([installed, "recipes", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "demo" in {recipe["name"] for recipe in json.loads(done.stdout)["recipes"]}
    done = subprocess.run(
        [installed, "plan", "demo", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["stages"][0]["action"] == "run"
    where = subprocess.run(
        [installed.with_name("python"), "-c", "import trnflow; print(trnflow.__file__)"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert str(PROJECT) not in where.stdout


def test_a_wheel_made_through_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """An archive has no links, so that it holds the package's parts where the links are."""
    with tarfile.open(build("sdist", PROJECT, tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    through = build("wheel", next(folder for folder in tmp_path.iterdir() if folder.is_dir()), tmp_path / "through")
    assert sorted(zipfile.ZipFile(through).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("extra", EXTRAS)
def test_a_release_runs_in_empty_environments(extra: str, tmp_path: Path) -> None:
    """On each Python that this machine has; `make release` says which it lacks."""
    pythons = [version for version in PYTHONS if interpreter(version)]
    command = [sys.executable, "-m", "tests.release", "--out", str(tmp_path / "dist"), "--extra", extra, "--python"]
    done = subprocess.run([*command, *pythons], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tried: ") == len(pythons) and "trnflow-0.1.0.tar.gz" in done.stdout


def test_a_release_whose_archive_gives_another_wheel_is_refused(wheel: Path, tmp_path: Path) -> None:
    poorer = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(poorer, "w") as file:
        for entry in whole.infolist():
            if not entry.filename.endswith("conf/demo.yaml"):
                file.writestr(entry, whole.read(entry))
    archive = build("sdist", PROJECT, tmp_path)
    compare(wheel, archive)
    with pytest.raises(SystemExit, match=r"gives another wheel than trnflow-"):
        compare(poorer, archive)


def test_a_python_that_does_not_run_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shim of pyenv fails where its version is not chosen; the version itself runs."""
    for name, program in {"python3.12": "exit 127", "versions/3.12.9/bin/python": "exit 0"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert interpreter("3.12") == str(tmp_path / "versions/3.12.9/bin/python")
    assert interpreter("3.10") is None


def readme_installs() -> list[str]:
    """The arguments of the README's `pip install` commands, without their comments."""
    return re.findall(r"^    pip install (.+?)(?: {2,}#.*)?$", (PROJECT / "README.md").read_text(), re.MULTILINE)


def test_the_readme_installs_without_a_clone(wheel: Path, tmp_path: Path) -> None:
    """The commands of the README, with this clone in place of the placeholder, and the wheel where it lies."""
    by_git, by_wheel = (shlex.split(line)[0] for line in readme_installs())
    assert Path(by_wheel).name == wheel.name
    if not (PROJECT / ".git").exists():
        pytest.skip("no clone")
    # the dependencies are those of this environment, hatchling too
    python = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    for number, what in enumerate((by_git.replace("https://YOUR-GIT-HOST/trnflow", PROJECT.as_uri()), str(wheel))):
        place = tmp_path / str(number)
        done = subprocess.run([*python, "--target", str(place), what], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (place / "trnflow/flows/conf/demo.yaml").exists() and (place / "trnflow/tasks/train.py").exists()


def test_own_folders_flows_and_tasks_are_importable_beside_the_wheel(installed: Path, tmp_path: Path) -> None:
    for name in ("flows", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"MINE = '{name}'\n")
    program = "import flows, tasks, trnflow.flows.finetune; print(flows.MINE, tasks.MINE)"
    command = [installed.with_name("python"), "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["flows", "tasks"]


def test_keys_from_a_wheel_equal_those_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    def first_key(*command: str | Path) -> str:
        environ = os.environ | {"TRNFLOW_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            [*command, "plan", "demo", "--json"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True
        )
        return str(json.loads(done.stdout)["stages"][0]["key"])

    theirs = first_key(installed)
    assert len(theirs) == 64
    assert first_key(sys.executable, "-m", "trnflow") == theirs


def test_a_run_loads_no_module_under_two_names(tmp_path: Path) -> None:
    program = (
        "import sys; from trnflow.flows.cli.main import main; main(['plan', 'demo']);"
        "print([name for name in sys.modules if name.split('.')[0] in ('flows', 'tasks')], file=sys.stderr)"
    )
    environ = os.environ | {"TRNFLOW_HOME": str(tmp_path)}
    # in the checkout's own folder `import tasks` would work too
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_a_copy_without_its_links_says_so(tmp_path: Path) -> None:
    (tmp_path / "trnflow").mkdir()
    shutil.copy(PROJECT / "trnflow/__init__.py", tmp_path / "trnflow")
    command = [sys.executable, "-c", "import trnflow"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{tmp_path}/trnflow has lost its symbolic link flows -> ../flows: clone the repository" in done.stderr


CLOSURES = """
import json, pathlib, sys
from trnflow.flows.finetune import STAGES
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.hash_cache import Memo
memo = Memo(pathlib.Path(sys.argv[1]))
print(json.dumps({name: closure(f"trnflow.tasks.{name}", memo) for name in STAGES}))
"""


def test_the_code_in_keys_is_the_same_from_the_wheel_and_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    wheel, checkout = (
        json.loads(subprocess.check_output([python, "-c", CLOSURES, tmp_path / f"{number}.db"], cwd=tmp_path))
        for number, python in enumerate([installed.with_name("python"), sys.executable])
    )
    assert wheel == checkout
    assert all(f"trnflow.tasks.{name}" in code and len(code) > 10 for name, (code, _) in wheel.items())


def locked_versions(lock: str) -> dict[str, str]:
    lines = [line for line in (PROJECT / lock).read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[A-Za-z0-9.+!]+( ; .+)?", line) for line in lines)
    return {line.split("==")[0].split("[")[0].lower(): line.split("==")[1] for line in lines}


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-native.lock"])
def test_a_lock_is_exact_complete_and_without_addresses(lock: str) -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *project["optional-dependencies"]["s3"],
    ]
    names = {re.split(r"[<>=\[ ]", text)[0].lower() for text in wanted} - {"trnflow"}
    assert names <= locked_versions(lock).keys()


def test_the_locks_differ_in_what_torch_needs_alone() -> None:
    default, native = locked_versions("requirements.lock"), locked_versions("requirements-native.lock")
    assert (default["torch"], default["torch-xla"]) == ("2.9.1", "2.9.0")
    assert "torch-xla" not in native and native["torch"].startswith("2.15.")
    differ = {name for name in default.keys() | native.keys() if default.get(name) != native.get(name)}
    of_torch = ("torch", "triton", "nvidia-", "cuda-", "absl-py")
    assert not [name for name in differ if not name.startswith(of_torch)]


def test_torch_xla_is_installed_by_its_extra_alone(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    about = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    wanted = [Requirement(line) for line in re.findall(r"^Requires-Dist: (.+)$", about, re.MULTILINE)]

    def of(extra: str) -> dict[str, str]:
        chosen = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": extra})]
        return {one.name: str(one.specifier) for one in chosen}  # of two of one package the extra's stands last

    assert "torch-xla" not in of("") and "2.15.0" in SpecifierSet(of("")["torch"])
    assert "2.9.0" in SpecifierSet(of("xla")["torch-xla"]) and "2.10.0" not in SpecifierSet(of("xla")["torch"])


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert {"help", "setup", "run", "test", "check", "release", "bench", "plan", "ui", "up", "down", "clean"} <= listed


def test_make_has_a_folder_of_its_own_for_each_lock() -> None:
    def printed(*arguments: str) -> str:
        command = ["make", "--dry-run", "--always-make", *arguments]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True).stdout

    assert ".venv/bin/trnflow run demo \n" in printed("run")
    native = printed("run", "LOCK=native")
    assert ".venv-native/bin/trnflow run demo --on auto\n" in native
    assert "--compile-bytecode -r requirements-native.lock\n" in native and ".venv/" not in native
    other = subprocess.run(["make", "run", "LOCK=cuda"], cwd=PROJECT, capture_output=True, text=True)
    assert other.returncode == 2 and "LOCK is native, or not set: there is no requirements-cuda.lock" in other.stderr
