"""What is chosen for memory on GPUs that are planted: activation checkpointing if one row needs it, FSDP if the state does."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnflow.flows.recipes import hardware
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import context_of, open_store
from trnflow.flows.runner.memory_check import fit_to_machine
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.system.gpus import Gpu, Usable
from trnflow.tasks.training.memory.trace_process import _trace

RECIPE = """
data: {source: rows.jsonl, text: text}
format: {task: text}
model:
  config: {model_type: llama, hidden_size: 512, num_hidden_layers: 12, num_attention_heads: 8, num_key_value_heads: 8,
    intermediate_size: 2048, max_position_embeddings: 2048}
tokenize: {train: {kind: bpe, vocab_size: 8192}, max_length: 2048}
pack: {strategy: bfd, chunk_length: 2048}
train: {global_batch: 8, dtype: float32}
"""


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return what is chosen for `count` GPUs of so many GiB."""
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    (tmp_path / "own.yaml").write_text(RECIPE)

    def choose(gib: float, count: int, trace=_trace) -> settings.Recipe:
        card = Gpu("NVIDIA A10G", "GPU-1", int(gib * 2**30), (8, 6))
        monkeypatch.setattr(hardware, "find_gpus", lambda **variables: Usable((card,) * count, driver="570"))
        recipe = settings.load(str(tmp_path / "own.yaml"))
        context = context_of(recipe, open_store(recipe))
        model = context.resolver.ask_once(model_source, recipe.model)
        return fit_to_machine(recipe, model, context.store.memo, trace)

    return choose


@pytest.mark.slow
def test_each_is_chosen_only_where_it_is_needed(chosen) -> None:
    def settings_for(gib: float, count: int) -> tuple[bool, bool]:
        train = chosen(gib, count).train
        return bool(train.remat), train.fsdp

    # the weights' state takes 1.5 GiB, the activations of a row 1.8
    assert [settings_for(gib, 1) for gib in (24, 2.5, 1)] == [(False, False), (True, False), (False, False)]
    assert [settings_for(gib, 8) for gib in (24, 2.5, 1.3)] == [(False, False), (True, False), (True, True)]
    assert chosen(2.5, 1).machine.endswith("; train.remat=true, for memory")


def test_without_a_measurement_nothing_is_chosen(chosen) -> None:
    assert not chosen(1, 1, trace=None).train.remat
