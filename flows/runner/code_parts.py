"""The named parts of a module of own code, so that a plan can say which of them changed. In no key."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trnflow.tasks.artifact import Source
from trnflow.tasks.keys.code_hash import parsed
from trnflow.tasks.keys.hash_cache import Memo, sha256_bytes
from trnflow.tasks.system.redaction import MASK, names_secret, scrub

PARTS = "parts of own code"
"""Kind of what the home's memo has by a module's hash: {"file": its name, "parts": of `parts_of`}."""
REST = ""
"""The name of all statements that define nothing at a module's top, and of constants that are named like secrets."""
SHOWN = 40
"""Characters of a value that are kept."""
# as access tokens look: long, in one piece, letters and digits
_TOKEN = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])\S{20,}")


class PartChange(NamedTuple):
    """A part that differs. before, after: shortened values, None where it does not exist, "" where it is not shown."""

    name: str
    before: str | None
    after: str | None


Parts = dict[str, tuple[str, str]]
"""{name: (value as shown, or ""; digest, "" of what looks like a secret)}"""


def remember_parts(own: Iterable[Source], memo: Memo) -> None:
    """Note the parts of the modules of own code, each once, for plans after an edit. own: sources of code."""
    for source in own:
        hashes = source.identity["code"]
        for module, file in source.location.get("files", {}).items():
            if file.endswith(".py") and memo.one(PARTS, hashes[module], "") is None:
                memo.put(PARTS, hashes[module], "", {"file": Path(file).name, "parts": parts_of(parsed(Path(file)))})


def parts_of(tree: ast.Module) -> Parts:
    """Return a module's constants, functions and classes, and its rest."""
    parts: Parts = {}
    rest = []
    for node in tree.body:
        name = _name(node)
        if name is None or name in parts or names_secret(name):
            rest.append(ast.dump(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            parts[name] = _value(node.value)
        else:
            parts[name] = ("", _digest([ast.dump(node)]))
    return {**parts, REST: ("", _digest(rest))}


def changed_parts(before: Parts, after: Parts) -> Iterator[PartChange]:
    """Yield the parts that differ, in the order of the module; the rest last."""
    for name in [*(name for name in {**after, **before} if name != REST), REST]:
        old, new = before.get(name), after.get(name)
        if old is None or new is None or [*old] != [*new]:
            yield PartChange(name, old and old[0], new and new[0])


def _name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def _value(node: ast.expr) -> tuple[str, str]:
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    text = " ".join(text.split())
    if _TOKEN.search(text) or scrub(text) != text or any(map(names_secret, _words(node))):
        return MASK, ""
    return (text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."), _digest([ast.dump(node)])


def _words(node: ast.expr) -> Iterator[str]:
    """Yield the texts and the names of arguments in a value, such as the keys of a mapping."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value
        elif isinstance(inner, ast.keyword) and inner.arg:
            yield inner.arg


def _digest(texts: list[str]) -> str:
    return sha256_bytes("\n".join(texts).encode())
