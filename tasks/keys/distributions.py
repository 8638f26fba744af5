"""Which installed distribution a module's file belongs to, and its version."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.hash_cache import Memo, Stamp, stamp
from trnflow.tasks.keys.module_finder import PACKAGES, import_path

if TYPE_CHECKING:
    from importlib.metadata import Distribution

# Kind of versions in the hash cache. Rename it when what a version says changes.
VERSIONS = "versions with origins"


def distributions_of(file: str, memo: Memo) -> list[str]:
    """Return the distributions that installed a module's file; [] for a file that was put beside them by hand."""
    now = _stamp_of_packages()
    known: list[str] | None = memo.get("distributions", file, now)
    if known is None:
        known = sorted(_owners(now).get(file) or _owners_of_top(file))
        memo.put("distributions", file, now, known)
    return known


@lru_cache(maxsize=1)
def _owners(now: Stamp) -> dict[str, set[str]]:
    """Return {file: distributions whose RECORD has it}. now: of the packages' folders."""
    owners: dict[str, set[str]] = {}
    for folder in packages_folders():
        for record in Path(folder).glob("*.dist-info/RECORD"):
            name = normal_name(record.parent.name.partition("-")[0])
            for line in record.read_text(encoding="utf-8").splitlines():
                # a path with a comma is quoted there, and no module has such a name
                owners.setdefault(f"{folder}{os.sep}{line.partition(',')[0]}", set()).add(name)
    return owners


def _owners_of_top(file: str) -> set[str]:
    """Return the distributions that claim the top-level package of a file that no RECORD has."""
    # takes 0.4 s: for distributions without a RECORD, such as an operating system's
    from importlib.metadata import packages_distributions

    folder = next((folder for folder in packages_folders() if file.startswith(f"{folder}{os.sep}")), "")
    top = file[len(folder) + 1 :].split(os.sep)[0].partition(".")[0]
    return {normal_name(name) for name in packages_distributions().get(top, ())}


def packages_folders() -> list[str]:
    """Return the folders of installed packages that Python looks in."""
    return [folder for folder in import_path() if os.path.basename(folder) in PACKAGES and os.path.isdir(folder)]


def _stamp_of_packages() -> Stamp:
    return digest_of([stamp(folder) for folder in packages_folders()])


def normal_name(distribution: str) -> str:
    """Return a distribution's name as package indexes compare names: `torch_xla` and `Torch.XLA` are `torch-xla`."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def installed_versions(names: set[str], memo: Memo) -> dict[str, str | None]:
    """Return {distribution: version, or None if not installed}."""
    now, where = _stamp_of_packages(), "|".join(import_path())
    known: dict[str, str | None] = memo.get(VERSIONS, where, now) or {}
    missing = names - known.keys()
    if missing:
        # takes 50 ms, so the hash cache keeps versions until a packages folder changes
        from importlib.metadata import PackageNotFoundError, distribution

        for name in missing:
            try:
                known[name] = _version(distribution(name))
            except PackageNotFoundError:
                known[name] = None
        memo.put(VERSIONS, where, now, known)
    return {name: known[name] for name in names}


def _version(installed: Distribution) -> str:
    """Return the version; of what was installed from a folder or a repository, with a digest of its files."""
    if installed.read_text("direct_url.json") is None:  # there, each state has the same version
        return installed.version
    record = (installed.read_text("RECORD") or "").splitlines()
    # not what differs between machines: scripts, and notes about the installation
    files = sorted(line for line in record if not line.startswith("..") and ".dist-info/" not in line)
    return f"{installed.version} {digest_of(files)}"
