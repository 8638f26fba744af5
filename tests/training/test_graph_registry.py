"""No graph runs that precompile did not list, and none is compiled after its first run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import CompileError
from trnflow.tasks.stage import write_json
from trnflow.tasks.training.graph_registry import GraphRegistry

INPUTS: list[Any] = [{"shape": [8, 16], "dtype": "int32"}]


def listed(folder: Path, *, allow: bool = False) -> GraphRegistry:
    write_json(folder / "graphs.json", {"graphs": [{"name": "train", "length": 16, "hash": "a" * 64}]})
    return GraphRegistry.from_artifact(Input(folder, "graphs", {}, ""), allow_unlisted=allow)


def test_a_graph_runs_as_precompile_listed_it(tmp_path: Path) -> None:
    registry = listed(tmp_path)
    registry.register("train", 16, "a" * 64, INPUTS)
    assert not registry.unlisted and registry.graphs["train", 16]["inputs"] == INPUTS


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (("train", 16, "b" * 64), "is bbbbbbbbbbbb and precompile listed it as aaaaaaaaaaaa"),
        (("train", 32, "a" * 64), "of length 32 is aaaaaaaaaaaa and precompile did not list it"),
        (("eval", 16, "a" * 64), "the graph eval of length 16 is aaaaaaaaaaaa and precompile did not list it"),
    ],
)
def test_another_graph_is_an_error_or_a_warning(graph: tuple[str, int, str], why: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=rf"{why} \(inputs int32\[8, 16\]\)"):
        listed(tmp_path).register(*graph, INPUTS)
    registry = listed(tmp_path, allow=True)
    registry.register(*graph, INPUTS)
    (told,) = registry.unlisted
    assert why in told


def run(registry: GraphRegistry, compiled: list[int], more: int, *, first: bool) -> None:
    with registry.executing("train", 16, first=first, compiles=lambda: compiled[0]):
        compiled[0] += more


def test_what_is_compiled_in_the_first_run_counts_and_later_is_a_defect() -> None:
    registry, compiled = GraphRegistry(), [5]
    run(registry, compiled, 2, first=True)
    seconds = registry.compile_seconds
    run(registry, compiled, 0, first=False)
    assert registry.compiled == 2 and registry.compile_seconds == seconds > 0
    with pytest.raises(CompileError, match="train of length 16 was compiled again after its first run"):
        run(registry, compiled, 1, first=False)


def test_what_is_compiled_beside_the_steps_is_a_defect() -> None:
    registry, compiled = GraphRegistry(), [0]
    run(registry, compiled, 1, first=True)
    compiled[0] += 1
    with pytest.raises(CompileError, match="something beside the steps was compiled"):
        run(registry, compiled, 0, first=False)
    allowing = GraphRegistry(allow_unlisted=True, counted=1)
    run(allowing, compiled, 1, first=False)
    assert allowing.compiled == 1
