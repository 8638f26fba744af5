"""Put into the store what a job reads beside artifacts: a recipe's folder, with own code and models, and this program."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import trnflow
from trnflow.flows.recipes import recipe as recipes
from trnflow.flows.recipes.files import conf_folder
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.own_code import own_code
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.errors import CodeError, ConfigError
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.sources.model_sizes import TOOL_TEMPLATE
from trnflow.tasks.sources.model_source import GENERATION, TOKENIZER_FILES, WEIGHT_ENDS, model_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.store import Store
from trnflow.tasks.system.redaction import hide_secrets, names_secret, variables_in

RECIPE, CODE = "job recipe", "job code"
"""Kinds of artifacts."""
FILE, ARCHIVE = "recipe.yaml", "code.tar"
GIVEN = "given"
"""Stands for the rows' source in a job, to which the rows are given."""
_HERE = ("tracking", "sweep", "promote", "checks", "run", "task_runner")
"""Sections that no stage of a job reads."""
_OF_ROWS = ("data.make", "own.identity")
_PROJECT = "pyproject.toml"
"""Ends the search for modules above a recipe's folder."""
_ENDS = (".py", ".pyi", ".typed", ".yaml", ".json", ".html", ".css", ".js", ".bash", ".jinja", ".txt", ".svg", ".md")
"""Of the program's files."""


class Carried(NamedTuple):
    """A recipe's folder in the store. variables: that its settings refer to; libraries: {distribution: version} of own code."""

    digest: str
    variables: set[str]
    libraries: dict[str, str]


def carry_recipe(recipe: Recipe, store: Store, resolver: Resolver) -> Carried:
    """Put a recipe's folder into the store: FILE, and what it names. Raises ConfigError, CodeError for what can't be carried."""
    with tempfile.TemporaryDirectory(dir=_aside(store)) as place:
        folder = Path(place) / "recipe"
        folder.mkdir()
        settings = _settings(recipe)
        parts, libraries = _own_code(recipe, settings, store, resolver, folder)
        _model(recipe, settings, resolver, folder)
        # an empty section would empty that of a part
        document = {name: value for name, value in settings.items() if value not in ({}, [])}
        document |= {"extends": parts} if parts else {}
        (folder / FILE).write_text(yaml.safe_dump(document, sort_keys=True, allow_unicode=True), encoding="utf-8")
        # what can't be read there is found out here
        recipes.load(str(folder / FILE))
        return Carried(store.ingest(folder, RECIPE, {}, cache=False).digest, variables_in(document), libraries)


def carry_code(store: Store) -> str:
    """Return the digest of the artifact with this program's files, as a wheel holds them, in ARCHIVE."""
    with tempfile.TemporaryDirectory(dir=_aside(store)) as place:
        folder = Path(place) / "code"
        folder.mkdir()
        write_archive(folder / ARCHIVE)
        return store.ingest(folder, CODE, {}, cache=False).digest


def write_archive(file: Path) -> None:
    """Write this program's files to an archive: the same files give the same bytes."""
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(program_files()):
            # without times and owners
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            with path.open("rb") as text:
                archive.addfile(entry, text)


def has_code(code: Artifact) -> bool:
    """Return whether this program's files are those of an artifact that `carry_code` made."""
    with tempfile.TemporaryDirectory() as place:
        write_archive(Path(place) / ARCHIVE)
        return [file.digest for file in code.files] == [sha256_file(Path(place) / ARCHIVE)]


def program_files() -> Iterator[tuple[str, Path]]:
    """Yield (name in a wheel, file) of this program."""
    assert trnflow.__file__
    places = [(Path(trnflow.__file__).parent, "trnflow"), (conf_folder(), "trnflow/flows/conf")]
    for top, prefix in places:
        for inside, folders, files in os.walk(top, followlinks=True):
            folders[:] = [name for name in folders if name != "__pycache__" and Path(inside) / name != conf_folder()]
            for name in files:
                if name.endswith(_ENDS) and not name.startswith("."):
                    file = Path(inside) / name
                    yield f"{prefix}/{file.relative_to(top).as_posix()}", file


def unpack_code(archive: Path, folder: Path) -> None:
    """Write the files of an ARCHIVE below a folder. Raises CodeError for what would be written elsewhere, and is no file."""
    try:
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise CodeError(f"the job's code can't be unpacked: {error}", "order the job anew") from error


def _aside(store: Store) -> Path:
    """Return a folder on the store's disk, or on the home's: from there files are moved."""
    folder = store.home / "work"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _settings(recipe: Recipe) -> Meta:
    """Return the settings that a job reads, without rows' sources. Raises ConfigError for a secret."""
    settings = recipe.model_dump(mode="json")
    for section in _HERE:
        settings.pop(section)
    settings["tracking"] = {"enabled": False}
    settings["launch"] = recipe.launch.here().model_dump(mode="json")
    settings["store"] |= {"root": None}
    _leave_open(settings, recipe.decided_here)
    settings["own"] |= {"identity": None}
    rows = settings["data"]
    for source in rows["mix"].values() if rows["mix"] else [rows]:
        source |= dict.fromkeys(("name", "revision", "format")) | {"source": GIVEN, "splits": {}}
    rows |= {"make": None, "version": None, "arguments": {}, "variables": []}
    if rows["mix"]:
        rows["source"] = None
    if recipe.evaluate.harness:
        raise ConfigError(
            "evaluate.harness: tasks of your own do not travel with a job",
            "set evaluate.harness=null, and evaluate here",
        )
    if (start := recipe.train.warm_start_from) and start.endswith((".yaml", ".yml")):
        settings["train"]["warm_start_from"] = recipes.load(str(recipe.folder("train.warm_start_from") / start)).name
    _refuse_secrets(settings, hide_secrets(settings), ())
    return settings


