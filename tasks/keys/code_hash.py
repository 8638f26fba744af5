"""Hash the code of a Python file, and list what it imports.

This program's own files count without docstrings, comments, layout, the texts of `raise` and marks that say who may set a
setting (`GUARDED`); all other code counts with every text in it, since `__doc__` may be a prompt.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator
from importlib.machinery import SOURCE_SUFFIXES
from pathlib import Path
from typing import TypedDict

from trnflow.tasks.config import GUARDED
from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.hash_cache import Memo, sha256_bytes, sha256_file, stamp
from trnflow.tasks.keys.module_finder import is_of_trnflow

# Python 3.11 counts the depth of a syntax tree for all threads together: parsing may fail while another thread parses.
ATTEMPTS = 5

# Kind of `analyse`'s values in the hash cache. Rename it when a hash changes: an unchanged file would keep its old one.
ANALYSIS = "code with relative imports"

# Strings in these expressions of a `raise` count: they decide what is formatted in, and are no text.
FORMATTED = (ast.FormattedValue, ast.Subscript, ast.Compare)

UNCOUNTED = frozenset(mark.name for mark in GUARDED)

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a statement that hold statements."""


class Analysis(TypedDict):
    """imports: names that may be modules, relative ones with their dots."""

    hash: str
    imports: list[str]


def analyse(path: str, memo: Memo) -> Analysis:
    """Return the hash and the imports of a module's file."""
    now = stamp(path)
    known: Analysis | None = memo.get(ANALYSIS, path, now)
    if known is None:
        tree = parsed(Path(path)) if path.endswith(tuple(SOURCE_SUFFIXES)) else None
        imports = sorted(set(_imports(tree))) if tree else []
        known = {"hash": _hash(path, tree), "imports": imports}
        memo.put(ANALYSIS, path, now, known)
    return {**known}


def hash_file(path: Path) -> str:
    """Return the hash that `analyse` gives a file, which is always read."""
    return _hash(str(path), parsed(path) if path.suffix in SOURCE_SUFFIXES else None)


def _hash(path: str, tree: ast.Module | None) -> str:
    if tree is None:  # a compiled module
        return sha256_file(path)
    return code_hash(tree) if is_of_trnflow(path) else sha256_bytes(ast.dump(tree).encode())


def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree. Raises CodeError with file and line if it has none."""
    data = path.read_bytes()  # as Python does, which looks for an encoding in the first lines
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(SystemError):
            return _tree(data, path)
    return _tree(data, path)


def _tree(data: bytes, path: Path) -> ast.Module:
    try:
        return ast.parse(data, str(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise CodeError(f"{path}{line} is no Python: {reason}", "correct that line") from None


def code_hash(tree: ast.Module) -> str:
    """Return `sha256:<hex>` of a module without docstrings, texts of `raise`, `UNCOUNTED` and TYPE_CHECKING. Changes `tree`."""
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            # a string as a statement has no effect: a docstring, or the text below a constant
            kept = [line for line in node.body if not _is_text(line) and not _is_type_checking(line)]
            node.body = kept or [ast.Pass()]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            _drop_texts(node.exc)
        elif isinstance(node, ast.ImportFrom):
            node.names = [alias for alias in node.names if alias.name not in UNCOUNTED]
        elif isinstance(node, ast.AnnAssign):
            _drop_marks(node.annotation)
    return sha256_bytes(ast.dump(tree).encode())


def _statements(tree: ast.Module, leave_out: Callable[[ast.AST], bool] = lambda node: False) -> Iterator[ast.AST]:
    """Yield the module and its statements, but those that `leave_out` names, of which what follows `else` stays."""
    # expressions, most of a tree, are not looked at: half the time for the same hashes
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if leave_out(node):
            pending.extend(getattr(node, "orelse", ()))
            continue
        yield node
        for block in BLOCKS:
            pending.extend(getattr(node, block, ()))


def _drop_texts(expression: ast.AST) -> None:
    """Remove the string constants of an expression, but those of FORMATTED."""
    for name, value in ast.iter_fields(expression):
        if isinstance(value, list):
            value[:] = [entry for entry in value if not _is_string(entry)]
        elif _is_string(value):
            setattr(expression, name, None)
    for below in ast.iter_child_nodes(expression):
        if not isinstance(below, FORMATTED):
            _drop_texts(below)


def _drop_marks(annotation: ast.expr) -> None:
    """Remove from `Annotated[...]` the marks that change no result."""
    match annotation:
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple(entries)):
            entries[:] = [entry for entry in entries if not (isinstance(entry, ast.Name) and entry.id in UNCOUNTED)]


def _is_string(node: object) -> bool:
    if isinstance(node, ast.JoinedStr):  # an f-string that formats nothing in
        return all(_is_string(part) for part in node.values)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is_string(node.value)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield each name that an import statement may load; `from ..a import b` gives `..a` and `..a.b`."""
    for node in _statements(tree, leave_out=_is_type_checking):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = "." * node.level + (node.module or "")
            yield above
            # `from a import b` may load the module a.b
            yield from (f"{above}.{alias.name}" if node.module else f"{above}{alias.name}" for alias in node.names)
