"""Ollama's templates: derived from those of chat models, rendered by Go as transformers renders the tokenizer's own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared_folder
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.format.row_makers import maker_of
from trnflow.tasks.data.format.sections_template import sections_template
from trnflow.tasks.data.format.templates import no_limit
from trnflow.tasks.export.ollama import (
    FILE,
    NO_TEMPLATE,
    Turns,
    instruction_template,
    renders,
    turns_of,
    write_modelfile,
)
from trnflow.tasks.stage import write_json

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set said = messages[1:] %}"
    "{%- else %}{%- set said = messages %}{%- endif %}{{ bos_token }}{% for m in said %}{% if m['role'] == 'user' %}"
    "{% if HERE and system is defined %}{{ '[INST] ' + system + '\n\n' + m['content'] + '[/INST]' }}"
    "{% else %}{{ '[INST] ' + m['content'] + '[/INST]' }}{% endif %}{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "qwen2.5": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help. {{x}}<|im_end|>\n' }}{% endif %}"
    + CHATML,
    "llama3": (
        "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] + "
        "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
        "{% endif %}"
    ),
    "zephyr": (
        "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
        "{{ '<start_of_turn>' + role + '\n' + m['content'] + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
    "mistral-first": MISTRAL.replace("HERE", "loop.first"),
    "mistral-last": MISTRAL.replace("HERE", "loop.last"),
    "llama2": (
        "{% set system = messages[0]['role'] == 'system' %}{% for m in (messages[1:] if system else messages) %}"
        "{% set content = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' + m['content'] if loop.first and system else "
        "m['content'] %}{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content + ' [/INST]' }}"
        "{% else %}{{ ' ' + content + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "sections": sections_template("<s>", "</s>"),
}
"""As the model families publish them, shortened where they format tools or trim."""
COLUMNS: Any = {"columns": ["instruction", "context", "response"]}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
GO = """
package main

import ("encoding/json"; "os"; "strings"; "text/template")

type Message struct { Role, Content string }
type Given struct { Template string; Chats [][]Message; Prompts []string }

func rendered(source string, values map[string]any) string {
	var text strings.Builder
	if err := template.Must(template.New("").Parse(source)).Execute(&text, values); err != nil { panic(err) }
	return text.String()
}

