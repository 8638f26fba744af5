"""Read recipe files: YAML files that extend others, with overrides merged last.

Values of a later file in `extends` replace those of an earlier one, the recipe's own replace both.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trnflow.flows.recipes import hardware
from trnflow.flows.recipes.other_programs import LLAMA_FACTORY_V1, program_of
from trnflow.flows.recipes.schema import Tree, annotation_at, below, cut, merge, sections, shown, without_null
from trnflow.flows.recipes.yaml_tree import BYTES, DEPTH, OVERRIDE, read_value, read_yaml
from trnflow.tasks.config import is_hook
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import hide_override


class SettingOrigin(str):
    """Where a setting was written: `file:line`, or `override section.setting`.

    folder: what relative paths in its value are joined to; None for the working directory.
    """

    folder: Path | None = None

    def __new__(cls, text: str, folder: Path | None = None) -> SettingOrigin:
        origin = super().__new__(cls, text)
        origin.folder = folder
        return origin


Origins = dict[tuple[str, ...], SettingOrigin]
HARDWARE = "base/hardware"
# `--on NAME` is passed on as this override
ON = ("on",)
# Of a recipe with those that it extends, each time that one is named: three in each of 20 files are 10^9. 2 MiB take 9 s.
MOST_FILES, MOST_BYTES = 100, 2 * BYTES
# A recipe does not take these over from the recipes that it extends.
OWN = ("name", "description")


@cache
def conf_folder() -> Path:
    """Return the folder of the shipped recipes: inside a wheel's package, at the top of a checkout."""
    inside = Path(__file__).parents[1] / "conf"
    return inside if inside.is_dir() else Path(__file__).resolve().parents[2] / "conf"


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes, sorted, without those in `conf/base`."""
    return sorted(path.stem for path in conf_folder().glob("*.yaml"))


def hardware_names() -> list[str]:
    """Return the names that `--on` takes, sorted."""
    return sorted({*hardware.THIS_MACHINE, *(path.stem for path in (conf_folder() / HARDWARE).glob("*.yaml"))})


@dataclass(frozen=True)
class RecipeTree:
    """A recipe as its files say, merged and not validated.

    name: of the recipe, if its files give it none; machine: what was chosen for this machine or differs there, for the
    user; chosen: the settings that this machine may have decided; folder: of the recipe's file, None of a shipped one.
    """

    root: type[BaseModel]
    name: str
    tree: Tree
    origins: Origins
    machine: str = ""
    chosen: tuple[str, ...] = ()
    folder: Path | None = None

    def with_overrides(self, overrides: Iterable[str]) -> RecipeTree:
        """Return the recipe with `section.setting=value` texts merged in, `on=NAME` first. Raises ConfigError."""
        parsed = [_parse_override(override) for override in overrides]
        for setting, value in parsed:
            _refuse_hooks(value, setting, annotation_at(self.root, setting))
        return self.with_settings(parsed)

    def with_settings(self, parsed: list[tuple[tuple[str, ...], Any]], folder: Path | None = None) -> RecipeTree:
        """Return the recipe with (path of a setting, value) pairs merged in, `on` first. Raises ConfigError.

        folder: of the user's own code that they name; None where they can name none.
        """
        tree, origins, root = deepcopy(self.tree), dict(self.origins), self.root
        notes: list[str] = []
        chooses, given, wanted = False, Tree(), deepcopy(tree)
        own = [(setting, value) for setting, value in parsed if setting != ON]
        for setting, value in own:
            _merge(wanted, _nested(setting, value), root)
        for setting, value in parsed:
            if setting == ON:
                notes += _move_to_hardware(value, tree, origins, root, wanted)
                chooses = value in hardware.THIS_MACHINE
        for setting, value in own:
            place = SettingOrigin(f"{OVERRIDE}{'.'.join(setting)}", folder)
            nested = _nested(setting, value)
            _refuse_empty(nested, {setting[:1]: place}, root, "leave it out")
            _merge(tree, nested, root)
            _merge(given, nested, root)
            origins |= dict.fromkeys(_settings_in(value, setting), place)
        chosen = hardware.open_settings(given) if chooses else ()
        return replace(self, tree=tree, origins=origins, machine="; ".join(notes), chosen=chosen)

    def for_this_machine(self) -> RecipeTree:
        """Return the recipe with this machine's hardware if it fixes none; what the recipe says stays."""
        if hardware.fixes_hardware(self.tree):
            return self
        settings, why = hardware.choose_for_this_machine(hardware.AUTO, self.tree)
        merge(settings, self.tree, self.root)
        return replace(self, tree=settings, machine=why, chosen=hardware.open_settings(self.tree))

    def settings(self) -> Tree:
        """Return {section: {setting: value}}."""
        tree = without_null(deepcopy(self.tree), self.root)
        tree.setdefault("name", self.name)
        return tree


