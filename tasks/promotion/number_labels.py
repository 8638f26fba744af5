"""Stage `number_labels`: turn frozen rows, whose labels are names, into rows for one model, with the labels numbered as
this model numbers them. Frozen rows are the copy of test rows on which models are compared."""

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
    """Write the frozen rows (the fixed test rows on which models are compared) as load_data writes a split, so that a
    model can read them. `test.parquet` has the columns of the frozen rows except `row_id`; for a classifier, `label:
    int64` is the class's id in the model. If the config has no labels, the column `label` is not changed.

    frozen: the artifact of freeze_rows.

    Returns metadata as load_data does: splits {"test": number of rows}, columns, text (the text columns), labels
    (names by id, or null), nested (columns of lists or objects), and with labels label_counts {"test": {label: number
    of rows}}.

    Raises:
        DataError: the frozen rows have other labels than the model.
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
