"""Build wheel and source archive, and use both in empty environments: `make release`.

Each environment has the packages that the index gives a new user, a home and a folder of its own, and is deleted before
the next is made: they take up to 9 GB. A Python that this machine lacks is said, and left out.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12")
EXTRAS = {"native": "", "xla": "[xla]"}
"""{environment: what stands behind the wheel's name}, as docs/machines.md has them."""
RUN = (
    "run", "demo", "--direct", "--on", "cpu", "--no-rehearse", "tracking.enabled=false", "data.limit=60", "train.max_steps=2",
    "evaluate.export_rows=0", "export.target=none",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Build wheel and source archive, and try them in empty environments.")
    parser.add_argument("--out", type=Path, default=PROJECT / "dist", help="the folder that is made anew")
    parser.add_argument("--python", nargs="+", choices=PYTHONS, default=list(PYTHONS))
    parser.add_argument("--extra", nargs="+", choices=EXTRAS, default=list(EXTRAS))
    asked = parser.parse_args()
    wheel, archive = build(asked.out.resolve())
    compare(wheel, archive)
    missing = [version for version in asked.python if interpreter(version) is None]
    for version in asked.python:
        if (python := interpreter(version)) is not None:
            for extra in asked.extra:
                try_wheel(wheel, python, extra)
                print(f"tried: {wheel.name}{EXTRAS[extra]} on Python {version}", flush=True)
    if missing:
        print(f"not tried on Python {', '.join(missing)}: this machine has none")
    print("to upload:")
    for file in (wheel, archive):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        print(f"  {file.name}  {file.stat().st_size / 1e6:.1f} MB  sha256 {digest}")
    print(f"  twine upload {os.path.relpath(asked.out)}/*   # needs `pip install twine`, and your token")
    return 1 if missing else 0


def build(out: Path) -> tuple[Path, Path]:
    """Build the wheel and the source archive into an empty folder."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def compare(wheel: Path, archive: Path) -> None:
    """Raise unless the wheel that the source archive gives holds the same files as the wheel."""
    with tempfile.TemporaryDirectory(prefix="trnflow-release-") as folder:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        source = next(Path(folder).iterdir())
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", f"{folder}/again"]
        subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
        again = contents(next(Path(folder, "again").glob("*.whl")))
    if again != contents(wheel):
        raise SystemExit(f"{archive.name} gives another wheel than {wheel.name}")


def contents(wheel: Path) -> dict[str, int]:
    """Return {name of a file: its checksum}."""
    with zipfile.ZipFile(wheel) as packed:
        return {entry.filename: entry.CRC for entry in packed.infolist()}


def interpreter(version: str) -> str | None:
    """Return a Python of the version that runs: of the path, else one that pyenv has; None if there is none."""
    places = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob(f"{version}.*/bin/python")
    )
    for python in (shutil.which(f"python{version}"), *map(str, places)):
        # a shim of pyenv exists for versions that are not chosen, and fails
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


def try_wheel(wheel: Path, python: str, extra: str) -> None:
    """Install the wheel into an empty environment, and run the demo's stages on a few rows in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="trnflow-release-") as name:
        folder = Path(name)
        (work := folder / "work").mkdir()
        environ = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR") if key in os.environ}
        environ |= {"HOME": str(work), "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        installing = os.environ | {"VIRTUAL_ENV": str(folder / "venv")}
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", f"{wheel}{EXTRAS[extra]}"], check=True, env=installing)
        trnflow = str(folder / "venv/bin/trnflow")
        for command in (("--version",), ("recipes",), ("plan", "demo"), RUN):
            done = subprocess.run(
                [trnflow, *command], cwd=work, env=environ, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{extra}, {python}: trnflow {' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
