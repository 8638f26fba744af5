"""Write a conversation up to the assistant's next answer, as training did: the one text that the model is asked with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trnflow.tasks.data.format.chat import Example, prompted, sections
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import Conversation
from trnflow.tasks.data.format.row_makers import chat_document, chat_templates_of
from trnflow.tasks.data.format.sections_template import ROLES
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.texts import HELD_OUT

PromptWriter = Callable[[Conversation, str], Example]
"""(conversation, its name in errors) -> parts, none of which is trained on."""


def prompt_writer(config: FormatConfig, folder: Path) -> PromptWriter:
    """Return the function that writes prompts by the recipe's chat template, or the tokenizer's in `folder`. Raises
    ConfigError if there is none."""
    if config.chat_template == "sections":
        return _under_headings
    chat = chat_document(config, folder)
    templates, special = chat_templates_of(config, chat), special_pattern(tuple(chat["texts"]))

    def write(given: Conversation, where: str) -> Example:
        template = templates.get("tools" if given.tools is not None else "template", templates["template"])
        return prompted(given, template, where, special)

    return write


def _under_headings(given: Conversation, where: str) -> Example:
    # no earlier answer is trained on here, nor encoded apart
    said = {"train": False, HELD_OUT: False, "ends_prompt": False}
    written = [{**part, **said} for part in sections(given.messages, where, last=True)]
    return [*written, {"text": f"\n\n### {ROLES['assistant']}\n", "train": False}]
