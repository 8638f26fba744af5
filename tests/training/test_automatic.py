"""The rule that chooses epochs, rate and weights of classes: its promises for any rows, the cases measured, the keys."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.training.toys import BERT, scratch
from trnflow.tasks.artifact import Artifact, Source
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.key_document import key_document
from trnflow.tasks.kinds.registry import KINDS
from trnflow.tasks.precompile import graph_inputs
from trnflow.tasks.stage import stage_of
from trnflow.tasks.train import train
from trnflow.tasks.training.automatic import Facts, chosen, open_settings, resolved, width_of
from trnflow.tasks.training.config import TrainConfig

AUTO: dict[str, Any] = {"epochs": "auto", "learning_rate": "auto", "class_weights": "auto"}
WITH_HEAD = [name for name, kind in KINDS.items() if kind.per_row and not kind.apart]
FACTS = st.builds(
    Facts,
    task=st.sampled_from([*KINDS]),
    rows=st.integers(1, 10**6),
    outputs=st.integers(0, 2000),
    width=st.none() | st.integers(8, 8192),
    pretrained=st.booleans(),
)
BATCHES = st.sampled_from([1, 8, 16, 32, 64])
METHODS = st.sampled_from(["full", "lora", "head"])


@given(FACTS, BATCHES, METHODS)
def test_every_choice_is_a_setting_that_a_recipe_could_have(known: Facts, batch: int, method: str) -> None:
    found = chosen(TrainConfig(**AUTO, global_batch=batch, method=method), known)
    assert open_settings(found) == [] and chosen(found, known) == found
    assert TrainConfig.model_validate(found.model_dump(mode="json")) == found
    assert found.class_weights == ("balanced" if known.task == "classification" else None)
    assert 3 <= found.epochs <= 20 and 5e-6 <= found.learning_rate <= 1e-3  # type: ignore[operator]


@given(FACTS.filter(lambda known: known.task in WITH_HEAD), BATCHES, st.integers(1, 10**5))
def test_there_are_enough_updates_unless_rows_are_few_and_never_more_passes_for_more_rows(
    known: Facts, batch: int, more: int
) -> None:
    config = TrainConfig(**AUTO, global_batch=batch)
    epochs = int(chosen(config, known).epochs)
    a_pass = math.ceil(known.rows / batch)
    each = 32 if known.task == "multi_label" else 16
    enough = max(200 if known.pretrained and known.outputs <= 2 else 300, each * known.outputs)
    assert epochs == 20 or epochs * a_pass >= enough
    assert epochs == 3 or (epochs - 1) * a_pass < enough  # and not a pass more
    assert chosen(config, known._replace(rows=known.rows + more)).epochs <= epochs


@given(FACTS, st.integers(1, 99), st.floats(1e-7, 1))
def test_numbers_of_the_recipe_stay(known: Facts, epochs: int, rate: float) -> None:
    own = TrainConfig(epochs=epochs, learning_rate=rate)
    assert chosen(own, known) == own
    half = chosen(TrainConfig(epochs=epochs, learning_rate="auto", class_weights={"a": 2.0}), known)
    assert half.epochs == epochs and half.learning_rate != "auto" and half.class_weights == {"a": 2.0}


CLASSES = Facts("classification", 500, 6, 384, pretrained=True)
CASES: dict[str, tuple[Facts, dict[str, Any], tuple[int, float]]] = {
    "emotion, 500 rows, MiniLM": (CLASSES, {}, (10, 3e-4)),
    "banking, 600 rows of 20 classes, MiniLM": (CLASSES._replace(rows=600, outputs=20), {}, (9, 3e-4)),
    "banking, 2,000 rows of 77 classes, MiniLM": (CLASSES._replace(rows=2000, outputs=77), {}, (10, 3e-4)),
    "two classes, 500 rows, MiniLM": (CLASSES._replace(outputs=2), {}, (7, 1e-4)),
    "two classes, BERT-base": (CLASSES._replace(outputs=2, width=768), {}, (7, 5e-5)),
    "two classes from nothing": (CLASSES._replace(outputs=2, pretrained=False), {}, (10, 1e-3)),
    "GoEmotions, 1,788 rows of 28 labels, MiniLM": (
        CLASSES._replace(task="multi_label", rows=1788, outputs=28),
        {},
        (8, 3e-4),
    ),
    "16,000 rows": (CLASSES._replace(rows=16000), {}, (3, 3e-4)),
    "100 rows": (CLASSES._replace(rows=100), {}, (20, 3e-4)),
    "BERT-base: its published rate": (CLASSES._replace(width=768), {}, (10, 5e-5)),
    "a large model": (CLASSES._replace(width=1024), {}, (10, 2e-5)),
    "LoRA": (CLASSES._replace(width=768), {"method": "lora"}, (10, 4e-4)),
    "a head alone": (CLASSES, {"method": "head"}, (10, 1e-3)),
    "from nothing": (CLASSES._replace(pretrained=False), {}, (10, 1e-3)),
    "a reranker": (CLASSES._replace(task="reranker", outputs=1), {}, (7, 5e-5)),
    "vectors": (CLASSES._replace(task="embedding", outputs=0), {}, (3, 2e-5)),
    "a language model": (Facts("causal_lm", 200, 0, 576, pretrained=True), {}, (3, 5e-5)),
    "a language model by LoRA": (Facts("causal_lm", 200, 0, 576, pretrained=True), {"method": "lora"}, (3, 2e-4)),
    "pairs of answers": (Facts("preference", 200, 0, 576, pretrained=True), {"objective": "dpo"}, (3, 5e-6)),
    "updates of the recipe's own": (CLASSES, {"max_steps": 40}, (3, 3e-4)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_choices_are_those_of_the_page(case: str) -> None:
    known, settings, numbers = CASES[case]
    found = chosen(TrainConfig(**AUTO, **{"global_batch": 16, **settings}), known)
    assert (found.epochs, found.learning_rate) == numbers


def test_a_loss_of_the_users_is_given_no_weights_that_nobody_asked_for() -> None:
    own = {"loss": "losses:focal", "class_weights": "auto"}
    assert chosen(TrainConfig(**own), CLASSES).class_weights is None
    assert chosen(TrainConfig(**{**own, "class_weights": "balanced"}), CLASSES).class_weights == "balanced"


def test_the_width_is_read_from_config_json_of_any_family() -> None:
    from transformers import AutoConfig

    for family, fields in {
        "bert": {"hidden_size": 96}, "distilbert": {"dim": 96}, "gpt2": {"n_embd": 96}, "t5": {"d_model": 96},
        "modernbert": {"hidden_size": 96}, "xlnet": {"d_model": 96}, "gemma3": {"text_config": {"hidden_size": 96}},
    }.items():  # fmt: skip
        config = AutoConfig.for_model(family, **fields)
        expected = config.get_text_config().hidden_size
        assert width_of({"pretrained": config.to_dict(), "overrides": {}}) == expected == 96, family
    assert width_of({"pretrained": {"hidden_size": 768}, "overrides": {"hidden_size": 64}}) == 64
    assert width_of({"pretrained": None, "overrides": {"model_type": "mine"}}) is None


def packed(rows: int) -> Artifact:
    meta = {
        "task": "classification", "lengths": [8], "labels": ["a", "b"], "rows": {"train": {"8": rows}}, "vocab_size": 100,
    }  # fmt: skip
    return Artifact("sha256:0", "packed", meta, ())


def test_the_key_holds_the_numbers_and_not_the_rule(tmp_path: Any) -> None:
    def key(rows: int, **settings: Any) -> dict[str, Any]:
        inputs: dict[str, Artifact | Source] = {"model": scratch(**BERT), "packed": packed(rows)}
        return dict(key_document(stage_of(train), TrainConfig(**settings, global_batch=16), inputs, Memo(tmp_path)))

    found = key(500, **AUTO)
    assert (found["params"]["epochs"], found["params"]["learning_rate"]) == (10, 1e-3)
    assert found == key(500, epochs=10, learning_rate=1e-3, class_weights="balanced")
    assert found != key(500, epochs=10, learning_rate=1e-3)
    assert key(16000, **AUTO)["params"]["epochs"] == 3
    assert not any("automatic" in module for module in found["code"])


def test_without_rows_nothing_is_chosen() -> None:
    config = TrainConfig(**AUTO)
    assert resolved(config, {"model": scratch(**BERT)}) is config
    assert open_settings(config) == [*AUTO]


def test_a_rate_for_another_batch_is_a_number() -> None:
    with pytest.raises(ValidationError, match="learning_rate is auto: set learning_rate, or leave learning_rate_batch"):
        TrainConfig(learning_rate="auto", learning_rate_batch=12)


def test_graphs_are_keyed_by_shapes_and_architecture_never_by_weights_or_rows() -> None:
    def keyed(digest: str = "one", weights: Any = None, **meta: Any) -> Any:
        model = scratch(**BERT)
        model = Source("model", {**model.identity, "weights": weights}, model.location)
        shapes = {"task": "classification", "lengths": [8], "vocab_size": 32, "labels": ["a", "b"], **meta}
        return graph_inputs(TrainConfig(), {"model": model, "packed": Artifact(digest, "packed", shapes, ())})

    assert keyed() == keyed("two", {"files": {}}) == keyed(labels=["c", "d"], rows={"train": {"8": 3}})
    changed = [keyed(lengths=[8, 16]), keyed(vocab_size=64), keyed(labels=["a"]), keyed(task="regression")]
    assert all(one != keyed() for one in changed)
