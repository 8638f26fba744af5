"""The file of the README's example: 500 rows of emotion."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from tests.conftest import shared_folder


def write_tweets(folder: Path) -> None:
    """Write tweets.csv into a folder."""
    rows = pd.read_parquet(shared_folder() / "data/emotion/train.parquet").sample(500, random_state=0)
    rows.rename(columns={"label_name": "emotion"})[["text", "emotion"]].to_csv(folder / "tweets.csv", index=False)
