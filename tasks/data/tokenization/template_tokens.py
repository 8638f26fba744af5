"""What a chat template and a tokenizer say of each other: tokens that one writes and the other does not mark as special, such
as `<|im_end|>` of `tokenize.new_tokens`; the template of `sections`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.data.format.sections_template import sections_template
from trnflow.tasks.data.special_tokens import chat_templates, read_object
from trnflow.tasks.data.texts import TOKEN
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.stage import write_json

if TYPE_CHECKING:
    from trnflow.tasks.metadata import EndToken, TextsMeta


def template_tokens(folder: Path, texts: TextsMeta) -> list[str]:
    """Return the added tokens, none of them special, that the chat template spells: each can end an answer.

    folder: the tokenizer's.
    """
    if not texts["framed"]:
        return []
    template = texts["rows"]["settings"]["chat_template"]
    sources = [*chat_templates(folder).values()] if template == "tokenizer" else [template]
    added = read_object(folder / "tokenizer.json").get("added_tokens") or []
    names = [token["content"] for token in added if not token.get("special")]
    return [name for name in names if any(name in source for source in sources)]


def write_template(folder: Path, texts: TextsMeta, file: Path) -> None:
    """Write the chat template of conversations whose parts name special tokens, so that other programs write the same.

    folder: the tokenizer's; file: a Parquet file of format_prompts.
    """
    from pyarrow.parquet import read_schema

    schema = read_schema(file)
    is_talk = "parts" in schema.names and texts["rows"]["settings"]["task"] != "instruction"
    if is_talk and TOKEN in [field.name for field in schema.field("parts").type.value_type]:
        loaded = read_tokenizer(folder)
        begin = "".join(str(loaded.tokenizer.id_to_token(number)) for number in loaded.prefix())
        template = sections_template(begin, loaded.special.get("eos_token", ""))
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def mark_ends(folder: Path, answers: dict[int, int]) -> list[EndToken]:
    """Mark the tokens that end answers as special in a tokenizer's files, so that programs show answers without them; return
    them, the most frequent first.

    answers: {id: answers that the token ends}.
    """
    for name, key in (("tokenizer.json", "added_tokens"), ("tokenizer_config.json", "added_tokens_decoder")):
        document = read_object(folder / name)
        entries = document.get(key) or []
        by_id = entries if isinstance(entries, dict) else {str(entry["id"]): entry for entry in entries}
        marked = [entry for number in answers if (entry := by_id.get(str(number))) and not entry.get("special")]
        for entry in marked:
            entry["special"] = True
        if marked:
            write_json(folder / name, document)
    tokenizer = read_tokenizer(folder).tokenizer
    return [
        {"id": number, "text": str(tokenizer.id_to_token(number)), "answers": count}
        for number, count in sorted(answers.items(), key=lambda end: (-end[1], end[0]))
    ]
