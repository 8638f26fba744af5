"""Carry the user's own code to workers through the store: its files, known by the digest that this run computed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from trnflow.tasks.artifact import Artifact, Meta, Source
from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.hooks import FILES
from trnflow.tasks.store import Store

KIND = "code"


def packed_code(code: Source, store: Store, folder: Path) -> Source:
    """Return the code with `carried` in its location: digest, and the places of its files, in the store. folder: to write
    them to. Raises CodeError for code that can't be carried."""
    location = code.location
    tops = [Path(top) for top in location["search"]]
    read = {name: file for name, file in location["program"].items() if name.startswith(FILES)}
    own = {name: _place(Path(file), tops) for name, file in location["files"].items()}
    for name, (base, _) in own.items():
        file = Path(location["files"][name])
        if file.suffix != ".py":
            raise CodeError(
                f"{name} is {file.name}: only .py files are carried to workers", "install it on every worker"
            )
        tops += [base] * (base not in tops)
    beside = {name: _place(Path(file), tops, needed=True) for name, file in read.items()}
    places = {name: f"{tops.index(base)}/{within}" for name, (base, within) in (own | beside).items()}
    for name, place in places.items():
        to = folder / place
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(location["files"].get(name) or read[name], to)
    digest = store.ingest(folder, KIND, {}, cache=False).digest
    carried = {"digest": digest, "files": {name: places[name] for name in own}}
    carried |= {"read": {name: places[name] for name in read}, "search": [str(number) for number in range(len(tops))]}
    return replace(code, location={**location, "carried": carried})


def unpacked_code(code: Source, folder: Path, home: Path) -> Source:
    """Return carried code as it lies in a folder here. home: of this worker."""
    carried = code.location["carried"]
    there = {**code.location, "proofs": str(home / "proofs"), "search": [str(folder / n) for n in carried["search"]]}
    there["files"] = {name: str(folder / place) for name, place in carried["files"].items()}
    program = {name: file for name, file in code.location["program"].items() if name not in carried["read"]}
    there["program"] = program | {name: str(folder / place) for name, place in carried["read"].items()}
    return replace(code, location=there)


def refuse_foreign(artifact: Artifact, carried: Meta) -> None:
    """Raise CodeError unless the artifact has exactly the files that this run carried, `.py` but for `own.files`."""
    given, wanted = [file.path for file in artifact.files], {*carried["files"].values(), *carried["read"].values()}
    odd = [path for path in given if ".." in PurePosixPath(path).parts or path.startswith("/") or path not in wanted]
    odd += [path for path in carried["files"].values() if not path.endswith(".py")]
    if odd or len(given) != len(wanted):
        raise CodeError(
            f"the code {artifact.digest[:19]} in the store is not what this run carried: {odd}", "run again"
        )


def _place(file: Path, tops: Iterable[Path], *, needed: bool = False) -> tuple[Path, PurePosixPath]:
    """Return (the folder that a file is imported from, its path below)."""
    for top in tops:
        if file.is_relative_to(top):
            return top, PurePosixPath(file.relative_to(top))
    if needed:
        raise CodeError(f"{FILES}: {file.name} lies beside no module that reads it", "put it below the modules' folder")
    # what an editable installation or another folder of sys.path has lies below no hook's folder
    top = file.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return top, PurePosixPath(file.relative_to(top))
