"""Write a Modelfile, by which `ollama create` takes a GGUF file.

Ollama's templates are Go's: one is derived from the tokenizer's template by rendering probes, where each message is written by
its role alone, or a system prompt stands in a user's turn (Mistral, Llama 2); of instructions it is the prompt. Other
templates (such as those that write today's date) are left out: Ollama then uses its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.instruction_styles import STYLES
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE, RowFormat, read_row_format
from trnflow.tasks.data.format.templates import Limit
from trnflow.tasks.data.limited_process import call_limited
from trnflow.tasks.data.special_tokens import chat_templates, special_tokens
from trnflow.tasks.export.gguf_tokenizer import frames

FILE = "Modelfile"
CONTENTS = {"system": "Sol7ar", "user": "Uni7ty", "assistant": "Ans7wer"}
"""What probes say, by role."""
NO_TEMPLATE = "the Modelfile has no TEMPLATE, since Go's templates can't write what the model was trained on"
RENDERS = "transformers.utils.chat_template_utils"

Row = dict[str, str]
Render = Callable[[list[Row], bool], str]
"""(messages, whether the answer's beginning is wanted) -> text."""


class Turns(NamedTuple):
    """What a template writes. around: {role: (before a message's text, after it)}.

    Attributes:
        opening: Before a conversation without a system prompt.
        answer: What an answer begins with.
        between: Before a user's turn that is not the first one.
        system: Where a system prompt stands: in a turn of its own, or in the user's first or last one.
    """

    opening: str
    around: dict[str, tuple[str, str]]
    answer: str
    between: str = ""
    system: Literal["turn", "first", "last"] = "turn"

    def render(self, messages: list[Row], begins_answer: bool) -> str:
        is_inside = messages[0]["role"] == "system" and self.system != "turn"
        turns = messages[is_inside:]
        prompted = 0 if self.system == "first" else len(turns) - 1
        parts = ["" if turns[0]["role"] == "system" else self.opening]
        for number, message in enumerate(turns):
            before, after = self.around[message["role"]]
            parts += [self.between if number and message["role"] == "user" else "", before]
            parts += [messages[0]["content"].join(self.around["system"])] if is_inside and number == prompted else []
            parts += [message["content"], after]
        return "".join([*parts, self.answer * begins_answer])

    def to_go(self) -> str:
        """Return the template for Ollama, which itself begins an answer after a message that is none."""
        is_inside = self.system != "turn"
        opens = "eq $i 0" if is_inside else 'and (eq $i 0) (ne .Role "system")'
        cases = [self._case(role) for role in self.around if role != "system" or not is_inside]
        return (
            "{{ range $i, $_ := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }}"
            f"{{{{ if {opens} }}}}{_literal(self.opening)}{{{{ end }}}}"
            f'{"".join(cases)}{{{{ if and $last (ne .Role "assistant") }}}}{_literal(self.answer)}{{{{ end }}}}{{{{ end }}}}'
        )

    def _case(self, role: str) -> str:
        """Return what the Go template writes of a message."""
        before, after = map(_literal, self.around[role])
        if role == "assistant":  # Ollama goes on with an answer that is the last message
            after = f"{{{{ if not $last }}}}{after}{{{{ end }}}}"
        if role == "user" and self.between:
            first = 0 if self.system == "turn" else 1
            before = f"{{{{ if gt $i {first} }}}}{_literal(self.between)}{{{{ end }}}}{before}"
        if role == "user" and self.system != "turn":
            here = "(eq $i 1)" if self.system == "first" else "$last"
            prompt = "{{ (index $.Messages 0).Content }}".join(map(_literal, self.around["system"]))
            before += f'{{{{ if and {here} (eq (index $.Messages 0).Role "system") }}}}{prompt}{{{{ end }}}}'
        return f'{{{{ if eq .Role "{role}" }}}}{before}{{{{ .Content }}}}{after}{{{{ end }}}}'


def write_modelfile(
    folder: Path, file: str, weights: Path, stops: Sequence[str] = (), sampling: Mapping[str, float] | None = None
) -> list[str]:
    """Write the Modelfile for a GGUF file in `folder`; return remarks.

    weights: the folder of the tokenizer; stops: the tokens that end a text, the first one an answer; sampling: how tokens
    are drawn.
    """
    rows = read_row_format(weights) if (weights / ROW_FORMAT_FILE).is_file() else None
    is_instruction = rows is not None and rows.settings["task"] == "instruction"
    chat = chat_templates(weights).get("default")
    written = None
    if is_instruction and rows:
        written = instruction_template(rows, "".join(stops[:1]))
    elif chat and "strftime_now" not in chat:
        special = special_tokens(weights) or {}
        # llama.cpp adds bos where the tokenizer does
        bos = special.get("bos_token", "") if frames(weights)[0] else ""
        asked = {"template": chat, "special": special, "bos": bos, "imports": [RENDERS]}
        found = call_limited(f"{__name__}:derive", asked)
        written, stops = found["written"], stops or found["stops"]
    templated = [f'TEMPLATE """{written}"""'] if written and '"""' not in written else []
    lines = [f"FROM ./{file}", *templated, *(f"PARAMETER {name} {value:g}" for name, value in (sampling or {}).items())]
    lines += [f"PARAMETER stop {_quoted(stop)}" for stop in stops]
    (folder / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [NO_TEMPLATE] if not templated and (is_instruction or chat) else []


def instruction_template(rows: RowFormat, end: str) -> str | None:
    """Return the template of a prompt in a style, or in words around one column; None for another.

    end: what ends an answer.
    """
    source, style = rows.settings["prompt_template"], rows.settings["style"]
    around = re.split(r"{{\s*\w+\s*}}", source) if source else _cut(STYLES[style](CONTENTS["user"], ""), "user")
    if rows.own or len(around) != 2 or re.search("{[{%#]", "".join(around)):
        return None
    return "{{ .Prompt }}".join(map(_literal, around)) + "{{ .Response }}" + _literal(end)


def derive(arguments: Meta, limit: Limit) -> Meta:
    """Return {"written": the template for Ollama, or None, "stops": what ends an answer} of a tokenizer's `template`."""
    render = renders(arguments["template"], arguments["special"], arguments["bos"])

    def limited(messages: list[Row], begins_answer: bool) -> str:
        with limit("the tokenizer's chat template"):
            return render(messages, begins_answer)

    turns = turns_of(limited)
    return {"written": turns and turns.to_go(), "stops": [turns.around["assistant"][1].strip()] if turns else []}


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
    again = again.removeprefix(answer_end)
    both = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(first), reversed(again), strict=False))
    user = "".join(letter for letter, _ in both)[::-1]
    around = {"user": (user, user_end), "assistant": (between.removeprefix(user_end), answer_end)}
    answer = render(_said("user"), True).removeprefix(render(_said("user"), False))
    plain = Turns(first.removesuffix(user), around, answer, again.removesuffix(user))
    if not answer_end.strip() or not _alike(plain, render):
        return None
    with suppress(Exception):
        start, middle, _ = _cut(render(_said("system", "user"), False), "system", "user")
        own = {"system": (start, middle.removesuffix(again)), **around}
        inside = {**around, "system": (start.removeprefix(first), middle)}
        others = (
            plain._replace(around=own),
            *(plain._replace(around=inside, system=place) for place in ("first", "last")),
        )
        return next((turns for turns in others if _alike(turns, render, "system")), plain)
    return plain


def _alike(turns: Turns, render: Render, *before: str) -> bool:
    """Return whether probes that begin with these roles are rendered alike."""
    return all(turns.render(probe, begins) == render(probe, begins) for probe, begins in _probes(*before))


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


def _probes(*before: str) -> Iterator[tuple[list[Row], bool]]:
    for begins in (False, True):
        for roles in (("user",), ("user", "assistant", "user"), ("user", "assistant", "user", "assistant", "user")):
            yield _said(*before, *roles), begins


def _literal(text: str) -> str:
    """Return text as a Go template writes it."""
    return text.replace("{{", '{{ "{{" }}')


def _quoted(text: str) -> str:
    """Return text as a Modelfile's value."""
    return f'"""{text}"""' if '"' in text else f'"{text}"'