def read_tree(name: str, root: type[BaseModel] = BaseModel) -> RecipeTree:
    """Read a recipe of `conf/` or a YAML file, and those that it extends. root: its annotations decide what null and `{}`
    mean. Raises ConfigError if a recipe is unknown or malformed, or recipes extend each other in a circle."""
    path = _find(name, Path.cwd())
    return RecipeTree(root, path.stem, *_read(path, [], [], root), folder=_own_folder(path))


def tree_of(document: Tree, name: str, root: type[BaseModel] = BaseModel) -> RecipeTree:
    """Return a recipe that is a mapping in memory, with the recipes that it extends; relative paths belong to the
    working directory. Raises ConfigError as `read_tree`."""
    origins = dict.fromkeys(_settings_in(document, ()), SettingOrigin(f"the recipe {name}", Path.cwd()))
    merged = _with_bases(deepcopy(document), origins, Path.cwd(), [], [], root)
    return RecipeTree(root, name, *merged, folder=Path.cwd())


def origin_of(path: tuple[str, ...], origins: Origins) -> str:
    """Return the origin of a setting, else of one below it, else of the nearest section around it, else `recipe`."""
    inside = [where for setting, where in origins.items() if setting[: len(path)] == path]
    if inside:
        return origins.get(path, inside[-1])
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]]
    return "recipe"


def nearest(word: str, words: Iterable[str], cutoff: float = 0.5) -> str:
    """Return the most similar of `words`, or "" below the similarity `cutoff` (0 to 1)."""
    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)), "")


def _find(name: str, folder: Path) -> Path:
    if name.endswith((".yaml", ".yml")):
        path = _file(folder, name)
        if path is None:
            raise ConfigError(f"there is no recipe file {cut(name)}", "check the path")
        return path
    path = _file(conf_folder(), f"{name}.yaml")
    if path is not None and path.is_relative_to(conf_folder().resolve()):
        return path
    close = nearest(name, recipe_names())
    hint = f"did you mean {close}? " if close else ""
    raise ConfigError(
        f"there is no recipe {cut(name)}", f"{hint}`trnflow recipes` lists them; a file of your own ends in .yaml"
    )


def _file(folder: Path, name: str) -> Path | None:
    try:
        path = (folder / Path(name).expanduser()).resolve()
        return path if path.is_file() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL byte, a circle of links, ~ of nobody
        return None


def _read(path: Path, above: list[Path], sizes: list[int], root: type[BaseModel]) -> tuple[Tree, Origins]:
    """Read a file and everything it extends. above: the files that extend this one; sizes: bytes of each file read so far."""
    if path in above:
        raise ConfigError(f"{path.name} extends itself by way of {above[-1].name}", "break the circle")
    if len(above) > DEPTH:
        raise ConfigError(f"{above[0].name} extends recipes more than {DEPTH} deep", "let it extend fewer")
    data = _bytes_of(path)
    sizes.append(len(data))
    if len(sizes) > MOST_FILES or sum(sizes) > MOST_BYTES:
        raise ConfigError(
            f"{[*above, path][0].name} extends more than {MOST_FILES} recipes, or {MOST_BYTES >> 20} MiB of them",
            "let it extend fewer",
        )
    return _with_bases(*_load(path, data), path.parent, [*above, path], sizes, root)


def _with_bases(
    own: Tree, own_origins: Origins, folder: Path, above: list[Path], sizes: list[int], root: type[BaseModel]
) -> tuple[Tree, Origins]:
    """Merge a recipe into those that it extends. folder: what their relative paths are joined to."""
    _refuse_empty(own, own_origins, root, "remove the line")
    tree: Tree = {}
    origins: Origins = {}
    for base in _bases(own.pop("extends"), own_origins["extends",]) if "extends" in own else ():
        base_tree, base_origins = _read(_find(base, folder), above, sizes, root)
        for setting in OWN:
            base_tree.pop(setting, None)
            base_origins.pop((setting,), None)
        _merge(tree, base_tree, root)
        origins |= base_origins
    _merge(tree, own, root)
    return tree, origins | own_origins


def _merge(tree: Tree, other: Tree, root: type[BaseModel]) -> None:
    """Merge settings; another source does not inherit the revision of the first."""
    for section in ("data", "model"):
        new, inherited = other.get(section), tree.get(section)
        if isinstance(new, dict) and isinstance(inherited, dict) and new.get("source") and "revision" not in new:
            inherited.pop("revision", None)
    merge(tree, other, root)


def _refuse_empty(tree: Tree, origins: Origins, root: type[BaseModel], fix: str) -> None:
    """Raise ConfigError for a section without settings."""
    for name in tree.keys() & sections(root):
        # to inherit or to remove its settings may be meant
        if tree[name] is None or tree[name] == {}:
            what = f"{origins[name,]}: the section {name} is empty"
            raise ConfigError(what, f"{fix}: settings that are not named are inherited")


