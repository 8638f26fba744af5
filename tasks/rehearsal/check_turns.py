"""Stage `check_turns`: refuse a chat template that leaves out what the user or the assistant said."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.data.format.conversation import messages_of
from trnflow.tasks.data.format.fitting import CALL, CALLS
from trnflow.tasks.data.format.written import letters
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    from trnflow.tasks.metadata import RowsMeta, TextsMeta

_THINKING = re.compile(r".*</think>", re.DOTALL)


class TurnsConfig(StageConfig):
    """Settings of `check_turns`."""

    messages: str
    """The column of the conversation."""


@stage(kind="turns")
def check_turns(config: TurnsConfig, rows: Input[RowsMeta], texts: Input[TextsMeta], out: Workdir) -> Meta:
    """Compare the texts of train with the turns of their rows, blanks aside; warn of blank answers. Raises ConfigError for
    a missing turn, DataError if all answers are blank."""
    import pyarrow.parquet as pq

    conversations = pq.read_table(rows.path / "train.parquet").column(config.messages).to_pylist()
    examples = pq.read_table(texts.path / "train.parquet").column("parts").to_pylist()
    numbers = texts.path / "train.source_row.npy"
    written: dict[int, str] = {}
    for row, parts in zip(load_array(numbers) if numbers.exists() else range(len(examples)), examples, strict=True):
        written[int(row)] = letters("".join(part["text"] for part in parts))  # the last example holds the whole row
    blank = 0
    for row, text in written.items():
        value = conversations[row]
        messages = messages_of(json.loads(value) if isinstance(value, str) else value, f"row {row + 1}")
        while messages[-1]["role"] != "assistant":
            messages.pop()
        blank += not any(_said(message) for message in messages if message["role"] == "assistant")
        for number, message in enumerate(messages, 1):
            content = message.get("content")
            if message["role"] not in ("user", "assistant") or not isinstance(content, str):
                continue
            # templates leave out the thinking of earlier turns
            if letters(_THINKING.sub("", content)) not in text:
                raise ConfigError(
                    f"format.chat_template: message {number} ({message['role']}) of row {row + 1} of the sample, "
                    f"{content.strip()[:40]!r}, is missing in the text that the chat template writes",
                    "choose a template that writes all turns, or format.chat_template=sections",
                )
    if blank == len(written):
        raise DataError(
            f"{config.messages}: the assistant's answers are blank in all rows of the sample", "give answers"
        )
    if blank:
        out.warn(f"the assistant's answers are blank in {blank} of {len(written)} rows of the sample")
    return {}


def _said(message: Meta) -> bool:
    """Return whether a message has more than blanks: text, parts or calls of tools."""
    content = message.get("content")
    said = content.strip() if isinstance(content, str) else content
    return bool(said or any(message.get(name) for name in (CALLS, CALL, "refusal")))
