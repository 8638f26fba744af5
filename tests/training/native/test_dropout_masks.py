"""Dropout's masks under tensor parallelism: each rank's own where it holds another part, else common; the same with remat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.parity import agree
from tests.training.run_stage import run_in_turn, run_stage
from tests.training.toys import BERT, LLAMA, first_rows, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, environ, ranks
from trnflow.tasks.training.choose_engine import make_engine
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.optim.optimizer import scalars

TP: dict[str, Any] = {"engine": "native", "devices": 2, "tensor_parallel_size": 2, "global_batch": 4, "threads": 1}
SP: dict[str, Any] = {**TP, "sequence_parallel": True}
PLACES = {
    "embeddings": "bert.embeddings.dropout",
    "attention": "bert.encoder.layer.0.attention.self",
    "residual": "bert.encoder.layer.0.attention.output.dropout",
    "last": "bert.encoder.layer.1.output.dropout",
    "classifier": "dropout",
}


@stage(kind="checkpoint", environ=environ, ranks=ranks)
def masks(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """What dropout made of it, by rank: {place: [steps]}, as lists of numbers.

    Queries and keys are 0 and values 1, so attention gives, of each head and position, the share of weights that were kept."""
    import torch

    from trnflow.tasks.training.choose_engine import join_ranks

    with join_ranks(config) as world:
        built = build(model, packed, seed=0, weights=True)
        for name, parameter in built.parameters().items():
            if ".attention.self." in name:
                torch.nn.init.constant_(parameter, 1.0 if name.endswith("value.bias") else 0.0)
        engine = make_engine(config, built, GraphRegistry(), None, world)
        found: dict[str, list[list[float]]] = {place: [] for place in PLACES}

        def note(place: str, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            kept = tensor if place == "attention" else tensor != 0
            found[place].append(kept.detach().float().flatten().tolist())

        for place, name in PLACES.items():
            layer = built.model.get_submodule(name)
            layer.register_forward_hook(lambda module, given, output, place=place: note(place, output))
        batch, _ = first_rows(packed, config.global_batch)
        for step in range(2):
            engine.train(batch, scalars(config, step, 2, batch.supervised)._replace(lr=0.0), seed=step)
        return {"ranks": world.gather(found)}


@pytest.mark.parametrize("layout", [TP, SP], ids=["tensor parallel", "sequence parallel"])
def test_ranks_draw_their_own_masks_where_they_hold_other_parts(layout: dict[str, Any], tmp_path: Path) -> None:
    packed = packed_classes(tmp_path / "packed", rows=8, lengths=[16])
    found = run_stage(masks, TrainConfig(**layout), tmp_path / "run", model=scratch(**BERT), packed=packed)
    one, other = found.artifact.meta["ranks"]
    split = {"attention", "residual", "last"} if "sequence_parallel" in layout else {"attention"}
    for place in PLACES:
        for step in range(2):
            assert len(set(one[place][step])) > 1, (place, "something was dropped")
            assert (one[place][step] != other[place][step]) == (place in split), (place, step)
        assert one[place][0] != one[place][1], (place, "another step draws other masks")
        assert other[place][0] != other[place][1], (place, "another step draws other masks")


def test_remat_draws_the_same_masks_again(tmp_path: Path) -> None:
    """Gradients and losses are those without remat, with dropout everywhere."""
    fields: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-2, "log_every": 1}
    configs = [TrainConfig(**layout, **fields, remat=remat) for layout in (TP, SP) for remat in (False, True)]
    inputs: dict[str, Any] = {
        "model": scratch(**BERT),
        "packed": packed_classes(tmp_path / "packed", rows=12, lengths=[16]),
    }
    plain, again, split, split_again = run_in_turn(configs, tmp_path / "runs", **inputs)
    agree(again, plain, weights=1e-6)
    agree(split_again, split, weights=1e-6)
    assert plain.curve("loss") != split.curve("loss")  # other masks


def test_remat_repeats_the_masks_of_lora(tmp_path: Path) -> None:
    lora = {"method": "lora", "lora": {"rank": 4, "dropout": 0.3, "targets": ["q_proj", "o_proj"]}}
    fields: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-2, "log_every": 1, **lora}
    configs = [TrainConfig(**layout, **fields, remat=remat) for layout in (TP, SP) for remat in (False, True)]
    inputs: dict[str, Any] = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed", rows=12)}
    plain, again, split, split_again = run_in_turn(configs, tmp_path / "runs", **inputs)
    agree(again, plain, weights=1e-6)
    agree(split_again, split, weights=1e-6)
