"""Hooks: settings that name a function of the user's, as text `package.module:name`. None runs here.

A further hook takes four places: a field of type `Hook` in the config of its section, its signature in `SIGNATURES`, in
`flows/finetune.py` the input `code=own_code(recipe, "section.setting")` of each stage that calls it, and in the stage
the call, `function_of(code, "section.setting")`. The rest follows.
"""

from __future__ import annotations

import ast
import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from trnflow.tasks.artifact import CODE, Source
from trnflow.tasks.errors import CodeError, ConfigError
from trnflow.tasks.keys.code_closure import closure, closure_files
from trnflow.tasks.keys.code_hash import analyse, parsed
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.module_finder import Home, ModuleFinder

FILES = "own.files"
NO_FILES: Mapping[str, Path] = MappingProxyType({})

OF_NOTEBOOK = "of_notebook_"
"""How modules begin that hold functions of a notebook."""

KIND = re.compile(r"[a-z][a-z0-9_]{0,49}")

PROJECT = (".git", "pyproject.toml")
"""What the top folder of a project holds."""


class Signature(NamedTuple):
    """How a hook is called: with so many arguments by position; text: as a user reads it."""

    arguments: int
    text: str


SIGNATURES = {
    "evaluate.metrics": Signature(1, "(p: Predictions) -> float | dict[str, float]"),
    "data.make": Signature(2, "(config: dict, split: str) -> Iterator[dict] | None"),
    "format.make": Signature(1, "(row: dict) -> str | dict | None"),
    "train.loss": Signature(3, "(logits: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor"),
    "own.identity": Signature(1, "(config: dict) -> str"),
    "stages": Signature(3, "(config: dict, given: Input, out: Workdir) -> dict | None"),
    "promote.checks": Signature(2, "(challenger: Predictions, champion: Predictions | None) -> str | None"),
}
"""{setting, or the section around several: signature}"""


def check_hook(setting: str, named: str, folder: Path | None) -> None:
    """Raise ConfigError unless `named` is a function that `setting` can call, by reading its module's file.

    folder: of the recipe's file; None of a shipped recipe.
    """
    module, _, name = named.partition(":")
    if folder is None:
        raise ConfigError(
            f"{setting} names a function, and a shipped recipe has no code of a user", "extend the recipe"
        )
    _, file = _place(setting, module, folder)
    try:
        tree = parsed(file)
    except CodeError as error:
        raise ConfigError(f"{setting}: {error.message}", error.fix) from None
    function = _function(setting, name, tree, file, module)
    wanted = next(hook for name, hook in SIGNATURES.items() if setting == name or setting.startswith(f"{name}."))
    if not _takes(function.args, wanted.arguments):
        raise ConfigError(
            f"{setting}: {file.name}:{function.lineno}: {name}({ast.unparse(function.args)}) can't be called as "
            f"{name}{wanted.text}",
            f"let it take {wanted.arguments} argument{'s' * (wanted.arguments > 1)}, with defaults for all others",
        )


def stage_kind(setting: str, named: str, folder: Path) -> str:
    """Return the kind that the `@stage` of a function names. Raises ConfigError unless it is a text, and all it names."""
    module, _, name = named.partition(":")
    _, file = _place(setting, module, folder)
    function = _function(setting, name, parsed(file), file, module)
    for mark in function.decorator_list:
        match mark:
            case ast.Call(
                func=ast.Name("stage") | ast.Attribute(attr="stage"), args=[], keywords=[ast.keyword("kind", kind)]
            ):
                if isinstance(kind, ast.Constant) and isinstance(kind.value, str) and KIND.fullmatch(kind.value):
                    return kind.value
    raise ConfigError(
        f"{setting}: {file.name}:{function.lineno}: {name} is not marked by @stage with a kind alone",
        f'write @stage(kind="{name}") above it, after `from trnflow.tasks.stage import stage`; the kind is a word in quotes',
    )


def notebook_folder(home: Path) -> Path:
    """Return the folder of the modules that hold functions of notebooks."""
    return home / "cache" / "functions"


def place_of(setting: str, named: str, folder: Path) -> Path:
    """Return the folder from which Python imports a hook's module. Raises ConfigError if there is none."""
    return _place(setting, named.partition(":")[0], folder)[0]


