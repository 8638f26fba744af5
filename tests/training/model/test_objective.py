"""The loss against PyTorch's own, and classes' weights against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.toys import packed_classes, packed_lm
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.losses import loss_sum
from trnflow.tasks.training.objective import class_weights, target_weight


def test_the_mean_is_pytorch_s() -> None:
    """Weighted classes and smoothed labels: summed over any parts of the batch, divided by the targets' weight."""
    torch.manual_seed(0)
    logits, targets = torch.randn(12, 3), torch.tensor([0, 1, 2, -100] * 3)
    weights = torch.tensor([0.5, 1.0, 3.0])
    theirs = torch.nn.functional.cross_entropy(logits, targets, weights, ignore_index=-100, label_smoothing=0.1)
    summed = sum(loss_sum(logits[part], targets[part], weights, 0.1) for part in (slice(0, 5), slice(5, 12)))
    torch.testing.assert_close(summed / weights[targets[targets >= 0]].sum(), theirs)


def test_balanced_is_scikit_learn_s(tmp_path) -> None:
    from sklearn.utils.class_weight import compute_class_weight

    packed = packed_classes(tmp_path)
    train = Split(packed, "train")
    labels = np.concatenate([open_chunks(packed, "train", n)["labels"][:] for n in (8, 16)])
    found = class_weights(TrainConfig(class_weights="balanced"), packed.meta, train)
    assert found == pytest.approx(compute_class_weight("balanced", classes=np.arange(3), y=labels))
    batch = train.read(next(train.in_order(20)))
    assert target_weight(batch, found) == pytest.approx(sum(found[label] for label in batch.targets))
    assert target_weight(batch, None) == batch.supervised == 20


def test_by_name(tmp_path) -> None:
    meta = packed_classes(tmp_path).meta
    assert class_weights(TrainConfig(class_weights={"green": 2}), meta, None) == (1.0, 2.0, 1.0)
    assert class_weights(TrainConfig(), meta, None) is None
    with pytest.raises(ConfigError, match="names 'gren', which is not a label of these rows") as caught:
        class_weights(TrainConfig(class_weights={"gren": 2}), meta, None)
    assert caught.value.fix == "did you mean green?"
    with pytest.raises(ConfigError, match="the task causal_lm has no classes"):
        class_weights(TrainConfig(class_weights="balanced"), packed_lm(tmp_path / "lm").meta, None)
