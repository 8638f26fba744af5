"""What torch.compile made in precompile is there in train."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from tests.training.run_stage import files_of, run_stage, trained_with
from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.config import graph_params, keyed_params
from trnflow.tasks.errors import CompileError
from trnflow.tasks.precompile import precompile
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.graphs.compile_cache import cache_file, warn_of_misses

COMMON: dict[str, Any] = {"engine": "native", "global_batch": 8, "max_steps": 2, "compile": True, "compile_cache": True}


@pytest.mark.parametrize(
    ("is_cached", "others", "said"), [(True, [0, 3], "compiled 7 graphs"), (True, [-2, -2], ""), (False, [0, 3], "")]
)
def test_graphs_that_any_rank_compiled_are_counted(
    is_cached: bool, others: list[int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", 2)
    warned: list[str] = []
    world: Any = SimpleNamespace(gather=lambda misses: [misses + more for more in others])
    out: Any = SimpleNamespace(warn=warned.append)
    warn_of_misses(TrainConfig(**COMMON | {"compile_cache": is_cached}), world, out)
    assert [said in text for text in warned] == [True] * bool(said)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"method": "lora"},
        {"devices": 2},
        {"devices": 2, "zero1": True},
        {"devices": 2, "fsdp": True, "remat": True, "micro_batch": 2},
    ],
    ids=str,
)
def test_train_compiles_nothing_that_precompile_did(fields: dict[str, Any], tmp_path) -> None:
    pytest.importorskip("setuptools", reason="torch.compile needs setuptools")
    config = TrainConfig(**COMMON, **fields)
    inputs = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed")}
    graphs = run_stage(precompile, config, tmp_path / "graphs", **inputs).artifact
    assert all(cache_file(graphs.path, rank).stat().st_size > 1000 for rank in range(config.devices))
    found = run_stage(trained_with, config, tmp_path / "with", **inputs, graphs=graphs)
    assert found.figures["fxgraph_cache_hit"] > 0
    assert found.figures["fxgraph_cache_miss"] == found.figures["built"] == 0
    assert not found.said("warn")  # which counts the misses of all ranks
    alone = config.model_copy(update={"compile_cache": False})
    without = run_stage(trained_with, alone, tmp_path / "without", **inputs, graphs=graphs)
    assert without.figures["built"] > 0
    assert files_of(found.artifact) == files_of(without.artifact) and found.artifact.meta == without.artifact.meta
    if fields == {"devices": 2}:
        check_foreign_caches(config, graphs, inputs, tmp_path)


def check_foreign_caches(config: TrainConfig, graphs: Input, inputs: dict[str, Any], folder) -> None:
    """A cache that torch can't use is a miss that is said; of another mesh it is refused."""
    for rank in range(config.devices):
        cache_file(graphs.path, rank).write_bytes(b"of another torch")
    found = run_stage(trained_with, config, folder / "foreign", **inputs, graphs=graphs)
    (said,) = found.said("warn")
    misses = found.figures["fxgraph_cache_miss"]
    assert misses > 0 and said.startswith(f"torch.compile compiled {2 * misses} graphs that precompile's cache lacks")
    with pytest.raises(CompileError, match="and precompile listed it as"):
        other = config.model_copy(update={"devices": 1})
        run_stage(trained_with, other, folder / "mesh", **inputs, graphs=graphs)


def test_it_is_asked_for_and_keys_precompile_alone() -> None:
    on, off = TrainConfig(engine="native", compile=True, compile_cache=True), TrainConfig(engine="native", compile=True)
    assert keyed_params(on) == keyed_params(off) and graph_params(on) != graph_params(off)
    with pytest.raises(ValidationError, match="set compile=true"):
        TrainConfig(engine="native", compile_cache=True)