func main() {
	var all []Given
	if err := json.NewDecoder(os.Stdin).Decode(&all); err != nil { panic(err) }
	made := [][]string{}
	for _, given := range all {
		texts := []string{}
		for _, chat := range given.Chats { texts = append(texts, rendered(given.Template, map[string]any{"Messages": chat})) }
		for _, prompt := range given.Prompts {
			// Ollama cuts what follows the answer to be made
			asked, _, _ := strings.Cut(given.Template, "{{ .Response }}")
			texts = append(texts, rendered(asked, map[string]any{"Prompt": prompt}))
		}
		made = append(made, texts)
	}
	json.NewEncoder(os.Stdout).Encode(made)
}
"""
LOCAL_GO = Path(__file__).resolve().parents[2] / ".clients/go/go/bin/go"
"""Where `make test-nightly` installs Go."""


def rendered_by_go(given: list[dict[str, Any]], folder: Path) -> list[list[str]]:
    """What Go's text/template makes of {Template, Chats or Prompts}; skips without Go."""
    go = shutil.which("go") or shutil.which(LOCAL_GO)
    if not go:
        pytest.skip("no Go: `make test-nightly` installs it")
    (folder / "main.go").write_text(GO)
    made = subprocess.run([go, "run", "main.go"], cwd=folder, input=json.dumps(given), capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    found: list[list[str]] = json.loads(made.stdout)
    return found


def chats() -> list[list[dict[str, str]]]:
    """Conversations that end in a question, of several turns, some with a system prompt."""
    rows = json.loads((shared_folder() / "data/preferences/kto_en_demo.json").read_text())[:40]
    found = [[{"role": m["role"], "content": m["content"]} for m in row["messages"]] for row in rows]
    asked = [chat[:-1] if chat[-1]["role"] == "assistant" else chat for chat in found]
    said = [{"role": "assistant", "content": "Well {{ .Role }}."}, {"role": "user", "content": "And then?\n"}]
    return [*asked, *([{"role": "system", "content": "Be short."}, *chat, *said] for chat in asked[:20])]


def derived(name: str) -> Turns:
    turns = turns_of(renders(TEMPLATES[name], SPECIAL, "<s>"))
    assert turns is not None
    return turns


@pytest.mark.nightly
def test_go_renders_what_transformers_and_the_prompts_write(tmp_path: Path) -> None:
    """Of chat templates on 60 conversations each, of instructions on 60 prompts."""
    from transformers.utils.chat_template_utils import render_jinja_template

    asked, expected = [], []
    for name, template in TEMPLATES.items():
        given = [chat for chat in chats() if name != "gemma" or chat[0]["role"] != "system"]
        own, _ = render_jinja_template(given, chat_template=template, add_generation_prompt=True, **SPECIAL)
        asked.append({"Template": derived(name).to_go(), "Chats": given})
        expected.append([text.removeprefix("<s>") for text in own])
    prompts = [chat[-1]["content"] for chat in chats()]
    for settings in INSTRUCTIONS:
        asked.append({"Template": instruction_template(instructions(**settings), "</s>"), "Prompts": prompts})
        expected.append([prompt_of(settings, prompt) for prompt in prompts])
    assert min(map(len, expected)) >= 40
    assert rendered_by_go(asked, tmp_path) == expected


INSTRUCTIONS: list[dict[str, Any]] = [
    {"style": "dolly"},
    {"style": "alpaca"},
    {"prompt_template": "<|user|>{{instruction }}\n{ {<|assistant|>\n"},
]


def instructions(**settings: Any) -> RowFormat:
    given = FormatConfig(task="instruction", **settings).model_dump(mode="json")
    return RowFormat("causal_lm", given, [], ["instruction", "context", "response"], [], 64)


def prompt_of(settings: dict[str, Any], text: str) -> str:
    """What a row without a context becomes, by the stage that makes texts."""
    made = maker_of(FormatConfig(task="instruction", **settings), COLUMNS, None, no_limit)
    ((example,), _) = made({"instruction": text, "context": "", "response": "Yes."}, "row 1")
    return str(example["parts"][0]["text"])


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_derived_template_writes_what_the_tokenizers_own_does(name: str) -> None:
    turns, own = derived(name), renders(TEMPLATES[name], SPECIAL, "<s>")
    for chat in chats():
        if {message["role"] for message in chat} <= turns.around.keys():
            assert turns.render(chat, True) == own(chat, True)


def test_what_stands_between_turns_is_written_before_users_alone() -> None:
    plain = Turns("", dict.fromkeys(("system", "user", "assistant"), ("<", ">")), "<")
    system, user, assistant = plain.to_go().split("{{ if eq .Role")[1:]
    between = user.replace('"user" }}', '"user" }}{{ if gt $i 0 }}; {{ end }}')
    assert plain._replace(between="; ").to_go().split("{{ if eq .Role")[1:] == [system, between, assistant]


def test_a_template_that_takes_all_memory_is_left_out(tmp_path: Path) -> None:
    from tests.export.test_gguf import byte_level

    byte_level(tmp_path)
    hostile = "{% set held = 'x'.ljust(10 ** 9) %}" + CHATML
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert write_modelfile(tmp_path, "model.gguf", tmp_path) == []
    (tmp_path / "chat_template.jinja").write_text(hostile)
    assert write_modelfile(tmp_path, "model.gguf", tmp_path) == [NO_TEMPLATE]


def test_a_template_whose_turns_depend_on_each_other_is_left_out(tmp_path: Path) -> None:
    from tests.export.test_gguf import byte_level

    assert turns_of(renders(TEMPLATES["mistral-first"] + "{{ messages[-1]['content'] }}", SPECIAL)) is None
    byte_level(tmp_path)
    assert write_modelfile(tmp_path, "model.gguf", tmp_path) == [NO_TEMPLATE]
    assert (tmp_path / FILE).read_text() == "FROM ./model.gguf\n"
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    assert not write_modelfile(tmp_path, "model.gguf", tmp_path)
    lines = (tmp_path / FILE).read_text().splitlines()
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}" + CHATML)
    assert write_modelfile(tmp_path, "model.gguf", tmp_path) == [NO_TEMPLATE]
    assert (tmp_path / FILE).read_text() == "FROM ./model.gguf\n", "today's date would be everybody's"
    assert lines[1].startswith('TEMPLATE """{{ range') and lines[-1] == 'PARAMETER stop "<|im_end|>"'


def test_a_modelfile_of_instructions_has_their_prompt_and_all_stops(tmp_path: Path) -> None:
    from tests.export.test_gguf import byte_level

    byte_level(tmp_path)
    rows = instructions(style="alpaca")
    said = {"settings": rows.settings, "text": [], "columns": rows.columns, "nested": []}
    document = {"format": "trnflow-model", "version": 1, "task": "causal_lm", "rows": said, "max_length": 64}
    write_json(tmp_path / "trnflow.json", document)
    assert not write_modelfile(tmp_path, "model.gguf", tmp_path, ["</s>", 'a"b'])
    written = (tmp_path / FILE).read_text()
    assert "### Instruction:\n{{ .Prompt }}\n\n### Response:\n{{ .Response }}</s>" in written
    assert written.endswith('PARAMETER stop "</s>"\nPARAMETER stop """a"b"""\n')
    # a prompt of several columns is none that a user types
    for template in ("{{ instruction }}{{ response }}", "{{ instruction | upper }}", "{{ instruction }}{# once #}"):
        document["rows"] = {**said, "settings": instructions(prompt_template=template).settings}
        write_json(tmp_path / "trnflow.json", document)
        assert write_modelfile(tmp_path, "model.gguf", tmp_path, ["</s>"]) == [NO_TEMPLATE]
        assert (tmp_path / FILE).read_text() == 'FROM ./model.gguf\nPARAMETER stop "</s>"\n'


@pytest.mark.parametrize(
    ("place", "text"), [("first", "[<s>a]b.[c]"), ("last", "[a]b.[<s>c]"), ("turn", "<s>[a]b.[c]")]
)
def test_a_system_prompt_stands_in_the_turn_of_its_place(place: Any, text: str) -> None:
    around = {"user": ("[", "]"), "assistant": ("", "."), "system": ("<", ">")}
    said = [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    messages = [{"role": role, "content": content} for role, content in said]
    turns = Turns("!", around, "=", system=place)
    opening = "" if place == "turn" else "!"
    assert turns.render(messages, True) == f"{opening}{text}=" and turns.render(messages, False) == f"{opening}{text}"
    assert turns.render(messages[1:], False) == "![a]b.[c]"
