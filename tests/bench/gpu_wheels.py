"""Make the folder of packages that a lent machine lacks: `make wheels`, or `make wheels CALL=3`.

    python -m tests.bench.gpu_wheels [--call 1|2|3] [--out .whl]

What the items of `gpu_items` need, and what that needs in turn, but for what `gpu_machine.txt` says that the machine has; in
the native lock's versions. bitsandbytes keeps the library of one CUDA. Beside them `emotion.npz`: token ids and labels of
emotion, if the shared folder is there; its licence is for research, so it is never committed. Without a call: the packages
of the first two, which are one set. Fails when more would be taken along than may be.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import deque
from collections.abc import Iterable
from email import message_from_bytes
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from tests.bench.gpu_items import BITSANDBYTES, items_of
from tests.conftest import PROJECT

MACHINE = Path(__file__).with_name("gpu_machine.txt")
LOCK = PROJECT / "requirements-native.lock"
LIMIT = 64 << 20
"""Bytes that may be taken along, the tree included."""
PYTHON = {
    "python_version": "3.12",
    "python_full_version": "3.12.3",
    "sys_platform": "linux",
    "platform_system": "Linux",
}
MARKERS = {**PYTHON, "platform_machine": "x86_64", "implementation_name": "cpython", "os_name": "posix", "extra": ""}
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux1")
OTHER_DEVICES = re.compile(r"libbitsandbytes_(?!cuda130|cpu)\w+\.so$")
"""Libraries of bitsandbytes that are left out."""
LEFT_OUT = ("xformers",)
"""Needs of Unsloth that alone are larger than what may be taken along; without them it takes PyTorch's attention."""


def pinned(file: Path) -> dict[str, Requirement]:
    """Return the packages of a file of requirements, by name."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return {canonicalize_name(found.name): found for found in map(Requirement, filter(None, lines))}


def has(machine: dict[str, Requirement], wanted: Requirement) -> bool:
    """Return whether the machine has a package, in a version that fits as far as that is known."""
    there = machine.get(canonicalize_name(wanted.name))
    return there is not None and all(wanted.specifier.contains(spec.version) for spec in there.specifier)


def needs_of(wheel: Path) -> list[Requirement]:
    """Return what a wheel needs on the machine, without extras."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        described = message_from_bytes(archive.read(name))
    found = map(Requirement, described.get_all("Requires-Dist", []))
    return [need for need in found if need.marker is None or need.marker.evaluate(MARKERS)]


def resolve(roots: Iterable[str], out: Path) -> list[Path]:
    """Download what the machine lacks of `roots` and of their needs; return the wheels.

    Raises SystemExit where a carried version does not fit what another package needs.
    """
    machine, lock = pinned(MACHINE), pinned(LOCK)
    wheels: dict[str, Path] = {}
    # roots go along though the machine has them, in another version
    open_needs = deque((Requirement(root), "", True) for root in roots)
    while open_needs:
        need, by, root = open_needs.popleft()
        name = canonicalize_name(need.name)
        if name in LEFT_OUT:
            continue
        if name in wheels:
            version = parse_wheel_filename(wheels[name].name)[1]
            if not need.specifier.contains(version, prereleases=True):
                sys.exit(
                    f"{by} needs {need}, and {wheels[name].name} is taken along: name another version in gpu_items"
                )
        elif root or not has(machine, need):
            locked = [str(spec.version) for spec in lock[name].specifier] if name in lock else []
            exact = Requirement(f"{name}=={locked[0]}") if locked and need.specifier.contains(locked[0]) else need
            wheels[name] = download(exact, out)
            open_needs += [(inner, need.name, False) for inner in needs_of(wheels[name])]
    return list(wheels.values())


def download(wanted: Requirement, out: Path) -> Path:
    """Download the wheel for the machine's Python, without what it needs. Raises SystemExit with pip's reason."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--implementation=cp"]
    command += ["--python-version=3.12", *(f"--platform={name}_x86_64" for name in PLATFORMS)]
    with tempfile.TemporaryDirectory() as folder:
        command += ["-d", folder, f"{wanted.name}{wanted.specifier}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{wanted} can't be downloaded: {(done.stderr.strip() or 'pip failed').splitlines()[-1]}")
        (made,) = Path(folder).iterdir()
        return Path(shutil.move(made, out / made.name))


def reduce(wheel: Path) -> None:
    """Leave the libraries for other devices out of bitsandbytes' wheel."""
    whole = wheel.rename(wheel.with_suffix(".whole"))
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            data = source.read(entry)
            if entry.filename.endswith("RECORD"):
                lines = data.decode().splitlines(keepends=True)
                data = "".join(line for line in lines if not OTHER_DEVICES.search(line.partition(",")[0])).encode()
            if not OTHER_DEVICES.search(entry.filename):
                target.writestr(entry, data, zipfile.ZIP_DEFLATED)
    whole.unlink()


def write_rows(out: Path) -> str:
    """Write `emotion.npz`; return why not, or nothing."""
    from tests.bench.bench_train import SHARED, emotion

    if not (SHARED / "data").is_dir():
        return "no shared data: BERT will be measured on random tokens"
    rows = emotion(16_000)
    ids = np.array([token for row in rows.ids for token in row], np.uint16)
    np.savez_compressed(out / "emotion.npz", ids=ids, sizes=list(map(len, rows.ids)), labels=rows.labels)
    return ""


def tree_bytes() -> int:
    """Return the bytes of the tracked files and of those that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sum((PROJECT / name).lstat().st_size for name in names if name and (PROJECT / name).exists())


def check_size(carried: int, tree: int) -> str:
    """Return how much is taken along. Raises SystemExit if that is too much."""
    mib = f"{carried / 2**20:.1f} MiB of packages and rows, {tree / 2**20:.1f} MiB of the tree"
    if carried + tree > LIMIT:
        sys.exit(
            f"{mib}: more than the {LIMIT >> 20} MiB that may be taken along; give --call, or fewer items their needs"
        )
    return f"{mib}: {(carried + tree) / 2**20:.1f} of {LIMIT >> 20} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", type=int, choices=(1, 2, 3))
    parser.add_argument("--out", type=Path, default=PROJECT / ".whl")
    arguments = parser.parse_args()
    items, out = items_of(arguments.call, None), arguments.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    wheels = resolve(dict.fromkeys(need for item in items for need in (*item.needs, *item.base)), out)
    for wheel in wheels:
        if wheel.name.startswith(f"{BITSANDBYTES}-"):
            reduce(wheel)
    if why := write_rows(out):
        print(why)
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size / 2**20:6.2f} MiB  {file.name}")
    print(check_size(sum(file.stat().st_size for file in out.iterdir()), tree_bytes()))


if __name__ == "__main__":
    main()
