"""The reference of pairs has a row for each chunk, whichever chunks a forward pass takes together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.training.toys import LLAMA, VOCABULARY, scratch, write_packed
from trnflow.tasks import compute_reference as module
from trnflow.tasks.compute_reference import compute_reference
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.config import TrainConfig

CHUNKS, LENGTH = 5, 16


def test_each_chunk_has_its_own_log_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(0).integers(3, VOCABULARY, (CHUNKS, LENGTH))
    segments = np.tile([1] * 8 + [2] * 8, (CHUNKS, 1))
    positions = np.tile([*range(8)] * 2, (CHUNKS, 1))
    columns = {"input_ids": ids, "labels": np.where(positions < 4, -100, ids), "segment_ids": segments}
    packed = write_packed(
        tmp_path / "packed", "preference", None, {"train": {LENGTH: {**columns, "position_ids": positions}}}
    )
    packed.meta["documents"] = 2
    config, found = TrainConfig(objective="dpo"), []
    for tokens in (LENGTH, CHUNKS * LENGTH):
        monkeypatch.setattr(module, "TOKENS", tokens)
        out = Workdir(tmp_path / f"{tokens}", tmp_path / "scratch", lambda event: None)
        out.path.mkdir()
        meta = compute_reference(config, scratch(**LLAMA), packed, out=out)
        assert meta == {"task": "preference", "splits": {"train": CHUNKS}}
        found.append(np.load(out.path / f"train/{LENGTH}.npy"))
    assert found[0].shape == (CHUNKS, 2) and (found[0] < 0).all()
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