def _bytes_of(path: Path) -> bytes:
    """Return a file's bytes; of one that `read_yaml` refuses for its size the first."""
    try:
        with path.open("rb") as stream:
            return stream.read(BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}", "check the file and who may read it") from error


def _load(path: Path, data: bytes) -> tuple[Tree, Origins]:
    tree, lines = read_yaml(data, str(path))
    if program := program_of(tree):
        command = shlex.join(["trnflow", "new", "DATA" if program == LLAMA_FACTORY_V1 else str(path)])
        raise ConfigError(f"{path} is a config of {program}, not a recipe", f"`{command}` writes one")
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of sections", "see `trnflow config demo`")
    return tree, {setting: SettingOrigin(f"{path}:{line}", _own_folder(path)) for setting, line in lines.items()}


def _own_folder(path: Path) -> Path | None:
    """Return the folder of a recipe's file, None of a shipped one."""
    return None if path.is_relative_to(conf_folder().resolve()) else path.parent


def _bases(value: Any, where: str) -> list[str]:
    """Return the recipes that `extends` names. Raises ConfigError for a value that names none."""
    bases = value if isinstance(value, list) else [value]
    for base in bases:
        if not isinstance(base, str) or not base:
            raise ConfigError(
                f"{where}: extends names no recipe: {shown(base)}",
                "give a recipe's name or file, or a list of them, or remove the line",
            )
    return bases


def _parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(
            f"the override {cut(hide_override(text))} is not of the form section.setting=value",
            "such as train.epochs=3",
        )
    setting = tuple(name.strip().split("."))
    if len(setting) > DEPTH:
        raise ConfigError(
            f"override {cut(name)}: there is no such setting", "`trnflow config demo` shows those there are"
        )
    return setting, read_value(value, f"{OVERRIDE}{'.'.join(setting)}")


def _refuse_hooks(value: Any, path: tuple[str, ...], annotation: Any) -> None:
    """Raise ConfigError if an override sets a function: whoever reaches Prefect's API can send one."""
    # what else runs code may be typed, and is checked where Prefect sends it (`sent.py`)
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not inner and is_hook(annotation):
        raise ConfigError(
            f"{OVERRIDE}{'.'.join(path)}: it names a function to run, and stands in recipe files alone",
            "write it into the recipe's file: an override may come from a page, an event or a sweep",
        )
    for name, entry in inner:
        _refuse_hooks(entry, (*path, str(name)), below(annotation, str(name)))


def _move_to_hardware(name: Any, tree: Tree, origins: Origins, root: type[BaseModel], wanted: Tree) -> list[str]:
    """Merge `conf/base/hardware/NAME`, or what fits `wanted` (overrides included) on this machine; return notes."""
    before, notes = deepcopy(tree), []
    settings: Tree = {}
    places: Origins = {}
    if name in (hardware.AUTO, "gpu"):
        settings, why = hardware.choose_for_this_machine(name, wanted)
        notes.append(why)
        name = "cpu" if settings["train"]["device"] == "cpu" else name
    if not settings or name == "cpu":
        settings, places = _hardware_file(name, root)
        if name == "cpu" and (why := hardware.leave_out_export(settings, tree)) and not notes:
            notes.append(why)
    hardware.prepare_move(tree, settings)
    merge(tree, settings, root)
    origins |= places
    return [*notes, *filter(None, [hardware.difference(before, tree)])]


def _hardware_file(name: Any, root: type[BaseModel]) -> tuple[Tree, Origins]:
    """Read `conf/base/hardware/NAME`. Raises ConfigError when there is no such file."""
    path = _file(conf_folder() / HARDWARE, f"{name}.yaml")
    if path is None or path.parent != (conf_folder() / HARDWARE).resolve():
        close = nearest(str(name), hardware_names())
        raise ConfigError(
            f"there is no hardware {cut(str(name))}",
            f"did you mean {close}?" if close else f"choose one of {', '.join(hardware_names())}",
        )
    return _read(path, [], [], root)


def hardware_price(name: str) -> float | None:
    """Return the USD per hour that `conf/base/hardware/NAME` gives; None without such a file, or a price in it."""
    path = _file(conf_folder() / HARDWARE, f"{name}.yaml")
    if path is None:
        return None
    settings, _ = read_yaml(path.read_bytes(), str(path))
    price = settings["hardware"].get("price_per_hour")
    return None if price is None else float(price)


def _settings_in(value: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of a value and of all entries below it."""
    yield above
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield from _settings_in(inner, (*above, name))


def _nested(path: tuple[str, ...], value: Any) -> Tree:
    for name in reversed(path):
        value = {name: value}
    return dict(value)
