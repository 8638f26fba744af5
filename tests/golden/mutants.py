"""Mutants of the code that were drawn by a seed, and which test kills each: `mutants.json`.

    python -m tests.golden.mutants                  # plant all again; 1 if one that was killed survives
    python -m tests.golden.mutants --alive --write  # those that no test kills; `--more`: nor one of `make test-more`
    python -m tests.golden.mutants --draw 300 --seed 1

The tests of a mutant are those that import or name its module by the fewest steps, up to SECONDS of each tier; the one that
killed it last comes first. A mutant that changes nothing that anybody could see has its reason in the file.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO

from tests import measuring, suite
from tests.golden.compare import PROJECT
from tests.golden.planting import FAST, MORE, Fault, checkout, first_failure, planted, why_not
from trnflow.flows.cli.main import GROUPS

TABLE = Path(__file__).with_name("mutants.json")
SECONDS = {FAST: 20.0, MORE: 100.0}
PLANTED_SEED = 2
"""Mutants of this seed are faults that have to be found, as those of planted.py."""


MODULE = re.compile(r"(trnflow|tests)(\.\w+)+(:\w+)?")
COMMANDS = {command: f"trnflow.flows.cli.{module}" for module, (commands, _) in GROUPS.items() for command in commands}
"""{command: its module, which `main` imports by name}."""


@dataclass
class Mutant:
    """A change of a module.

    Attributes:
        seed: of the draw.
        file: the module.
        old: text that stands in it exactly once.
        new: what replaces it.
        killed: the first test that fails; "" if none does, None before the mutant was planted.
        tier: "test" or "more", by which target that test runs.
        why: why nobody could see the change.
    """

    seed: int
    file: str
    old: str
    new: str
    killed: str | None = None
    tier: str = ""
    why: str = ""

    @property
    def fault(self) -> Fault:
        name = f"drawn: {self.file}: {' '.join(self.new.split())}"
        return Fault(name, self.file, self.old, self.new, "")


def mutants() -> list[Mutant]:
    return [Mutant(**fields) for fields in json.loads(TABLE.read_text())] if TABLE.exists() else []


def drawn_faults() -> list[Fault]:
    """The mutants of PLANTED_SEED as faults, each with the file of the test that kills it."""
    return [
        one.fault._replace(tests=one.killed.partition("::")[0].removeprefix("tests/"))
        for one in mutants()
        if one.seed == PLANTED_SEED and one.killed and one.killed.startswith("tests/")
    ]


def write(found: list[Mutant]) -> None:
    TABLE.write_text("[\n" + ",\n".join(json.dumps(asdict(one), ensure_ascii=False) for one in found) + "\n]\n")


def tests_of(file: str) -> list[str]:
    """The files of tests that import a module, that of its name first, then those by the fewest steps, those of its
    folder, the quickest."""
    table, users, seen, ring = measuring.measured(), _users(), {file}, [file]
    stem, mirror = Path(file).stem, Path("tests", file.partition("/")[2] if file.startswith("tasks/") else file).parent
    found: list[str] = []
    while ring:
        ring = sorted({user for one in ring for user in users[one]} - seen)
        seen |= {*ring}
        tests = (name for name in ring if Path(name).name.startswith("test_"))
        found += sorted(
            tests,
            key=lambda name: (stem not in name, Path(name).parent != mirror, table.get(name, measuring.File()).seconds),
        )
    # by however many steps
    found.sort(key=lambda name: Path(name) != mirror / f"test_{stem}.py")
    return found


@cache
def _users() -> dict[str, set[str]]:
    """{file: the files that import it}"""
    users: dict[str, set[str]] = defaultdict(set)
    for top in ("flows", "tasks", "tests"):
        for path in (PROJECT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                for name in _imported(node):
                    users[name].add(str(path.relative_to(PROJECT)))
    return users


def _imported(node: ast.AST) -> list[str]:
    """Return the files that a statement imports, or that a text in it names: as a module, or a command that a shell runs."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        names = [node.value.partition(":")[0]] if MODULE.fullmatch(node.value) else []
    elif isinstance(node, ast.Call) and (command := _first_text(node)) in COMMANDS:
        names = [COMMANDS[command]] if "shell" in ast.unparse(node.func).lower() else []
    else:
        return []
    # what `trnflow.__getattr__` imports
    names += ["trnflow.flows.python.recipe", "trnflow.flows.python.run"] if "trnflow" in names else []
    files = [name.removeprefix("trnflow.").replace(".", "/") for name in names]
    return [found for name in files for found in (f"{name}.py", f"{name}/__init__.py") if (PROJECT / found).exists()]


