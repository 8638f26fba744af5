"""A new head begins where train's targets lie, and tensors without a place are named: `test_heads` has all families."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.toys import BERT, LLAMA, packed_lm, packed_targets, scratch
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_source import UNUSED
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.model.heads import begin_at_means, refuse_unused

NEW = ("classifier.weight", "classifier.bias")


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_the_bias_of_a_new_head_gives_the_means_and_its_weights_are_as_far_apart(task: str, tmp_path: Path) -> None:
    packed = packed_targets(tmp_path, task, ["joy", "anger"])
    before, built = (build(scratch(**BERT), packed, seed=0, weights=True) for _ in range(2))
    train = Split(packed, "train")
    begin_at_means(before, train)
    assert not before.model.classifier.bias.any(), "one that the weights have stays"
    begin_at_means(replace(built, lacking=NEW), train)
    targets = np.concatenate([train.read(at).targets for at in train.in_order(4)])
    bias, weight = built.model.classifier.bias.detach(), built.model.classifier.weight.detach()
    means = bias.sigmoid() if task == "multi_label" else bias
    np.testing.assert_allclose(means.numpy(), targets.mean(0), atol=0.01)
    spread = targets.std(0) if task == "regression" else np.ones(2)
    scale = weight.norm(dim=1) / before.model.classifier.weight.detach().norm(dim=1)
    np.testing.assert_allclose(scale.numpy(), spread, rtol=1e-4)


def test_a_tensor_without_a_place_is_named_unless_it_reads_images_or_is_a_head(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = build(scratch(**LLAMA), packed_lm(tmp_path), seed=0, weights=False).model
    source = scratch(**LLAMA)
    left_out = ["model.vision_tower.x.weight", "model.layers.0.rotary_emb.inv_freq", "score.weight", "classifier.bias"]
    refuse_unused(model, left_out, source)
    with pytest.raises(
        ModelError, match=r"hold 1 tensors that LlamaForCausalLM does not use, such as model\.layers\.9\.x"
    ):
        refuse_unused(model, [*left_out, "model.layers.9.x"], source)
    with pytest.raises(ModelError, match="weights of train.warm_start_from hold 1 tensors"):
        refuse_unused(model, ["model.layers.9.x"], replace(source, location={**source.location, "warm_start": "a"}))
    refuse_unused(model, ["model.layers.9.x"], replace(source, location={**source.location, UNUSED: True}))
