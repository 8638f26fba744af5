"""Stage `answer`: predict one row with a finished model, as `trnflow predict` does."""

from __future__ import annotations

import json

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.data.tables import rows_of
from trnflow.tasks.kinds.preference import CHOSEN, PROMPT
from trnflow.tasks.kinds.reward import ANSWER
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.system.json_numbers import loads
from trnflow.tasks.system.model_process import model_environ


class AnswerConfig(StageConfig):
    """Settings of `answer`: there are none."""


def environ(config: AnswerConfig) -> dict[str, str]:
    """Return the variables that the stage's process has beside the flow's."""
    return model_environ()


@stage(kind="answer", environ=environ)
def answer(config: AnswerConfig, weights: Input, rows: Input, out: Workdir, code: Source | None = None) -> Meta:
    """Write the prediction for the first row of train to `answer.json`."""
    import pyarrow.parquet as pq

    from trnflow.tasks.prediction.predict import open_model, predictions

    row = rows_of(pq.read_table(rows.path / "train.parquet").slice(0, 1))[0]
    row |= {name: loads(row[name]) for name in rows.meta.get("nested", []) if row.get(name) is not None}
    said = row.setdefault(ANSWER, row.get(CHOSEN))  # a reward model reads one answer of a pair
    model = open_model(weights.path, weights.kind, weights.meta, code)
    if PROMPT in model.shape.columns and row.get(PROMPT) is None:
        row[PROMPT] = said[:-1] if isinstance(said, list) else said  # whole conversations hold their prompt
    (predicted,) = predictions(model, [("row 1", row)], 8)
    (out.path / "answer.json").write_text(json.dumps(predicted), encoding="utf-8")
    return {}
