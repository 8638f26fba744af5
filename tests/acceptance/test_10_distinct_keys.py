"""10. A hundred thousand parameter sets of look-alikes: distinct values, distinct keys; equal values, equal keys anywhere."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.checkouts import copy_program
from trnflow.tasks.keys.canonical_json import digest_of

PROJECT = Path(__file__).resolve().parents[2]
COUNT = 100_000
SEED = 20261120
LEAVES = (
    0, 1, -1, 10, 2**53, 2**53 + 1, 10**400, True, False, None, 0.0, -0.0, 1.0, 10.0, 1e16, 5e-324, 1e-7, 0.1, 0.1 + 0.2,
    "", "0", "1", "1.0", "true", "True", "null", "None", "[]", "{}", '"', "\\", "\n", "é", "e\u0301", "\ud83d\ude00", "a,b",
)  # fmt: skip
NAMES = ("a", "b", "ab", "a.b", "a,b", '"', "lr", "lr1", "1", "", "A", "é")


def parameter_sets(order: int) -> Iterator[dict[str, Any]]:
    """The same sets for every `order`, their fields inserted in another one."""
    draw, shuffle = random.Random(SEED), random.Random(order)
    for _ in range(COUNT):
        yield _fields(draw, shuffle, 2)


def _fields(draw: random.Random, shuffle: random.Random, depth: int) -> dict[str, Any]:
    found = {draw.choice(NAMES): _value(draw, shuffle, depth) for _ in range(draw.randrange(5))}
    names = list(found)
    shuffle.shuffle(names)
    return {name: found[name] for name in names}


def _value(draw: random.Random, shuffle: random.Random, depth: int) -> Any:
    kind = draw.random()
    if depth == 0 or kind < 0.7:
        return draw.choice(LEAVES) if kind < 0.6 else draw.choice((draw.random, lambda: draw.randrange(100)))()
    if kind < 0.85:
        return _fields(draw, shuffle, depth - 1)
    return [_value(draw, shuffle, depth - 1) for _ in range(draw.randrange(4))]


def spelled(value: Any) -> Any:
    """The value with its types spelled out, hashable: equal exactly when values and types are."""
    if isinstance(value, dict):
        return ("dict", frozenset((name, spelled(item)) for name, item in value.items()))
    if isinstance(value, list):
        return ("list", *map(spelled, value))
    return (type(value).__name__, repr(value))


def keys_digest(order: int) -> str:
    digest = hashlib.sha256()
    for fields in parameter_sets(order):
        digest.update(digest_of(fields).encode())
    return digest.hexdigest()


def test_distinct_values_have_distinct_keys_and_equal_values_equal_ones() -> None:
    by_value: dict[Any, str] = {}
    for fields in parameter_sets(0):
        key = digest_of(fields)
        assert by_value.setdefault(spelled(fields), key) == key
    assert len(by_value) > 0.6 * COUNT
    assert len(set(by_value.values())) == len(by_value)


def test_keys_are_the_same_in_other_processes_hash_seeds_folders_and_for_other_users(tmp_path: Path) -> None:
    """The other process runs a copy of the code, elsewhere, and inserts fields in another order."""
    copy_program(tmp_path, "tests")
    program = "from tests.acceptance.test_10_distinct_keys import keys_digest, recipe_keys; print(keys_digest(7), *recipe_keys())"
    running = []
    for seed, user in (("1", "ada"), ("random", "grace")):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "USER": user, "LOGNAME": user, "HOME": str(tmp_path / user)}
        environ |= {
            "PYTHONPATH": str(tmp_path),
            "TZ": "Asia/Kathmandu",
            "LC_ALL": "C",
            "TRNFLOW_HOME": str(tmp_path / "h"),
        }
        command = [sys.executable, "-c", program]
        running.append(subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True))
    expected = " ".join((keys_digest(0), *recipe_keys()))
    assert [process.communicate()[0].strip() for process in running] == [expected] * 2


def recipe_keys() -> list[str]:
    """The part of the demo's keys that does not depend on data: code, parameters, environment."""
    from trnflow.flows import finetune
    from trnflow.flows.recipes import recipe as settings
    from trnflow.tasks.keys.code_closure import closure
    from trnflow.tasks.keys.hash_cache import Memo
    from trnflow.tasks.stage import stage_of

    recipe, memo = settings.load("demo"), Memo(Path(tempfile.mkdtemp()) / "memo.db")
    sections = (
        "data", "format", "tokenize", "pack", "train", "train", "train", "consolidate", "export", "evaluate",
    )  # fmt: skip
    stages = [stage_of(getattr(finetune, name)) for name in finetune.STAGES]
    return [
        digest_of(
            {
                "code_and_env": list(closure(stage.function.__module__, memo)),
                "params": stage.params(getattr(recipe, section)),
                "accel": stage.accel(getattr(recipe, section)),
            }
        )
        for stage, section in zip(stages, sections, strict=True)
    ]
