"""What a recipe says of its data: one source, or several mixed, and what becomes of their rows (`data:`)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from tasks.config import NOT_KEYED, StageConfig
from tasks.errors import ConfigError
from tasks.text.columns import Nulls, text_columns
from tasks.text.mixture import Strategy

_NAME = re.compile(r"[\w-]+")
Split = Literal["train", "validation", "test"]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class SourceConfig(StageConfig):
    """source: a folder with one file per split, a glob, a file, a URL, a hub name, or `builtin:stdlib`; name: the hub
    dataset's configuration, or the built-in corpus's view (`packages`, `questions`); revision: of a hub name;
    format: when file names don't tell; splits: ours -> a split's name or file at the source.

    text: the column or columns to classify; label: a column, or a rule such as `rating >= 4`; labels: names by id, when
    the data does not tell them; columns: further ones to keep, ours -> theirs (all, when nothing is named)."""

    source: Annotated[str | None, NOT_KEYED] = None
    name: Annotated[str | None, NOT_KEYED] = None
    revision: Annotated[str | None, NOT_KEYED] = None
    format: Annotated[Literal["parquet", "csv", "tsv", "jsonl", "arrow", "txt"] | None, NOT_KEYED] = None
    splits: Annotated[dict[Split, str], NOT_KEYED] = Field(default_factory=dict)
    text: str | tuple[str, ...] | None = None
    label: str | None = None
    labels: tuple[str, ...] | None = None
    columns: dict[str, str] = Field(default_factory=dict)

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
    """One of a mixture. weight: its share of train; text: its columns that are `data.text`, in that order; label, labels,
    columns: its own, where they are not `data`'s (of `columns`, name by name)."""

    weight: PositiveFloat | None = None


class DataConfig(SourceConfig):
    """mix: several sources by names of your choice, instead of `source`; stopping_strategy: see `tasks.text.mixture`.

    split: fractions of train that make missing splits; stratify: by label, exactly; limit: rows a split, a seeded sample;
    dedupe: drop rows of train whose text repeats an earlier one (whatever its label: the first stays) or stands in another
    split; nulls: what becomes of rows whose text or label is null or blank."""

    mix: dict[str, MixedSource] | None = None
    stopping_strategy: Strategy = "first_exhausted"
    split: dict[Literal["validation", "test"], Fraction] = Field(default_factory=dict)
    split_seed: NonNegativeInt = 0
    stratify: bool = False
    limit: PositiveInt | dict[Split, PositiveInt] | None = None
    shuffle_seed: NonNegativeInt = 0
    dedupe: bool = False
    nulls: Nulls = "error"

    @model_validator(mode="after")
    def _fits_together(self) -> DataConfig:
        if sum(self.split.values()) >= 1:
            raise ValueError("the fractions of `split` leave nothing to train on: their sum must be below 1")
        labelled = self.label is not None or any(one.label for one in (self.mix or {}).values())
        if self.labels is not None and not labelled:
            raise ValueError("`labels` names what `label` holds: set `label` too")
        if self.stratify and not labelled:
            raise ValueError("`stratify` needs a label to go by: set `label`, or leave `stratify` out")
        return self

    @model_validator(mode="after")
    def _one_or_a_mixture(self) -> DataConfig:
        if self.mix is None:
            if self.source is None:
                raise ValueError("`source` is missing: set it, or name several in `mix`")
            return self
        outside = [name for name in ("source", "name", "revision", "format", "splits") if getattr(self, name)]
        if outside:
            raise ValueError(f"`{outside[0]}` is each source's own in a mixture: set it in `mix`, and to null here")
        if len(self.mix) < 2:
            raise ValueError("`mix` needs two sources or more: one is `source`")
        strange = [name for name in self.mix if not _NAME.fullmatch(name)]
        if strange:
            raise ValueError(f"mix.{strange[0]}: names of sources are made of letters, digits, `_` and `-`")
        lacking = [name for name, one in self.mix.items() if one.source is None]
        if lacking:
            raise ValueError(f"mix.{lacking[0]} has no `source`")
        unweighted = [name for name, one in self.mix.items() if one.weight is None]
        if 0 < len(unweighted) < len(self.mix):
            raise ValueError(f"mix.{unweighted[0]} has no `weight`: give all sources one, or none")
        return self

    @property
    def weights(self) -> dict[str, float] | None:
        found = {name: one.weight for name, one in sorted((self.mix or {}).items()) if one.weight is not None}
        return found or None

    def sources(self) -> dict[str, SourceConfig]:
        """Each source's own settings, by name; one that stands alone has the name ""."""
        return {name: self._filled(name, one) for name, one in sorted(self.mix.items())} if self.mix else {"": self}

    def _filled(self, name: str, one: MixedSource) -> SourceConfig:
        label = one.label or self.label
        texts = self.texts
        theirs = (one.text,) if isinstance(one.text, str) else (one.text or texts)
        if len(theirs) != len(texts):
            raise ConfigError(
                f"data.mix.{name}.text names {len(theirs)} columns, data.text {len(texts)}",
                "name each one's counterpart",
            )
        renamed = {ours: column for ours, column in zip(texts, theirs, strict=True) if ours != column}
        filled = {"columns": {**self.columns, **one.columns, **renamed}, "text": texts, "label": label}
        return one.model_copy(update={**filled, "labels": one.labels or self.labels})

    @property
    def texts(self) -> tuple[str, ...]:
        """Our names of the text columns."""
        mixed = (self.mix or {}).values()
        label = self.label or next((one.label for one in mixed if one.label), None)
        if self.text is None and any(one.text for one in mixed):
            return ("text",)
        return text_columns(self.text, label, self.columns)