def _refuse_secrets(value: Any, shown: Any, path: tuple[str, ...]) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _refuse_secrets(inner, shown[name], (*path, name))
    elif value != shown and ("environment" not in path or names_secret(path[-1])):
        raise ConfigError(
            f"{'.'.join(path)} may be a secret, and whoever reads the store would see it in the job's recipe",
            "write ${NAME} in its place, and set NAME on the machine that runs the job",
        )


def _leave_open(settings: Meta, decided: tuple[str, ...]) -> None:
    # the other machine decides for itself
    for name in decided:
        section, _, setting = name.partition(".")
        (settings[section] if setting else settings).pop(setting or section, None)


def _own_code(
    recipe: Recipe, settings: Meta, store: Store, resolver: Resolver, folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Write the modules of own code, move the settings that name them to recipes beside them; return these, and libraries."""
    libraries: dict[str, str] = {}
    moved: dict[str, Meta] = {}
    parts: dict[Path, str] = {}
    numbers: dict[Path, int] = {}
    for hook, (_, place) in recipe.hooks.items():
        is_read = place is not None and hook not in _OF_ROWS and hook.partition(".")[0] not in _HERE
        code = own_code(recipe, hook) if is_read else None
        if code is None or place is None:
            continue
        source = code.find(store, resolver)
        libraries |= source.identity["env"]
        # modules of one name may lie in two folders: each folder gets one of its own
        top = Path(source.location["search"][0])
        below = folder / str(numbers.setdefault(top, len(numbers)))
        below.mkdir(exist_ok=True)
        (below / _PROJECT).touch()
        own = {name: file for name, file in source.location["files"].items() if name.partition(".")[0] != "trnflow"}
        for name, file in own.items():
            _copy(_module(name, Path(file), top), below / Path(file).relative_to(top))
        part = (below / place.resolve().relative_to(top)).relative_to(folder) / "own.yaml"
        parts[place.resolve()] = part.as_posix()
        section, setting = hook.split(".")[:2]
        if setting in settings[section]:
            moved.setdefault(part.as_posix(), {}).setdefault(section, {})[setting] = settings[section].pop(setting)
    _own_files(recipe, settings, moved, parts, folder)
    for name, document in moved.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(yaml.safe_dump(document, sort_keys=True, allow_unicode=True), encoding="utf-8")
    return sorted(moved), libraries


def _module(name: str, file: Path, top: Path) -> Path:
    if not file.is_relative_to(top) or file.suffix != ".py":
        raise CodeError(
            f"{name} is {file}: a job carries .py files from the folder in which a recipe's functions are found ({top})",
            "put it there, or install it as a package on both machines",
        )
    return file


def _own_files(recipe: Recipe, settings: Meta, moved: dict[str, Meta], parts: dict[Path, str], folder: Path) -> None:
    """Copy what `own.files` names to where its recipe's functions are. parts: {folder here: recipe there}."""
    files = settings["own"].pop("files")
    if not files or not parts:  # no function of the job reads them
        return
    name, file = next(iter(recipe.own_files.items()))
    here = file.parents[len(Path(name).parts) - 1]
    if here not in parts:
        raise CodeError(
            f"own.files is set in a recipe in {here}, in which no function of the job is named",
            "set it in the recipe that names the functions",
        )
    moved.setdefault(parts[here], {}).setdefault("own", {})["files"] = files
    for name, file in recipe.own_files.items():
        _copy(file, (folder / parts[here]).parent / name)


def _model(recipe: Recipe, settings: Meta, resolver: Resolver, folder: Path) -> None:
    """Pin a hub model's commit; write the files of a model folder."""
    if recipe.model.source is None and recipe.model.tokenizer is None:
        return
    source = resolver.ask_once(model_source, recipe.model)
    for part, setting in (("model", "source"), ("tokenizer", "tokenizer")):
        location = source.location[part] if getattr(recipe.model, setting) else None
        if location and "folder" in location:
            settings["model"][setting] = f"./{part}"
            names = _model_files(Path(location["folder"]))
            for name in names if part == "model" else [name for name in names if name in TOKENIZER_FILES]:
                (folder / part / name).parent.mkdir(parents=True, exist_ok=True)
                # what a link leads to is copied into the store, a file would be moved
                os.symlink(Path(location["folder"]) / name, folder / part / name)
        elif location and setting == "source":
            settings["model"] |= {"source": location["repo"], "revision": location["commit"]}


def _model_files(folder: Path) -> list[str]:
    """Return the files of a model's folder that stages read."""
    names = sorted(os.listdir(folder))
    read = [name for name in names if name in (GENERATION, *TOKENIZER_FILES) or name.endswith((".json", *WEIGHT_ENDS))]
    read += [TOOL_TEMPLATE] * (folder / TOOL_TEMPLATE).is_file()
    return read + [f"{name}/config.json" for name in names if (folder / name / "config.json").is_file()]


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)