def _first_text(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def kill(mutant: Mutant, project: Path, *, more: bool) -> None:
    """Plant a mutant and write down the test that kills it, and its tier."""
    with planted(mutant.fault, project):
        known = [mutant.killed] if mutant.killed and mutant.killed.startswith("tests/") else []
        if known and first_failure(known, project, marks=f"({FAST}) or ({MORE})"):
            return
        mutant.killed, mutant.tier = "", ""
        for tier, marks in (("test", FAST), ("more", MORE))[: 1 + more]:
            tests = within(mutant.file, marks)
            if tests and (found := first_failure(tests, project, marks=marks, patience=300.0)):
                mutant.killed, mutant.tier = found, tier
                return


def within(file: str, marks: str) -> list[str]:
    """Files of tests of a module that take SECONDS together."""
    table, left, chosen = measuring.measured(), SECONDS[marks], []
    for name in tests_of(file):
        known = table.get(name, measuring.File(2.0))
        is_quick = suite.is_quick(name, known)
        quick, more = (known.seconds, 0.0) if is_quick else (0.0, known.seconds)
        more += known.all_seconds - known.seconds
        if is_quick if marks == FAST else more:
            left -= quick + 1 if marks == FAST else more
            if left < 0 and chosen:
                break
            chosen.append(name)
    return chosen


def plant(found: list[Mutant], commit: str, *, more: bool, file: IO[str]) -> None:
    """Plant mutants one after the other, say what came of each, and write it to a file."""
    with checkout(commit) as project:
        for one in found:
            begun, was = time.monotonic(), one.killed
            if why := why_not(one.fault, project):
                print(f"stale    {one.file}: {why}", file=sys.stderr)
                continue
            kill(one, project, more=more)
            outcome = one.tier or ("SURVIVES, was killed" if was else "survives")
            print(f"{outcome:8} {time.monotonic() - begun:4.0f} s  {one.fault.name}  {one.killed}", flush=True)
            print(json.dumps(asdict(one)), file=file, flush=True)


def in_jobs(found: list[Mutant], commit: str, *, more: bool, jobs: int) -> list[Mutant]:
    """Plant mutants in so many processes, and return them with their outcomes."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(job)) for job in range(jobs)]
        children = []
        for job, output in enumerate(outputs):
            children.append(os.fork())
            if children[-1] == 0:
                with output.open("w") as file:
                    plant(found[job::jobs], commit, more=more, file=file)
                os._exit(0)
        for child in children:
            os.waitpid(child, 0)
        return [Mutant(**json.loads(line)) for output in outputs for line in output.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="only those whose file and change hold one of these")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument(
        "--alive", action="store_true", help="only those that no test is known to kill, and no reason excuses"
    )
    parser.add_argument("--new", action="store_true", help="only those that were never planted")
    parser.add_argument("--more", action="store_true", help="let `make test-more` look for what survives `make test`")
    parser.add_argument("--write", action="store_true", help="write the outcomes to mutants.json")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--draw", type=int, metavar="NUMBER", help="draw so many more, and write the file")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    known = mutants()
    if options.draw:
        from tests.golden.draw import draw

        write([*known, *(Mutant(options.seed, *change) for change in draw(options.seed, options.draw))])
        return 0
    wanted = [one for one in known if not (options.alive and (one.killed or one.why))]
    wanted = [one for one in wanted if not (options.new and one.killed is not None)]
    wanted = [one for one in wanted if not options.texts or any(text in one.fault.name for text in options.texts)]
    after = {
        (one.file, one.old, one.new): one
        for one in in_jobs(wanted, options.commit, more=options.more, jobs=options.jobs)
    }
    revived = [
        one.fault.name for one in wanted if one.killed and not after.get((one.file, one.old, one.new), one).killed
    ]
    if options.write:
        write([after.get((one.file, one.old, one.new), one) for one in known])
    print(
        f"{sum(bool(one.killed) for one in after.values())} of {len(wanted)} killed; killed before, and now not: {revived}"
    )
    return int(bool(revived))


if __name__ == "__main__":
    sys.exit(main())
