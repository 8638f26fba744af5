"""The wheel, built and installed elsewhere, run from another folder."""

from __future__ import annotations

import json
import re
import site
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=PROJECT, check=True, capture_output=True,
    )  # fmt: skip
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script in an environment of its own, which sees the dependencies but not the checkout."""
    folder = tmp_path_factory.mktemp("elsewhere") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run(
        [folder / "bin/pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
    )
    place = next((folder / "lib").glob("python*/site-packages"))
    # a path in a .pth file is added without reading the .pth files inside it: the editable install stays out
    (place / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin/trnflow"


def test_the_wheel_holds_the_packages_the_recipes_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"flows", "tasks"}
    assert "flows/conf/demo.yaml" in names
    assert "flows/conf/base/hardware/trn1.2xlarge.yaml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_console_script_works_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run([installed, "recipes", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "demo" in {recipe["name"] for recipe in json.loads(done.stdout)["recipes"]}
    done = subprocess.run(
        [installed, "plan", "demo", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["stages"][0]["action"] == "run"
    where = subprocess.run(
        [installed.with_name("python"), "-c", "import flows; print(flows.__file__)"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert str(PROJECT / "flows") not in where.stdout


def test_the_lock_is_exact_complete_and_without_addresses() -> None:
    lines = [line for line in (PROJECT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[A-Za-z0-9.+!]+( ; .+)?", line) for line in lines)
    locked = {line.split("==")[0].split("[")[0].lower() for line in lines}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["dev"],
        *project["optional-dependencies"]["s3"],
    ]
    names = {re.split(r"[<>=\[ ]", text)[0].lower() for text in wanted} - {"trnflow"}
    assert names <= locked


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert {"help", "setup", "run", "test", "check", "bench", "plan", "ui", "up", "down", "clean"} <= listed