def code_source(
    hooks: Mapping[str, tuple[str, Path]],
    home: Path,
    memo: Memo,
    also: Iterable[str] = (),
    files: Mapping[str, Path] = NO_FILES,
) -> Source:
    """Return the code of a stage's hooks.

    hooks: {setting: (named, folder of the recipe's file)}; also: modules of this program that the stage imports by name,
    for these hooks alone; files: {name in `own.files`: path}, of which count those that a text in the hooks' modules names.

    Returns:
        A Source with the identity {"code": closures' modules, and {setting: named}, "env"} and the location {"functions":
        {setting: named}, "search": folders, "files": {module: file}, "program": those of `also`, and the files that are
        read, "proofs": where it is noted which code was proved}

    Raises:
        CodeError: A module of the closure is no Python.
        ConfigError: The module is gone.
    """
    code: dict[str, str] = {}
    env: dict[str, str] = {}
    read: dict[str, str] = {}
    search: dict[str, None] = {}
    for setting, (named, folder) in sorted(hooks.items()):
        module = named.partition(":")[0]
        top, _ = _place(setting, module, folder)
        found = closure(module, memo, search=(str(top),))
        code |= {**found.code, setting: named}
        env |= found.env
        read |= closure_files(module, memo, search=(str(top),))
        search[str(top)] = None
    program: dict[str, str] = {}
    for module in also:
        found = closure(module, memo)
        code, env, program = code | found.code, env | found.env, program | closure_files(module, memo)
    for name in _read(files, read.values()):
        code[f"{FILES}: {name}"] = analyse(str(files[name]), memo)["hash"]
        program[f"{FILES}: {name}"] = str(files[name])
    functions = {setting: named for setting, (named, _) in hooks.items()}
    location = {"functions": functions, "search": list(search), "files": read, "program": program}
    location["proofs"] = str(home / "proofs")
    return Source(CODE, {"code": code, "env": env}, location)


