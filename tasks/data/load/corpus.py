"""The built-in corpus `builtin:stdlib`: docstrings of Python's standard library, parsed, never imported; about 3 s.

Views: `packages` (from which of ten packages a docstring comes, names removed) and `questions` ("What does `x.y` do?").
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Source
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.keys.hash_cache import sha256_bytes, sha256_file, stamp
from trnflow.tasks.sources.data_source import resolve_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.split_files import FileSettings

if TYPE_CHECKING:
    from trnflow.tasks.data.load.readers import RowReader

SOURCE = "builtin:stdlib"
STDLIB = Path(sysconfig.get_paths()["stdlib"])
VIEWS = ("packages", "questions")
CLASSES = 10
FEWEST_WORDS = 3
_SKIPPED = frozenset(
    {
        "test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "pydoc_data", "ensurepip", "site-packages",
        "dist-packages", "lib-dynload", "__pycache__", "__phello__",
    }
)  # fmt: skip
_ROWS = Path(__file__).with_name("rows")
_SPLIT_OF_TENTH = {0: "test", 1: "validation"}


class Docstring(NamedTuple):
    """A docstring without indentation, and the dotted name of what it describes."""

    name: str
    doc: str


def corpus_source(source: str, view: str | None, resolver: Resolver) -> Source:
    """Return the Source of `builtin:stdlib`, or of the rows of a shipped recipe, `builtin:NAME`.

    view: `data.name`: which rows of stdlib (`VIEWS`). Raises ConfigError for an unknown corpus or view.
    """
    rows = _ROWS / f"{source.removeprefix('builtin:')}.jsonl"
    if rows in _ROWS.glob("*.jsonl"):
        return resolve_source(str(rows), None, None, FileSettings(None, {}), resolver)
    if source != SOURCE:
        others = ", ".join(sorted(f"builtin:{file.stem}" for file in _ROWS.glob("*.jsonl")))
        raise ConfigError(f"data.source: there is no built-in corpus {source}", f"use {SOURCE}, or {others}")
    view = view or VIEWS[0]
    if view not in VIEWS:
        raise ConfigError(f"data.name: {SOURCE} has no view {view}", f"use one of: {', '.join(VIEWS)}")
    files = stdlib_files(STDLIB)
    now = hashlib.sha256(repr(files).encode()).hexdigest()
    digest = resolver.memo.get("corpus", STDLIB, now)
    if digest is None:
        contents = "".join(f"{path}\0{sha256_file(STDLIB / path)}\n" for path, _ in files)
        digest = sha256_bytes(contents.encode())
        resolver.memo.put("corpus", STDLIB, now, digest)
        resolver.memo.save()
    location = {"builtin": "stdlib", "view": view}
    return Source("data", location | {"digest": digest}, location)


def stdlib_files(root: Path) -> list[tuple[str, str]]:
    """List (relative path, stamp) of the standard library's files, sorted, without tests and installed packages."""
    files: list[tuple[str, str]] = []
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.name.endswith(".py"):
                    files.append((name, stamp(entry.path)))
                elif entry.name not in _SKIPPED and "." not in entry.name and "-" not in entry.name and entry.is_dir():
                    pending.append(f"{name}/")
    return sorted(files)


def corpus_splits(view: str) -> dict[str, RowReader]:
    """Return {split: rows in memory} of a view. Raises DataError when this Python has no source files."""
    import pyarrow as pa

    from trnflow.tasks.data.load.readers import open_table

    docstrings = list(read_docstrings(STDLIB))
    if not docstrings:
        raise DataError(f"{SOURCE}: this Python's standard library has no source files", "set data.source to your data")
    rows = _packages(docstrings) if view == "packages" else _questions(docstrings)
    return {
        split: open_table(pa.Table.from_pylist(rows[split]), f"{SOURCE} {split}")
        for split in ("train", "validation", "test")
    }


def read_docstrings(root: Path) -> Iterator[Docstring]:
    """Yield the docstrings of public objects, of 3 words or more, in the order of paths and lines."""
    for path, _ in stdlib_files(root):
        parts = [part for part in path.removesuffix(".py").split("/") if part != "__init__"]
        if any(part.startswith("_") for part in parts):
            continue
        try:
            tree = ast.parse((root / path).read_bytes())
        except (SyntaxError, ValueError):
            continue  # a template, or a file for another version of Python
        yield from _docstrings(tree, ".".join(parts))


def _docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[Docstring]:
    doc = ast.get_docstring(node)
    if doc and len(doc.split()) >= FEWEST_WORDS:
        yield Docstring(name, doc)
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_dunder = child.name.startswith("__") and child.name.endswith("__")
            if is_dunder or not child.name.startswith("_"):
                yield from _docstrings(child, f"{name}.{child.name}")


def anonymous(docstring: Docstring) -> str:
    """Return a docstring as one line without its object's names."""
    names = {part.lower() for part in docstring.name.split(".") if len(part) > 1}
    # the label must not be read from the text
    hidden = re.sub(r"\w+", lambda word: " " if word[0].lower() in names else word[0], docstring.doc)
    return " ".join(hidden.split())


def _packages(docstrings: list[Docstring]) -> dict[str, list[dict[str, str]]]:
    splits = _split([(anonymous(docstring), docstring.name) for docstring in docstrings])
    counts = Counter(name.split(".")[0] for _, name in splits["train"])
    classes = sorted(counts, key=lambda package: (-counts[package], package))[:CLASSES]
    labelled = {
        split: [{"text": text, "package": name.split(".")[0], "name": name} for text, name in rows]
        for split, rows in splits.items()
    }
    return {split: [row for row in rows if row["package"] in classes] for split, rows in labelled.items()}


def _questions(docstrings: list[Docstring]) -> dict[str, list[dict[str, str]]]:
    splits = _split([(docstring.doc, docstring.name) for docstring in docstrings])
    return {
        split: [{"instruction": f"What does `{name}` do?", "response": text, "name": name} for text, name in rows]
        for split, rows in splits.items()
    }


def _split(rows: list[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Divide (text, name) into splits by the text's hash, each text once."""
    splits: dict[str, list[tuple[str, str]]] = {"train": [], "validation": [], "test": []}
    seen: set[str] = set()
    for text, name in rows:
        if text in seen or len(text.split()) < FEWEST_WORDS:
            continue
        seen.add(text)
        # 80/10/10 by a hash of the text: equal texts stay in one split
        tenth = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10
        splits[_SPLIT_OF_TENTH.get(tenth, "train")].append((text, name))
    return splits
