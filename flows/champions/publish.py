"""Publish a model, an adapter or an export: copy it to a folder or an object store.

Only files of that one artifact are published, never predictions, reports or rows. The file that makes a folder loadable
(`config.json`, for example) goes last, so a copy that was interrupted does not load; the same command resumes it. Credentials
come from the environment (AWS_ACCESS_KEY_ID ...).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from flows.champions.model_card import with_results
from flows.runner.work_folders import workplace
from tasks.artifact import Artifact, File, Meta
from tasks.errors import BlobLost, ConfigError, StoreError
from tasks.keys.hash_cache import sha256_file
from tasks.sources.paths import local_path
from tasks.store import Store
from tasks.store.backend import Backend
from tasks.store.location import open_backend

Report = Callable[[str], None]

ADAPTER = "adapter/"
CARD = "README.md"


class Kind(NamedTuple):
    """What can be published. artifact: the kind of artifact that has it; loadable: the file that a loader reads first."""

    artifact: str
    loadable: str


KINDS = {
    "model": Kind("model", "config.json"),
    "adapter": Kind("model", "adapter_config.json"),
    "export": Kind("exported", "export.json"),
}


@dataclass(frozen=True)
class Published:
    """What was published. to: where; files, bytes: number and size; copied: files that were not there already."""

    to: str
    what: str
    artifact: str
    files: int
    bytes: int
    copied: int

    def to_json(self) -> Meta:
        return dict(vars(self))


def publish(store: Store, artifact: Artifact, what: str, to: str, evaluation: Meta | None, report: Report) -> Published:
    """Copy a model, an adapter or an export to a folder or an object store (`s3://...`).

    Args:
        artifact: The model, or for `export` the exported model.
        what: `model`, `adapter` or `export`.
        to: A new folder, or the URL of an empty prefix.
        evaluation: Metadata of the evaluation of exactly this model, for the published card; None if there is none.
        report: Called with a sentence for each file that is copied.

    Raises:
        ConfigError: The artifact has no such part, or another model lies at `to`.
        StoreError: The destination refuses or fails. What was copied stays for the next try.
    """
    if to.startswith("hf://"):
        raise ConfigError(
            f"{to}: publish can't upload to a hub yet", "publish to a folder, then `hf upload USER/NAME FOLDER`"
        )
    files = _files(artifact, what)
    with workplace(store.home, f"publish-{artifact.digest[7:19]}") as work:
        part = Artifact(artifact.digest, artifact.kind, artifact.meta, files)
        folder = store.checkout(part, work / "files")
        _write_card(folder, to, evaluation)
        names = _ordered([path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()], what)
        size = sum((folder / name).stat().st_size for name in names)
        if local_path(to) is None:
            copied = _to_object_store(folder, names, to, what, report)
        else:
            copied = _to_folder(folder, names, Path(str(local_path(to))).expanduser(), report)
    return Published(to, what, artifact.digest, len(names), size, copied)


def _files(artifact: Artifact, what: str) -> tuple[File, ...]:
    """The files to publish, by their published paths."""
    kind = KINDS[what]
    if artifact.kind != kind.artifact:
        raise ConfigError(
            f"{artifact.digest[:19]} is of kind {artifact.kind}, and --what {what} needs {kind.artifact}",
            "name the artifact of " + ("export_neuron" if what == "export" else "consolidate"),
        )
    if what == "adapter":
        files = tuple(
            file._replace(path=file.path.removeprefix(ADAPTER))
            for file in artifact.files
            if file.path.startswith(ADAPTER)
        )
    else:
        files = tuple(file for file in artifact.files if not file.path.startswith(ADAPTER))
    if kind.loadable not in {file.path for file in files}:
        raise ConfigError(
            f"{artifact.digest[:19]} has no {what} (no {kind.loadable})",
            "only a model trained with train.method=lora has an adapter"
            if what == "adapter"
            else "run the recipe again",
        )
    return files


def _write_card(folder: Path, to: str, evaluation: Meta | None) -> None:
    """Replace the card by one with the results; the artifact's own stays as it is."""
    card = folder / CARD
    if evaluation is None or not card.exists():
        return
    text = with_results(card.read_text(encoding="utf-8"), to.rstrip("/").rsplit("/", 1)[-1], evaluation)
    card.unlink()  # a link into the store
    card.write_text(text, encoding="utf-8")


def _ordered(names: list[str], what: str) -> list[str]:
    """By name, and the file that makes the folder loadable last."""
    return sorted(names, key=lambda name: (name == KINDS[what].loadable, name))


def _to_folder(folder: Path, names: list[str], to: Path, report: Report) -> int:
    """Copy aside, then rename: the folder appears when it is complete."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        if to.is_dir() and _is_same(folder, names, to):
            return 0
        raise ConfigError(f"{to} exists and is not an empty folder", "name a new folder")
    aside, copied = to.with_name(f".{to.name}.partial"), 0
    for name in names:
        source, target = folder / name, aside / name
        if target.exists() and sha256_file(str(target)) == sha256_file(str(source)):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        report(f"copying {name}")
        shutil.copyfile(source, target)
        copied += 1
    for left in [
        path for path in aside.rglob("*") if path.is_file() and path.relative_to(aside).as_posix() not in names
    ]:
        left.unlink()  # of another model, whose copy was interrupted
    if to.exists():
        to.rmdir()
    aside.rename(to)
    return copied


def _is_same(folder: Path, names: list[str], to: Path) -> bool:
    there = sorted(path.relative_to(to).as_posix() for path in to.rglob("*") if path.is_file())
    return there == sorted(names) and all(
        sha256_file(str(folder / name)) == sha256_file(str(to / name)) for name in names
    )


def _to_object_store(folder: Path, names: list[str], to: str, what: str, report: Report) -> int:
    """Copy the files that are not there yet. A prefix that holds another model is refused: it can't be replaced at once."""
    place, loadable = open_backend(to), KINDS[what].loadable
    is_there = place.size(loadable) is not None
    other = next((name for name in names if is_there and not _has(place, name, folder / name)), None)
    if other is not None:
        raise ConfigError(
            f"{to} holds another model: its {other} differs", "name a new prefix: objects can't be replaced all at once"
        )
    copied = 0
    for name in names:
        if _has(place, name, folder / name):
            continue
        report(f"copying {name}")
        try:
            place.move_in(name, (folder / name).resolve())
        except FileNotFoundError as error:
            raise StoreError(f"there is no bucket for {to}: {error}", "make it, or name another") from error
        copied += 1
    return copied


def _has(place: Backend, name: str, file: Path) -> bool:
    """Whether the object has the file's bytes; they are read when the sizes agree."""
    if place.size(name) != file.stat().st_size:
        return False
    copy = file.with_name(f".{file.name}.there")
    try:
        place.fetch(name, copy)
        return sha256_file(str(copy)) == sha256_file(str(file))
    finally:
        copy.unlink(missing_ok=True)


def evaluation_of(store: Store, digest: str) -> Meta | None:
    """Return the metadata of the newest evaluation of exactly this model; None if there is none."""
    for record in store.records("evaluate_model"):
        if record["document"]["inputs"].get("weights") == digest:
            try:
                return store.artifact(record["artifact"]).meta
            except BlobLost:
                continue
    return None
