"""Draw mutants of the code by a seed: one change of an operator, number, condition, loop, decorator or handler each, by the
operators of Cosmic Ray.

A module is drawn by its lines, in each package at least one; in it a place is drawn, and one of the changes that are possible
there. Annotations are left out: nobody runs them.
"""

from __future__ import annotations

import ast
import difflib
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from tests.golden.compare import PROJECT

COSMIC_RAY = PROJECT / ".clients/cosmic-ray"
NOT_USED = ("VariableReplacer", "VariableInserter")  # these need arguments
Place = tuple[tuple[int, int], tuple[int, int]]
"""Line (from 1) and column (from 0) of the beginning and the end."""


def draw(seed: int, number: int) -> Iterator[tuple[str, str, str]]:
    """Yield (module's file, a text that stands in it once, what replaces it)."""
    generator = random.Random(seed)
    modules = {path: path.read_text() for top in ("flows", "tasks") for path in sorted((PROJECT / top).rglob("*.py"))}
    lines = {path: text.count("\n") for path, text in modules.items()}
    packages: dict[Path, list[Path]] = defaultdict(list)
    for path in modules:
        packages[Path(*path.relative_to(PROJECT).parts[:2])].append(path)
    least = [generator.choices(paths, [lines[path] for path in paths])[0] for paths in packages.values()]
    further = (generator.choices(list(modules), list(lines.values()))[0] for _ in count())
    found = (
        (str(path.relative_to(PROJECT)), *change)
        for path in chain(least, further)
        for change in _changes(modules[path], generator)
    )
    return islice(found, number)


def _changes(text: str, generator: random.Random) -> Iterator[tuple[str, str]]:
    """Yield one change of a module's text, if any is possible."""
    if str(COSMIC_RAY) not in sys.path:
        sys.path.append(str(COSMIC_RAY))
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    operators = {name: operator() for name, operator in _items(OperatorProvider()) if name not in NOT_USED}
    places = _places(text, operators)
    while places:
        place = generator.choice(sorted(places))
        name, occurrence = generator.choice(places.pop(place))
        try:
            changed = mutate_code(text, operators[name], occurrence)
        except AttributeError:  # a handler of a dotted exception
            continue
        if changed is not None and _runs(changed) and (change := _once(text, changed)):
            yield change
            return


def _items(provider: Any) -> Iterator[tuple[str, Any]]:
    return ((name, provider[name]) for name in provider)


def _places(text: str, operators: dict[str, Any]) -> dict[Place, list[tuple[str, int]]]:
    """Return {place: [(operator, which of its changes in the module)]}."""
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes, never = list(ast_nodes(get_ast(text))), _never_run(text)
    places: dict[Place, list[tuple[str, int]]] = defaultdict(list)
    for name, operator in operators.items():
        found = (place for node in nodes for place in operator.mutation_positions(node))
        for occurrence, place in enumerate(found):
            if not any(first <= place[0] and place[1] <= last for first, last in never):
                places[place].append((name, occurrence))
    return places


def _never_run(text: str) -> list[Place]:
    found: list[ast.expr | ast.stmt | None] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            found += node.body
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)) for node in found if node
    ]


def _runs(text: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _once(old: str, new: str) -> tuple[str, str] | None:
    """Return the changed lines of both texts, with as many lines around them as it takes to stand once in the old one."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    codes = [
        code
        for code in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if code[0] != "equal"
    ]
    if not codes:
        return None
    first, last, other_last = codes[0][1], codes[-1][2], codes[-1][4]
    for around in range(len(before)):
        begin, end = max(0, first - around), last + around
        text = "".join(before[begin:end])
        if old.count(text) == 1:
            return text, "".join(after[begin : other_last + around])
    return None