def _read(files: Mapping[str, Path], modules: Iterable[str]) -> list[str]:
    """Return the names of the files that a text in the modules names, by its last part."""
    # which function opens a file shows only in a run, and the audit refuses one whose name no text has
    texts = [
        node.value
        for file in (modules if files else ())
        if file.endswith(".py")
        for node in ast.walk(parsed(Path(file)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [name for name in files if any(Path(name).name in text for text in texts)]


def check_file(name: str, file: Path) -> None:
    """Raise ConfigError unless a name in `own.files` is a file."""
    if not file.is_file():
        raise ConfigError(
            f"{FILES}: there is no file {name} in {str(file).removesuffix(name)}",
            "correct the name, or put the file there",
        )


def recorded_code(own: Mapping[str, str], folder: Path, home: Path, memo: Memo) -> Source:
    """Return the code that made a model's texts, as it was; if it is not the same now, it has keys and can't run.

    own: the table `code` of a `code_source` then; folder: where its modules are looked for.
    """
    hooks = {
        name: (value, notebook_folder(home) if value.startswith(OF_NOTEBOOK) else folder)
        for name, value in own.items()
        if not value.startswith(("sha256:", "schema:"))
    }
    functions = {name: named for name, (named, _) in hooks.items()}
    try:
        named = (name.removeprefix(f"{FILES}: ") for name in own if name.startswith(f"{FILES}: "))
        files = {name: folder / name for name in named}
        for name, file in files.items():
            check_file(name, file)
        now = code_source(hooks, home, memo, files=files)
        changed = [
            name for name in own.keys() | now.identity["code"].keys() if own.get(name) != now.identity["code"].get(name)
        ]
        why, env = f"{', '.join(sorted(changed))} changed since", now.identity["env"]
    except (ConfigError, CodeError) as error:
        changed, why, env = list(own), error.message, {}
    if not changed:
        return now
    missing = f"the rows of this model were made by {' and '.join(functions.values())} as it was then: {why}"
    return Source(CODE, {"code": dict(own), "env": env}, {"functions": functions, "missing": missing})


def refuse_missing(code: Source) -> None:
    """Raise CodeError for code that `recorded_code` did not find as it was."""
    if "missing" in code.location:
        raise CodeError(
            code.location["missing"], "check out the code of that time, and run this in the folder of its recipe"
        )


def _place(setting: str, module: str, folder: Path) -> tuple[Path, Path]:
    """Return (the folder that Python imports from, the module's file). Raises ConfigError."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        _refuse_foreign(setting, module, "standard")
    for top in (looked_in := list(_folders(folder.resolve()))):
        base = top.joinpath(*module.split("."))
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.is_file():
                found = ModuleFinder((str(top),)).find(module)
                if found is None or found.home != "own" or found.file != str(file):
                    _refuse_foreign(setting, module, found.home if found else "own")
                return top, file
    found = ModuleFinder((str(folder),)).find(module)
    if found is not None and found.home in ("trnflow", "installed"):
        _refuse_foreign(setting, module, found.home)
    raise ConfigError(
        f"{setting}: there is no module {module} in {' or '.join(map(str, looked_in))}",
        "write the function into a file beside the recipe, or correct the name",
    )


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the recipe's folder and those above it, up to the project's; without a project one above."""
    above = [folder, *folder.parents]
    tops = [place for place in above if any((place / mark).exists() for mark in PROJECT)]
    yield from above[: above.index(tops[0]) + 1] if tops else above[:2]


def _refuse_foreign(setting: str, module: str, home: Home) -> NoReturn:
    whose = {
        "trnflow": "this program's", "standard": "a name of the standard library's", "installed": "an installed package's",
        "own": "hidden by another module of this name",
    }  # fmt: skip
    raise ConfigError(
        f"{setting}: {module} is {whose[home]}: a hook is a function of your own",
        "write it into a file beside the recipe, under a name that no package has",
    )


def _function(setting: str, name: str, tree: ast.Module, file: Path, module: str) -> ast.FunctionDef:
    """Return the definition of a function at the top of a module. Raises ConfigError for anything else."""
    defined = list(_defined(tree.body))
    node = next((node for named, node in reversed(defined) if named == name), None)
    if isinstance(node, ast.FunctionDef):
        return node
    at = f"{setting}: {file.name}:{node.lineno if node else 0}: {name}"
    if isinstance(node, ast.ImportFrom):
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        above = "." * node.level + (node.module or "")
        home = resolve_name(above, package) if node.level else above
        theirs = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        raise ConfigError(f"{at} is imported there from {home}", f"name it where it is: {home}:{theirs}")
    if node is not None:
        raise ConfigError(f"{at} is {_what(node)}, no function", f"write `def {name}(...)` at the top of {file.name}")
    inside = next((inner for inner in ast.walk(tree) if getattr(inner, "name", None) == name), None)
    if isinstance(inside, ast.FunctionDef):
        raise ConfigError(
            f"{setting}: {file.name}:{inside.lineno}: {name} is inside a function or class, where it can't be named",
            f"move it to the top of {file.name}, as a function of its own",
        )
    functions = [named for named, other in defined if isinstance(other, ast.FunctionDef)]
    close = difflib.get_close_matches(name, functions, 1, 0.5)
    there = f" (it has {', '.join(functions)})" if functions else ""
    fix = f"did you mean {module}:{close[0]}?" if close else f"write `def {name}(...)` there"
    raise ConfigError(f"{setting}: {file.name} has no function {name}{there}", fix)


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield (name, statement) of what a module defines at its top, also below `if` and `try`."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))
        for block in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try):
                yield from _defined(getattr(node, block, []))


def _what(node: ast.stmt) -> str:
    value = getattr(node, "value", None)
    if isinstance(value, ast.Lambda):
        return "a lambda"
    if isinstance(value, ast.Call):
        return f"what {ast.unparse(value.func)}(...) returns"
    kinds = {ast.ClassDef: "a class", ast.AsyncFunctionDef: "an async function", ast.Import: "a module"}
    return kinds.get(type(node), "a value")


def _takes(arguments: ast.arguments, count: int) -> bool:
    """Return whether a function can be called with `count` arguments by position."""
    positional = len(arguments.posonlyargs) + len(arguments.args)
    needed = positional - len(arguments.defaults)
    is_enough = positional >= count or arguments.vararg is not None
    return needed <= count and is_enough and all(default is not None for default in arguments.kw_defaults)
