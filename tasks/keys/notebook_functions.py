"""Functions of a script or notebook as hooks: taken by their source, when that is complete, into a module of the home."""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import inspect
import symtable
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NoReturn

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.hooks import OF_NOTEBOOK, notebook_folder
from trnflow.tasks.system.whole_file import write_whole

WHERE = "write it as a function at the top of a file, and give its name, `file:function`"


def named_functions(value: Any, setting: str, home: Path) -> tuple[Any, Path | None]:
    """Return a setting's value with functions as `module:name`, and the folder of their modules; None without one.

    Raises ConfigError for a function that can't be taken.
    """
    folders: dict[Path, None] = {}

    def named(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {name: named(entry) for name, entry in item.items()}
        if isinstance(item, list | tuple):
            return [named(entry) for entry in item]
        if isinstance(item, type) or not callable(item):
            return item
        text, folder = _name_of(item, setting, home)
        folders[folder] = None
        return text

    text = named(value)
    if len(folders) > 1:
        raise ConfigError(f"{setting}: functions of {' and '.join(map(str, folders))}", "write them into one folder")
    return text, next(iter(folders), None)


def _name_of(function: Any, setting: str, home: Path) -> tuple[str, Path]:
    if isinstance(function, functools.partial):
        _refuse(setting, "a partial, whose arguments are in no file")
    if not isinstance(function, FunctionType):
        _refuse(setting, f"an object of {type(function).__name__}, no function")
    if function.__name__ == "<lambda>":
        _refuse(setting, "a lambda")
    if "<locals>" in function.__qualname__ or "." in function.__qualname__:
        _refuse(setting, f"{function.__qualname__}, which is inside a function or class")
    module = sys.modules[function.__module__]
    file = getattr(module, "__file__", None)
    is_at_its_top = vars(module).get(function.__name__) is function
    if module.__name__ != "__main__" and file and is_at_its_top:
        path = Path(file).resolve()
        above = module.__name__.count(".") + (path.name == "__init__.py")
        return f"{module.__name__}:{function.__name__}", path.parents[above]
    source = _module_of(function, setting)
    name = f"{OF_NOTEBOOK}{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    folder = notebook_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / f"{name}.py").exists():
        write_whole(folder / f"{name}.py", source)
    return f"{name}:{function.__name__}", folder


def _module_of(function: FunctionType, setting: str) -> str:
    """Return a module with the function and all that it uses, without comments."""
    imports: dict[str, str] = {}
    constants: dict[str, str] = {}
    functions: dict[str, str] = {}
    pending = [function]
    while pending:
        current = pending.pop()
        if current.__name__ in functions:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(current)))
        except (OSError, TypeError, SyntaxError):
            _refuse(setting, f"{current.__name__}, whose source Python does not have")
        # without comments and layout, which would name, and key, another module
        functions[current.__name__] = ast.unparse(tree)
        for name in sorted(_outer_names(functions[current.__name__])):
            if name == current.__name__ or (name not in current.__globals__ and hasattr(builtins, name)):
                continue
            value = current.__globals__.get(name, inspect.Parameter.empty)
            if isinstance(value, FunctionType) and value.__module__ == current.__module__ and value.__name__ == name:
                pending.append(value)
            elif text := _import_of(name, value):
                imports[name] = text
            elif _is_constant(value):
                constants[name] = f"{name} = {value!r}"
            else:
                _refuse_name(setting, current, name, value)
    parts = ["\n".join(sorted(entries)) for entries in (imports.values(), constants.values()) if entries]
    return "\n\n".join([*parts, *(functions[name] for name in sorted(functions))]) + "\n"


def _outer_names(source: str) -> set[str]:
    """Return the names that a function's source takes from the module around it."""
    whole = symtable.symtable(source, "function", "exec")

    def used(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and symbol.is_global():
                yield symbol.get_name()
        for inner in table.get_children():
            yield from used(inner)

    return {*used(whole)}


def _import_of(name: str, value: Any) -> str | None:
    """Return the import statement that gives a value; None for what no module has."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module in (None, "__main__") or not isinstance(qualified, str) or "." in qualified:
        return None
    is_there = getattr(sys.modules.get(str(module)), qualified, None) is value
    return f"from {module} import {qualified} as {name}" if is_there else None


def _is_constant(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError):
        return False


def _refuse_name(setting: str, function: FunctionType, name: str, value: Any) -> NoReturn:
    kind = "is defined nowhere" if value is inspect.Parameter.empty else f"is a value of type {type(value).__name__}"
    raise ConfigError(
        f"{setting}: {function.__name__} uses {name}, which {kind}: of a notebook only imports, constants and functions are "
        "taken",
        f"make {name} a constant, or {WHERE}",
    )


def _refuse(setting: str, what: str) -> NoReturn:
    raise ConfigError(f"{setting} is {what}: its code can't be in a key", WHERE)
