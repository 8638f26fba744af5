"""Write a conversation up to the assistant's next answer, as training did: the one text that the model is asked with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.chat import Example, prompted, sections
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import Conversation
from trnflow.tasks.data.format.row_makers import chat_document, chat_templates_of
from trnflow.tasks.data.format.sections_template import ROLES
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.format.templates import IMPORTS, Limit
from trnflow.tasks.data.limited_process import call_limited
from trnflow.tasks.data.texts import HELD_OUT

PromptWriter = Callable[[Sequence[tuple[Conversation, str]]], list[Example]]
"""(conversation, its name in errors) of some -> the parts of each, none of which is trained on."""


def prompt_writer(config: FormatConfig, folder: Path) -> PromptWriter:
    """Return the function that writes prompts by the recipe's chat template, or the tokenizer's in `folder`: in a limited
    process, since a model from elsewhere brings its template. Raises ConfigError if there is none, or it can't be parsed."""
    if config.chat_template == "sections":
        return lambda given: [_under_headings(*each) for each in given]
    chat = chat_document(config, folder)
    chat_templates_of(config, chat)

    def write(given: Sequence[tuple[Conversation, str]]) -> list[Example]:
        conversations = [[conversation._asdict(), where] for conversation, where in given]
        asked = {"config": config.model_dump(mode="json"), "chat": chat, "given": conversations, "imports": IMPORTS}
        return cast(list[Example], call_limited(f"{__name__}:write_prompts", asked)["prompts"])

    return write


def write_prompts(arguments: Meta, limit: Limit) -> Meta:
    """Return {"prompts": the parts of each}. arguments: config, chat (`chat_document`), given: (conversation, its name)."""
    config, chat = FormatConfig.model_validate(arguments["config"]), arguments["chat"]
    templates, special = chat_templates_of(config, chat, limit), special_pattern(tuple(chat["texts"]))
    prompts = []
    for fields, where in arguments["given"]:
        given = Conversation(**fields)
        template = templates.get("tools" if given.tools is not None else "template", templates["template"])
        prompts.append(prompted(given, template, where, special))
    return {"prompts": prompts}


def _under_headings(given: Conversation, where: str) -> Example:
    # no earlier answer is trained on here, nor encoded apart
    said = {"train": False, HELD_OUT: False, "ends_prompt": False}
    written = [{**part, **said} for part in sections(given.messages, where, last=True)]
    return [*written, {"text": f"\n\n### {ROLES['assistant']}\n", "train": False}]
