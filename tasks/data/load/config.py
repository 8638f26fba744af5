"""The recipe's section `data`: one source or a mixture of several, and how their rows are chosen."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from trnflow.tasks.config import (
    BOUND,
    NOT_KEYED,
    REACHES_OUT,
    SOURCE,
    WHEN_SET,
    Hook,
    Positive,
    PositiveCount,
    Seconds,
    Seed,
    StageConfig,
)
from trnflow.tasks.data.texts import in_order
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.sources.data_files import FORMATS, MOST_GROWTH

_NAME = re.compile(r"[\w-]+")
Split = Literal["train", "validation", "test"]
Nulls = Literal["error", "drop"]
Strategy = Literal["first_exhausted", "all_exhausted"]
if TYPE_CHECKING:
    Format = str
else:
    Format = Literal[tuple(dict.fromkeys(FORMATS.values()))]
Fraction = Annotated[float, Field(gt=0, lt=1)]
AUTOMATIC = {"test": 0.1}
"""What is made where `split` is not set and the data has neither validation nor test."""
NO_TEST_SPLIT = "the data has no test split: 10 % of the rows of train, chosen by a hash, become one (data.split)"


class SourceConfig(StageConfig):
    """Where rows come from, and which of their columns are used."""

    source: Annotated[str | None, NOT_KEYED, SOURCE] = None
    """The data: a folder with one file per split, a glob, a file, a URL, a name on the Hugging Face hub, or a built-in
    corpus (`builtin:stdlib`, and `tickets`, `questions`, `passages`, `triplets`, `chats` of shipped recipes). Required
    unless `mix` names several sources."""
    name: Annotated[str | None, NOT_KEYED] = None
    """The configuration of a hub dataset, or the view of the built-in corpus (`packages` or `questions`)."""
    revision: Annotated[str | None, NOT_KEYED] = None
    """The branch, tag or commit of a hub dataset. Default: its main branch."""
    format: Annotated[Format | None, NOT_KEYED] = None
    """The format of the files, where their names do not show it."""
    splits: Annotated[dict[Split, str], NOT_KEYED, SOURCE] = Field(default_factory=dict)
    """The name or file at the source of each split, such as `{test: held-out.csv}`. Splits that are not named here are
    found by their own names."""
    text: str | tuple[str, ...] | None = None
    """The column, or the list of columns, that holds the text. Default: the column `text`, where there is a label."""
    label: str | None = None
    """The column of the label, or a rule such as `rating >= 4`, which makes two labels."""
    labels: tuple[str, ...] | None = None
    """The names of the labels, in the order of their ids. Default: the names that the data gives, else the label's
    values, sorted."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Further columns to keep: our name of the column, then its name at the source. Default: all columns, when no
    column is named anywhere."""

    @field_validator("format", mode="before")
    @classmethod
    def _common_names(cls, value: Any) -> Any:
        return (
            {"json": "jsonl", "text": "txt", "ndjson": "jsonl"}.get(value, value) if isinstance(value, str) else value
        )

    @field_validator("labels")
    @classmethod
    def _names_are_names(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (len(set(value)) != len(value) or len(value) < 2):
            raise ValueError("`labels` needs at least two names, each once")
        return value


class MixedSource(SourceConfig):
    """A source of a mixture; its settings replace those of `data`."""

    weight: Positive | None = None
    """The share of this source in the rows of train, relative to the other weights. Default: all rows of each
    source."""


class DataConfig(SourceConfig):
    """Settings of `load_data`: one source or a mixture of several, and how their rows are chosen."""

    make: Annotated[Hook | None, NOT_KEYED] = None
    """A function of yours that gives the rows, `package.module:name`, instead of `source`. It gets `arguments` and the name
    of a split, and returns the split's rows as dicts, or None where there is no such split (docs/own_code.md)."""
    version: Annotated[str | None, NOT_KEYED] = None
    """The state of what `make` reads, such as a date or a snapshot's name. Another version loads the rows anew."""
    arguments: Annotated[dict[str, Any], NOT_KEYED] = Field(default_factory=dict)
    """What `make` gets, such as a query. Other arguments load the rows anew."""
    variables: Annotated[tuple[str, ...], NOT_KEYED, REACHES_OUT] = ()
    """The names of environment variables that `make` gets, such as a database's password. Their values are in no key."""
    row_seconds: Annotated[Seconds, NOT_KEYED] = 60.0
    """The seconds that `make` may take until the next row."""
    mix: dict[str, MixedSource] | None = None
    """Several sources by names of your choice, instead of `source`. Each takes the settings of a source, and a
    `weight`."""
    stopping_strategy: Strategy = "first_exhausted"
    """When a weighted mixture ends: `first_exhausted` repeats no row, `all_exhausted` uses every row and repeats rows
    of smaller sources."""
    split: dict[Literal["validation", "test"], Fraction] | None = None
    """The fraction of train from which a missing split is made, such as `{validation: 0.1, test: 0.1}`. A row's split
    follows from a hash of its text. Default: `{test: 0.1}` for data that has neither validation nor test, else none."""
    split_seed: Seed = 0
    """The seed of `split`. Another seed puts other rows into the made splits."""
    split_by: Annotated[str | None, WHEN_SET] = None
    """The column whose values stay together in the made splits, such as an author. Default: each text by itself; of task
    `reranker` the query."""
    stratify: bool = False
    """Whether the made splits hold the same share of each label as train, to the row."""
    limit: PositiveCount | dict[Split, PositiveCount] | None = None
    """The largest number of rows of each split, or of named splits. The rows are a random sample by `shuffle_seed`.
    Default: all rows."""
    shuffle_seed: Seed = 0
    """The seed of the sample that `limit` takes."""
    ignore: Annotated[tuple[str, ...] | None, NOT_KEYED] = None
    """Columns, and fields of messages such as `messages.id`, of which `plan` and `run` do not say that nothing reads them.
    Where it is set, as `new` sets it, they also name other columns that `text`, `label` and `columns` leave out, so that a
    new column of the source is seen."""
    dedupe: bool = False
    """Whether to drop rows of train whose text repeats an earlier row of train or stands in another split."""
    nulls: Nulls = "error"
    """What happens to rows whose text or label is missing or blank, or that hold a NUL byte: `error` stops and names the
    first, `drop` drops and counts them."""

    max_cell_mb: Annotated[Positive, NOT_KEYED, BOUND] = 20
    """The most megabytes of a line or of a cell. A longer one stops the run with its place."""
    max_growth: Annotated[Positive, NOT_KEYED, BOUND] = MOST_GROWTH
    """How many times its size a file of 64 MiB or more of rows may grow when it is unpacked or decoded: gzip and others, zip,
    Parquet, Arrow. Raise it for tables that repeat long texts. More stops the run."""

    @model_validator(mode="after")
    def _fits_together(self) -> DataConfig:
        if sum((self.split or {}).values()) >= 1:
            raise ValueError("the fractions of `split` leave nothing to train on: their sum must be below 1")
        labelled = self.label is not None or any(source.label for source in (self.mix or {}).values())
        if self.labels is not None and not labelled:
            raise ValueError("`labels` is set without `label`: set `label` to the column of the labels")
        if self.stratify and not labelled:
            raise ValueError("`stratify` needs a label to go by: set `label`, or leave `stratify` out")
        if self.stratify and self.split_by:
            raise ValueError("`stratify` and `split_by` both say how the splits are made: leave one out")
        return self

    @model_validator(mode="after")
    def _one_or_a_mixture(self) -> DataConfig:
        if self.make and (self.source or self.mix):
            raise ValueError("`make` and `source` or `mix` both give rows: leave one out, or set it to null")
        if self.mix is None:
            if self.source is None and self.make is None:
                raise ValueError("`source` is missing: set it, or name several in `mix`")
            return self
        outside = [name for name in ("source", "name", "revision", "format", "splits") if getattr(self, name)]
        if outside:
            raise ValueError(
                f"`{outside[0]}` can't be set for a whole mixture: set it for each source in `mix`, and to null here"
            )
        if len(self.mix) < 2:
            raise ValueError("`mix` needs two sources or more: for one, set `source` instead")
        strange = [name for name in self.mix if not _NAME.fullmatch(name)]
        if strange:
            raise ValueError(f"mix.{strange[0]}: names of sources are made of letters, digits, `_` and `-`")
        lacking = [name for name, source in self.mix.items() if source.source is None]
        if lacking:
            raise ValueError(f"mix.{lacking[0]} has no `source`")
        unweighted = [name for name, source in self.mix.items() if source.weight is None]
        if 0 < len(unweighted) < len(self.mix):
            raise ValueError(f"mix.{unweighted[0]} has no `weight`: give all sources one, or none")
        return self

    def shares(self, splits: Collection[str]) -> dict[str, float]:
        """Return {split: fraction of train} of the splits to make where a source lacks them. splits: that the data has."""
        if self.split is None:
            return {} if {"validation", "test"} & {*splits} else AUTOMATIC
        # a stage gets names sorted; made in this order, splits have the rows that they had before
        shares = {str(name): share for name, share in self.split.items()}
        return {name: shares[name] for name in in_order(shares)}

    def made(self, splits: Collection[str]) -> dict[str, float]:
        """Return what of `shares` no setting asks for. splits: that the data has."""
        return self.shares(splits) if self.split is None else {}

    @property
    def weights(self) -> dict[str, float] | None:
        """{source: share of train's rows}, or None."""
        weights = {
            name: source.weight for name, source in sorted((self.mix or {}).items()) if source.weight is not None
        }
        return weights or None

    def reading(self, pair: str | None, *, queries: bool) -> DataConfig:
        """Return a copy that reads the column `pair` as a text, too. queries: rows of equal first texts go to the same split."""
        if pair is None:
            return self
        texts = self.texts or ("text",)
        by = next((name for name in texts if name != pair), None) if queries else None
        return self.model_copy(
            update={"text": texts if pair in texts else (*texts, pair), "split_by": self.split_by or by}
        )

    def keeping(self, columns: Collection[str]) -> DataConfig:
        """Return a copy that keeps these columns, too. Where no setting names columns, all are kept. Raises ConfigError."""
        if columns and self.label is not None:
            raise ConfigError(
                f"data.label makes one class of each row, and format.target learns {' and '.join(columns)}",
                "leave data.label and data.labels out (null), or set format.task: classification",
            )
        if not columns or not (self.columns or self.texts):
            return self
        return self.model_copy(update={"columns": {**{name: name for name in columns}, **self.columns}})

    def sources(self) -> dict[str, SourceConfig]:
        """{name: settings} of each source, sorted; without a mixture one named "". Raises ConfigError."""
        return (
            {name: self._filled(name, source) for name, source in sorted(self.mix.items())} if self.mix else {"": self}
        )

    def _filled(self, name: str, source: MixedSource) -> SourceConfig:
        label = source.label or self.label
        texts = self.texts
        theirs = (source.text,) if isinstance(source.text, str) else (source.text or texts)
        if len(theirs) != len(texts):
            raise ConfigError(
                f"data.mix.{name}.text names {len(theirs)} columns, data.text {len(texts)}",
                "name one column of this source for each column of data.text, in the same order",
            )
        renamed = {ours: column for ours, column in zip(texts, theirs, strict=True) if ours != column}
        filled = {"columns": {**self.columns, **source.columns, **renamed}, "text": texts, "label": label}
        return source.model_copy(update={**filled, "labels": source.labels or self.labels})

    @property
    def texts(self) -> tuple[str, ...]:
        """Our names of the text columns; () if no setting names one."""
        if self.text is not None:
            return (self.text,) if isinstance(self.text, str) else self.text
        sources = (self, *(self.mix or {}).values())
        is_labelled = any(source.label for source in sources) and (not self.columns or "text" in self.columns)
        return ("text",) if is_labelled or any(source.text for source in sources) else ()


@contextlib.contextmanager
def errors_name_source(name: str) -> Iterator[None]:
    """Let errors name `data.mix.<name>.text` instead of `data.text`; "" changes nothing."""
    try:
        yield
    except TrnflowError as error:
        own = re.compile(rf"\bdata\.({'|'.join(SourceConfig.model_fields)})\b") if name else None
        if own:
            error.message, error.fix = (own.sub(rf"data.mix.{name}.\1", text) for text in (error.message, error.fix))
            if f"data.mix.{name}" not in error.message:
                error.message = f"data.mix.{name}: {error.message}"
            error.args = (error.message,)
        raise
