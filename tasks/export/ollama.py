"""Write a Modelfile, by which `ollama create` takes a GGUF file.

Ollama's templates are Go's: one is derived from the tokenizer's template by rendering probes, where each message is written by
its role alone. Other templates (Mistral's, with system prompts in user turns, and those that write today's date) are left
out: Ollama then uses its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trnflow.tasks.data.special_tokens import chat_templates, special_tokens
from trnflow.tasks.export.gguf_tokenizer import frames

FILE = "Modelfile"
CONTENTS = {"system": "Sol7ar", "user": "Uni7ty", "assistant": "Ans7wer"}
"""What probes say, by role."""

Row = dict[str, str]
Render = Callable[[list[Row], bool], str]
"""(messages, whether the answer's beginning is wanted) -> text."""


class Turns(NamedTuple):
    """What a template writes. around: {role: (before a message's text, after it)}.

    Attributes:
        opening: Before a conversation without a system prompt.
        answer: What an answer begins with.
    """

    opening: str
    around: dict[str, tuple[str, str]]
    answer: str

    def render(self, messages: list[Row], begins_answer: bool) -> str:
        parts = ["" if messages[0]["role"] == "system" else self.opening]
        for message in messages:
            before, after = self.around[message["role"]]
            parts += [before, message["content"], after]
        return "".join([*parts, self.answer * begins_answer])

    def to_go(self) -> str:
        """Return the template for Ollama, which itself begins an answer after a message that is none."""
        cases = [
            f'{{{{ if eq .Role "{role}" }}}}{_literal(before)}{{{{ .Content }}}}'
            + (f"{{{{ if not $last }}}}{_literal(after)}{{{{ end }}}}" if role == "assistant" else _literal(after))
            + "{{ end }}"
            for role, (before, after) in self.around.items()
        ]
        return (
            "{{ range $i, $_ := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}"
            f'{{{{ if and (eq $i 0) (ne .Role "system") }}}}{_literal(self.opening)}{{{{ end }}}}'
            f'{"".join(cases)}{{{{ if and $last (ne .Role "assistant") }}}}{_literal(self.answer)}{{{{ end }}}}{{{{ end }}}}'
        )


def write_modelfile(folder: Path, file: str, weights: Path) -> None:
    """Write the Modelfile for a GGUF file in `folder`. weights: the folder of the tokenizer."""
    template, lines = chat_templates(weights).get("default"), [f"FROM ./{file}"]
    special = special_tokens(weights) or {}
    # llama.cpp adds bos where the tokenizer does
    bos = special.get("bos_token", "") if frames(weights)[0] else ""
    turns = turns_of(renders(template, special, bos)) if template and "strftime_now" not in template else None
    if turns and '"""' not in turns.to_go():
        lines += [f'TEMPLATE """{turns.to_go()}"""', f'PARAMETER stop "{turns.around["assistant"][1].strip()}"']
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def renders(template: str, special: dict[str, str], bos: str = "") -> Render:
    """Return the function that renders a tokenizer's template as transformers does. bos: left out at the beginning."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(messages: list[Row], begins_answer: bool) -> str:
        (text,), _ = render_jinja_template(
            [messages], chat_template=template, add_generation_prompt=begins_answer, **special
        )
        return str(text).removeprefix(bos)

    return render


def turns_of(render: Render) -> Turns | None:
    """Return what a template writes around messages; None where that depends on other messages, or nothing ends an answer."""
    found = None
    # templates refuse conversations by exceptions of their own
    with suppress(Exception):
        found = _turns_of(render)
    return found


def _turns_of(render: Render) -> Turns | None:
    first, user_end = _cut(render(_said("user"), False), "user")
    _, between, answer_end = _cut(render(_said("user", "assistant"), False), "user", "assistant")
    *_, again, _ = _cut(render(_said("user", "assistant", "user"), False), "user", "assistant", "user")
    user = again.removeprefix(answer_end)
    around = {"user": (user, user_end), "assistant": (between.removeprefix(user_end), answer_end)}
    answer = render(_said("user"), True).removeprefix(render(_said("user"), False))
    turns = Turns(first.removesuffix(user), around, answer)
    with suppress(Exception):
        start, middle, _ = _cut(render(_said("system", "user"), False), "system", "user")
        turns = turns._replace(around={"system": (start, middle.removesuffix(user)), **around})
    alike = all(
        turns.render(probe, begins) == render(probe, begins) for probe, begins in _probes("system" in turns.around)
    )
    return turns if alike and answer_end.strip() else None


def _said(*roles: str) -> list[Row]:
    return [{"role": role, "content": CONTENTS[role]} for role in roles]


def _cut(text: str, *roles: str) -> list[str]:
    """Return what stands before, between and after the messages. Raises ValueError for a message that is not there once."""
    parts = [text]
    for role in roles:
        before, after = parts.pop().split(CONTENTS[role], 1)
        parts += [before, after]
    if any(content in part for content in CONTENTS.values() for part in parts):
        raise ValueError("a message is written twice")
    return parts


def _probes(has_system: bool) -> Iterator[tuple[list[Row], bool]]:
    for begins in (False, True):
        yield _said("user", "assistant", "user"), begins
        yield _said("user", "assistant", "user", "assistant", "user"), begins
        if has_system:
            yield _said("system", "user", "assistant", "user"), begins


def _literal(text: str) -> str:
    """Return text as a Go template writes it."""
    return text.replace("{{", '{{ "{{" }}')
