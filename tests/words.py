"""Measure the words of the code: `python -m tests.words` prints the table, `--list` the offenders too.

Code lines are lines that are neither docstring, comment nor blank; docstrings are those of modules, classes, functions
and fields. A gloss is a glossary word followed by brackets that begin with an article and explain it.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
FOLDERS = ("flows", "tasks")
VAGUE = {"found", "one", "done", "made", "said", "told", "item"}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Words:
    """What was counted. The lists hold `path:line name` of each offender.

    Attributes:
        modules: docstrings of modules with more than 60 words.
        longer: docstrings with more lines than the body of their function.
        private: docstrings of private functions with more than one line.
        glosses: explanations in brackets of a glossary word.
    """

    lines: int = 0
    code: int = 0
    words: int = 0
    comments: int = 0
    modules: list[str] = field(default_factory=list)
    longer: list[str] = field(default_factory=list)
    private: list[str] = field(default_factory=list)
    glosses: list[str] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    @property
    def words_per_code_line(self) -> float:
        return self.words / self.code

    @property
    def comments_per_thousand(self) -> float:
        return 1000 * self.comments / self.code

    @property
    def vague_percent(self) -> float:
        return 100 * sum(self.names[name] for name in VAGUE) / self.names.total()


def measure() -> Words:
    """Measure all modules of the project's packages."""
    words = Words()
    pattern = gloss_pattern()
    for folder in FOLDERS:
        for path in sorted((PROJECT / folder).rglob("*.py")):
            measure_module(path, pattern, words)
    return words


def gloss_pattern() -> re.Pattern[str]:
    """Return the pattern of an explained glossary word: `the record (the document that ...)`, also in the plural."""
    text = (PROJECT / "docs" / "glossary.md").read_text()
    words = [word.split(" (")[0] for word in re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE)]
    either = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(rf"(?<![\w`.])(?:{either})(?:s|es)? \((?:an?|the|what|which|whose) [^)]*\)", re.IGNORECASE)


def measure_module(path: Path, pattern: re.Pattern[str], words: Words) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    docstrings = list(docstrings_of(tree))
    taken = {line for node in docstrings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    comments = set(comment_lines(text))
    lines = text.splitlines()
    words.lines += len(lines)
    words.code += sum(bool(line.strip()) and n not in taken | comments for n, line in enumerate(lines, 1))
    words.comments += sum(not re.match(r"\s*#( fmt:| type:| ruff:|!)", lines[n - 1]) for n in comments)
    words.names.update(assigned_names(tree))
    for node in docstrings:
        plain = " ".join(str(node.value).split())
        words.words += len(plain.split())
        words.glosses += [f"{place(path)}:{node.lineno} {match[0]}" for match in pattern.finditer(plain)]
    for documented in ast.walk(tree):
        if isinstance(documented, Documented):
            measure_docstring(documented, place(path), words)


def measure_docstring(node: Documented, where: str, words: Words) -> None:
    docstring = docstring_of(node)
    if docstring is None:
        return
    height = (docstring.end_lineno or 0) - docstring.lineno + 1
    if isinstance(node, ast.Module):
        if len(str(docstring.value).split()) > 60:
            words.modules.append(where)
    elif not isinstance(node, ast.ClassDef):
        body = (node.body[-1].end_lineno or 0) - (docstring.end_lineno or 0)
        if height > body:
            words.longer.append(f"{where}:{node.lineno} {node.name}")
        if node.name.startswith("_") and not node.name.endswith("__") and height > 1:
            words.private.append(f"{where}:{node.lineno} {node.name}")


def docstrings_of(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield every text that stands alone as a statement: docstrings, and the texts below fields and constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def docstring_of(node: Documented) -> ast.Constant | None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first.value
    return None


def comment_lines(text: str) -> Iterator[int]:
    """Yield the numbers of lines that hold a comment alone."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            yield token.start[0]


def assigned_names(tree: ast.Module) -> Iterator[str]:
    """Yield each name that a statement, a comprehension or a parameter (but self and cls) assigns, each time."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg


def place(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def main() -> None:
    arguments = argparse.ArgumentParser(description="Measure the words of the code.")
    arguments.add_argument("--list", action="store_true", help="name each offender")
    listed = arguments.parse_args().list
    words = measure()
    print(f"{words.lines:8,} lines, of them {words.code:,} of code (neither docstring, comment nor blank)")
    print(f"{words.words_per_code_line:8.2f} docstring words a code line")
    print(f"{words.comments_per_thousand:8.1f} full-line comments per 1,000 code lines")
    print(f"{words.vague_percent:8.2f} % of assigned names are one of {', '.join(sorted(VAGUE))}")
    for title, offenders in (
        ("functions whose docstring is longer than their body", words.longer),
        ("private functions with a docstring of several lines", words.private),
        ("modules whose docstring has more than 60 words", words.modules),
        ("glosses in brackets of a glossary word", words.glosses),
    ):
        print(f"{len(offenders):8} {title}")
        print(*(f"         {offender}\n" for offender in offenders if listed), sep="", end="")


if __name__ == "__main__":
    main()
