"""The metadata of the artifacts, each fact named once. Type checkers and the check of stored artifacts read it: in no key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from trnflow.tasks.artifact import Meta

Task = str
"""A name in `trnflow.tasks.kinds.registry`."""
Counts = dict[str, int]
"""Rows by split, reason or another name."""


class SplitMeta(TypedDict):
    """What data stages say of splits."""

    splits: Counts
    """{split: rows, examples or token rows}."""
    dropped: Counts


class TaskMeta(TypedDict):
    """What a model learns. labels: by id."""

    task: Task
    labels: list[str] | None


class RowColumns(TypedDict):
    """The columns of rows."""

    columns: list[str]
    nested: NotRequired[list[str]]
    """Columns of lists or objects, as JSON text."""


class RowsMeta(RowColumns, SplitMeta):
    """Metadata of `load_data`."""

    text: list[str]
    """The text columns."""
    labels: list[str] | None
    """Class names by id."""
    duplicates: int
    """Rows of train whose text is in an earlier one."""
    leakage: Counts
    """{"train/test": rows of train whose text is in test}."""
    metrics: Counts
    made: NotRequired[list[str]]
    """Splits that are rows of the source's train."""
    label_counts: NotRequired[dict[str, Counts]]
    """{split: {label: rows}}."""
    sources: NotRequired[dict[str, Counts]]
    """{split: {source of a mixture: rows}}."""
    overlap: NotRequired[Counts]
    """{"a/b": rows of train of source a whose text is in train of b}."""
    left_out: NotRequired[list[str]]
    """Columns of the source that no setting names, where settings name columns."""


class FrozenMeta(RowColumns):
    """What `load_data` reads of the metadata of `freeze_rows`."""

    split: str


class FormattedRows(TypedDict):
    """How rows became texts."""

    settings: Meta
    text: list[str]
    columns: list[str]
    nested: list[str]
    own: NotRequired[dict[str, str]]
    """{module: hash, and `format.make`: the function} of the user's code that made the texts."""


class TextsMeta(TaskMeta, SplitMeta):
    """Metadata of `format_prompts`."""

    framed: bool
    """Whether a chat template wrote bos and eos."""
    templates: list[str]
    """The recipe's templates, in which a spelled special token counts."""
    rows: FormattedRows
    head: NotRequired[Meta]
    """`Kind.head` of rows whose texts are read apart."""
    metrics: NotRequired[Counts]
    unread: NotRequired[list[str]]
    """Columns of which no example is made, and fields of messages (`messages.id`) that the chat template does not read."""


class SpecialIds(TypedDict):
    """A tokenizer's ids."""

    vocab_size: int
    pad_id: int
    bos_id: int | None
    eos_id: int | None
    new_tokens: NotRequired[list[int]]
    """Of `tokenize.new_tokens`, ascending, one after the other."""


class EndToken(TypedDict):
    """A special token that ends answers of train. answers: how many."""

    id: int
    text: str
    answers: int


class EndsMeta(TypedDict, total=False):
    """How the answers of a language model's rows end."""

    ends: list[EndToken]
    """The most frequent first."""
    pads: list[int]
    """Ids of tokens for padding, that of the rows first."""
    cut_answers: Counts
    """{split: answers whose end is cut off}."""
    unended: Counts
    """{split: answers that should end, and that no special token ends}."""


class TokensMeta(SpecialIds, EndsMeta, TaskMeta, SplitMeta):
    """Metadata of `tokenize_text`."""

    tokens: Counts
    longest: int
    """Tokens of the longest row."""
    max_length: int
    overlong: Counts
    truncated: Counts
    unsupervised: Counts
    """{split: texts without a token to train on}."""
    examples: Meta
    """{kind: the first text of it}."""
    row_lengths: dict[str, Meta]
    """{split: percentiles and histogram}."""
    pair: NotRequired[bool]
    """Whether rows have two texts."""
    head: NotRequired[Meta]
    """`Kind.head` of rows whose texts are read apart."""
    metrics: dict[str, float]


class PackedMeta(TokensMeta):
    """Metadata of `pack_chunks`."""

    lengths: list[int]
    """Tokens of a chunk, ascending."""
    rows: dict[str, Counts]
    """{split: {"<length>": chunks}}."""
    real_tokens: Counts
    supervised_tokens: Counts
    left_out: Counts
    """{split: tokens in no chunk}."""
    strategy: str
    cut: Counts
    """{split: rows longer than any chunk}."""
    too_long_to_pack: NotRequired[Counts]
    documents: NotRequired[int]
    """Of pairs: a power of two, as many documents as a chunk has at most, for which engine xla compiles."""


class GraphName(TypedDict):
    """A graph of precompile's list. length: 0 for any."""

    name: str
    length: int
    hash: str


class GraphsMeta(TypedDict):
    """Metadata of `precompile`."""

    engine: str
    memory: Meta | None
    """Bytes on one device, by use."""
    micro_batch: int
    graphs: list[GraphName]


class TrainedMeta(TaskMeta):
    """What every form of a trained model says. lengths: tokens of a row, ascending."""

    lengths: list[int]


class CheckpointMeta(TrainedMeta):
    """Metadata of `train`."""

    method: str
    steps: int
    metrics: dict[str, float]
    data: str
    """Digest of the packed rows."""
    settings: Meta
    """For the model card."""
    curves: NotRequired[list[dict[str, float]]]
    """`TrainingState.curves`; absent in artifacts of earlier versions."""
    best_step: NotRequired[int]
    scratch: NotRequired[bool]
    """Whether training began without weights."""


class ModelMeta(TrainedMeta):
    """Metadata of `consolidate`."""

    parameters: int
    dtype: str
    preference: NotRequired[Meta]
    """The settings by which answers are rewarded (`preference_losses.Settings`)."""
    temperature: NotRequired[float]
    """What the logits of a classifier were divided by."""


class ExportedMeta(TrainedMeta):
    """Metadata of `export_neuron`."""

    target: str
    batch: int
    """Rows of a call."""
    dtype: str
    rows_compared: int
    max_difference: float | None
    """Of logits from PyTorch's."""
    metrics: NotRequired[dict[str, float]]


class ReferenceMeta(TypedDict):
    """Metadata of `compute_reference`. splits: pairs of answers."""

    task: Task
    splits: Counts


class EvaluationMeta(TypedDict):
    """Metadata of `evaluate_model`."""

    task: Task
    split: str
    metrics: dict[str, float | None]
    own: NotRequired[list[str]]
    """The names of the user's metrics, and of those of the harness."""
    notes: NotRequired[list[str]]


BY_STAGE: Mapping[str, type] = {
    "load_data": RowsMeta,
    "format_prompts": TextsMeta,
    "tokenize_text": TokensMeta,
    "pack_chunks": PackedMeta,
    "compute_reference": ReferenceMeta,
    "precompile": GraphsMeta,
    "train": CheckpointMeta,
    "consolidate": ModelMeta,
    "export_neuron": ExportedMeta,
    "evaluate_model": EvaluationMeta,
}
"""What the stages of the pipeline write. By kind would not do: rehearsals and parts make kinds of the same names."""
