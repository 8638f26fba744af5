"""The config class of the stage format_prompts."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import field_validator, model_validator

from trnflow.tasks.config import NOT_KEYED, WHEN_SET, Hook, Seconds, StageConfig
from trnflow.tasks.data.format.templates import RESERVED
from trnflow.tasks.kinds.preference import CHOSEN
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.kinds.unpaired_preference import COMPLETION


class FormatConfig(StageConfig):
    """Settings of `format_prompts`: what text the model reads for each row, and which part of it is trained on."""

    task: Literal[
        "classification",
        "multi_label",
        "regression",
        "token_classification",
        "reranker",
        "embedding",
        "instruction",
        "chat",
        "text",
        "preference",
        "unpaired_preference",
    ] = "classification"
    """What a row becomes: `classification` (text and label), `multi_label` (text and any number of labels), `regression`
    (text and numbers), `token_classification` (words and their tags, or a text with spans), `reranker` (query, passage
    and relevance), `embedding` (texts that belong together), `instruction` (a question and its answer; only the answer is
    trained on), `chat` (a conversation; the assistant's turns are trained on), `text` (all of it is trained on),
    `preference` (a prompt with a chosen and a rejected answer, in columns of these names, as texts or messages) or
    `unpaired_preference` (a prompt, a completion and a label that is true for a desirable one; or the columns of pairs)."""
    target: Annotated[str | tuple[str, ...], WHEN_SET] = "label"
    """The column, or the list of columns, that `multi_label`, `regression` and `reranker` learn: one column of lists of
    labels (or of texts with commas between them), or a column of 0 and 1 for each label; columns of numbers; a relevance
    from 0 to 1. Of `token_classification` the column of tags, or without `words` of spans of characters."""
    labels: Annotated[tuple[str, ...] | None, WHEN_SET] = None
    """The names of the labels of `multi_label`, which rows give by name or by number from 0. Default: the labels that rows
    of train have, sorted; of several columns their names. Of `token_classification` the tags that rows give by number."""
    words: Annotated[str | None, WHEN_SET] = None
    """The column of the words that `token_classification` tags: a list in each row. Default: rows are texts with spans."""
    text_pair: Annotated[str | None, WHEN_SET] = None
    """The column of a second text, such as a hypothesis or a passage, for tasks that label rows. The tokenizer puts both into
    its own template of a pair, with token types where the model has them."""
    negative: Annotated[str | None, WHEN_SET] = None
    """The column of a third text of `embedding`: one that does not belong to the first."""
    score: Annotated[str | None, WHEN_SET] = None
    """The column of numbers by which `embedding` learns how alike the two texts of a pair are; of any range."""
    pooling: Annotated[Literal["mean", "cls"] | None, WHEN_SET] = None
    """How `embedding` makes one vector of a text's tokens: their `mean`, or that of the first one (`cls`). Default: as the
    model's own folder says, in sentence-transformers' files, else `mean`."""
    normalize: Annotated[bool, WHEN_SET] = True
    """Whether the vectors of `embedding` are made to have length 1."""
    separator: str = "\n"
    """The text between two columns, where classification joins several columns of `data.text`."""
    instruction: str = "instruction"
    """The column of an instruction."""
    context: str | None = "context"
    """The column of an instruction's context. Rows may lack it; null ignores it. In style `alpaca` it is `input` where
    rows have that and no `context`."""
    response: str = "response"
    """The column of the answer to an instruction."""
    messages: str = "messages"
    """The column of a conversation: a list of objects with `role` and `content`, or ShareGPT's `from` and `value`."""
    system: Annotated[str | None, WHEN_SET] = "system"
    """The column of a row's system prompt: of a conversation its first message, of an instruction in style `alpaca` the
    opening, of pairs of messages the prompt's first one. Rows may lack it; null leaves it alone. It is `system_prompt` where
    rows have that and no `system`."""
    history: Annotated[str | None, WHEN_SET] = "history"
    """The column of the rounds before an instruction, as Alpaca's style has it: a list of [instruction, response], whose
    responses are trained on, too (`turns`). Rows may lack it; null leaves it alone."""
    text: str = "text"
    """The column that task `text` trains on."""
    make: Annotated[Hook | None, NOT_KEYED] = None
    """A function of yours that makes what the model reads of a row, `package.module:name`, instead of columns and templates.
    It gets the row as a dict and returns a text, `{"text", "label"}`, `{"messages"}`, or None, which drops the row
    (docs/own_code.md)."""
    row_seconds: Annotated[Seconds, NOT_KEYED] = 10.0
    """The seconds that `make` may take for one row. A row that takes longer ends the run."""
    style: Literal["dolly", "alpaca"] = "dolly"
    """The headings around an instruction, its context and its answer: as in the Dolly or in the Alpaca data set."""
    prompt_template: str | None = None
    """A Jinja template of the prompt over the row's columns, instead of `style` or the joined text."""
    response_template: str | None = None
    """A Jinja template of the answer over the row's columns, instead of the column `response`."""
    chat_template: str = "tokenizer"
    """The template of conversations: `tokenizer` (the tokenizer's own), `sections` (plain headings), or Jinja as
    tokenizers carry it."""
    tools: str | None = "tools"
    """The column of the tools that a chat template receives: a list of objects, or JSON text. Rows may lack it. It is
    `functions` or `available_tools` where rows have that and no `tools`."""
    documents: str | None = "documents"
    """The column of the documents that a chat template receives: a list of objects, or JSON text. Rows may lack it."""
    template_arguments: dict[str, Any] = {}
    """Further variables of the chat template, such as `{enable_thinking: false}`. Values in a row's column
    `chat_template_kwargs` replace them."""
    date: str = "2024-07-26"
    """The date that a chat template receives as today's, as YYYY-MM-DD. It is fixed so that prompts do not depend on
    the day of the run."""
    turns: Literal["all", "last"] = "all"
    """Which of the assistant's turns are trained on. Where the chat template rewrites earlier turns, `all` makes one
    example of each turn."""
    bad_rows: Literal["error", "drop"] = "error"
    """What happens to rows that can't be rendered: `error` stops and names the first, `drop` drops and counts them."""

    @field_validator("date", mode="before")
    @classmethod
    def _is_a_day(cls, value: object) -> str:
        """Accept a date as well as text, because YAML reads 2024-07-26 as a date."""
        return datetime.date.fromisoformat(str(value)).isoformat()

    @field_validator("template_arguments")
    @classmethod
    def _are_its_own(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted({*value} & {*RESERVED}):
            raise ValueError(f"{', '.join(taken)} can't be set here: the rows give them")
        try:
            return dict(json.loads(json.dumps(value)))
        except TypeError as error:
            raise ValueError(f"{error}: write it as text, in quotes") from error

    @model_validator(mode="after")
    def _targets_have_a_task(self) -> FormatConfig:
        kind = FORMATS[self.task]
        for name in ("target", "labels", "words", "negative", "score", "pooling", "normalize"):
            if name not in kind.settings and getattr(self, name) != FormatConfig.model_fields[name].default:
                others = ", ".join(task for task, other in FORMATS.items() if name in other.settings)
                classes = f": of classes, set data.{name}" if kind.one_class and name in ("target", "labels") else ""
                raise ValueError(f"`{name}` is for {others}, not {self.task}{classes}")
        if kind.reads_targets:
            kind.check_settings(self)
        return self

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns of targets that the task reads; () of tasks that read none."""
        named = (self.target,) if isinstance(self.target, str) else self.target
        return named if "target" in FORMATS[self.task].settings else ()

    @field_validator("task", mode="before")
    @classmethod
    def _is_no_input(cls, value: object) -> object:
        if value == "pair":
            raise ValueError(
                "a pair of texts is what the model reads, not what it learns: set task=classification or task=regression, and "
                "text_pair to the column of the second text"
            )
        return value

    @model_validator(mode="after")
    def _pairs_have_a_task(self) -> FormatConfig:
        if self.text_pair and not FORMATS[self.task].per_row:
            raise ValueError(f"`text_pair` is for tasks that label rows, not {self.task}")
        for name in ("make", "prompt_template"):
            if self.text_pair and getattr(self, name):
                raise ValueError(f"`{name}` makes one text, and `text_pair` is a second: leave one out")
        return self

    @model_validator(mode="after")
    def _templates_have_a_task(self) -> FormatConfig:
        if self.prompt_template and not (FORMATS[self.task].per_row or self.task == "instruction"):
            raise ValueError(f"`prompt_template` is for classification and instruction, not {self.task}")
        if self.response_template and self.task != "instruction":
            raise ValueError(f"`response_template` is for instruction, not {self.task}")
        if self.make and FORMATS[self.task].pairs:
            raise ValueError(
                f"`make` makes one text of a row, and {self.task} needs two: make the rows with `data.make`"
            )
        if self.make and self.prompt_template:
            raise ValueError("`make` and `prompt_template` both say what the model reads: leave one out")
        talks = self.task == "chat" or FORMATS[self.task].pairs
        if self.template_arguments and (self.chat_template == "sections" or not talks):
            raise ValueError("`template_arguments` are for chat and preferences through a chat template")
        return self


def is_chat(config: FormatConfig, meta: Mapping[str, Any]) -> bool:
    """Return whether rows are conversations. meta: of the rows, with their `nested` columns."""
    kind, nested = FORMATS[config.task], meta.get("nested", ())
    return config.task == "chat" or (kind.pairs and (CHOSEN in nested or (kind.marked and COMPLETION in nested)))


def is_framed(config: FormatConfig, meta: Mapping[str, Any]) -> bool:
    """Return whether a chat template writes the texts with bos and eos, so that the tokenizer adds neither."""
    return is_chat(config, meta) and config.chat_template != "sections"
