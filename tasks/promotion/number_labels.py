"""Stage `number_labels`: turn frozen rows into rows with the label ids of one model."""

from __future__ import annotations

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.data.tables import write_rows
from trnflow.tasks.errors import DataError
from trnflow.tasks.promotion.freeze_rows import ROW_ID, SPLIT
from trnflow.tasks.stage import Workdir, stage


class NumberLabelsConfig(StageConfig):
    """Settings of the stage `number_labels`, which writes the frozen rows with a model's label ids."""

    labels: tuple[str, ...] | None
    """The model's labels by id; null for a language model."""


@stage(kind="rows")
def number_labels(config: NumberLabelsConfig, frozen: Input, out: Workdir) -> Meta:
    """Write the frozen rows as load_data writes a split: without `row_id`, for a classifier with `label: int64`.

    Returns metadata as load_data does. Raises DataError when the frozen rows have other labels than the model.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    labels = list(config.labels) if config.labels is not None else None
    if labels is not None:
        _check_labels(frozen.meta["labels"], labels)
    table = pq.read_table(frozen.path / f"{SPLIT}.parquet").drop_columns([ROW_ID])
    counts: Meta = {}
    if labels is not None:
        ids = [labels.index(name) for name in table.column("label").to_pylist()]
        table = table.set_column(table.column_names.index("label"), "label", pa.array(ids, pa.int64()))
        counts = {"label_counts": {SPLIT: {name: ids.count(number) for number, name in enumerate(labels)}}}
    rows = write_rows([table], table.schema, out.path / f"{SPLIT}.parquet", lambda done: None)
    return {
        "splits": {SPLIT: rows},
        "columns": frozen.meta["columns"],
        "text": frozen.meta["text"],
        "labels": labels,
        "nested": frozen.meta["nested"],
        **counts,
    }


def _check_labels(frozen: list[str] | None, model: list[str]) -> None:
    """Raise DataError unless both have the same labels, in any order."""
    if frozen is None:
        raise DataError(
            "the frozen rows have no labels, and the model is a classifier", "`trnflow freeze` the present data"
        )
    if sorted(frozen) != sorted(model):
        extra = sorted({*frozen} ^ {*model})
        raise DataError(
            f"the frozen rows have other labels than the model: {', '.join(extra[:5])} {'are' if len(extra) > 1 else 'is'} "
            f"in one of them only ({len(frozen)} labels are frozen, the model has {len(model)})",
            "compare models of one task; after a change of labels, `trnflow freeze` the recipe again",
        )
