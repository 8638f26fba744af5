"""Ollama's templates: derived from those of chat models, rendered by Go as transformers renders the tokenizer's own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared_folder
from trnflow.tasks.export.ollama import FILE, Turns, renders, turns_of, write_modelfile

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
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
}
"""As the model families publish them, shortened where they format tools or trim."""
IN_FIRST_USER_TURN = (
    "{% set s = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% for m in messages if m['role'] != 'system' %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + (s + '\n\n' if s and loop.first else '') + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
GO = """
package main

import ("encoding/json"; "os"; "strings"; "text/template")

type Message struct { Role, Content string }

func main() {
	var given struct { Template string; Chats [][]Message }
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil { panic(err) }
	parsed := template.Must(template.New("").Parse(given.Template))
	made := []string{}
	for _, chat := range given.Chats {
		var text strings.Builder
		if err := parsed.Execute(&text, map[string]any{"Messages": chat}); err != nil { panic(err) }
		made = append(made, text.String())
	}
	json.NewEncoder(os.Stdout).Encode(made)
}
"""


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


@pytest.mark.slow
@pytest.mark.parametrize("name", TEMPLATES)
def test_go_renders_the_derived_template_as_transformers_renders_its_own(name: str, tmp_path: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    if not (go := shutil.which("go")):
        pytest.skip("no Go")
    given = [chat for chat in chats() if name != "gemma" or chat[0]["role"] != "system"]
    own, _ = render_jinja_template(given, chat_template=TEMPLATES[name], add_generation_prompt=True, **SPECIAL)
    (tmp_path / "main.go").write_text(GO)
    asked: dict[str, Any] = {"Template": derived(name).to_go(), "Chats": given}
    made = subprocess.run([go, "run", "main.go"], cwd=tmp_path, input=json.dumps(asked), capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout) == [text.removeprefix("<s>") for text in own] and len(own) >= 40


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_derived_template_writes_what_the_tokenizers_own_does(name: str) -> None:
    turns, own = derived(name), renders(TEMPLATES[name], SPECIAL, "<s>")
    for chat in chats():
        if {message["role"] for message in chat} <= turns.around.keys():
            assert turns.render(chat, True) == own(chat, True)


def test_a_template_whose_turns_depend_on_each_other_is_left_out(tmp_path: Path) -> None:
    from tests.export.test_gguf import byte_level

    assert turns_of(renders(IN_FIRST_USER_TURN + "{{ messages[-1]['content'] }}", SPECIAL)) is None
    without = turns_of(renders(IN_FIRST_USER_TURN, SPECIAL))
    assert without is None or "system" not in without.around
    byte_level(tmp_path)
    write_modelfile(tmp_path, "model.gguf", tmp_path)
    assert (tmp_path / FILE).read_text() == "FROM ./model.gguf\n"
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    write_modelfile(tmp_path, "model.gguf", tmp_path)
    lines = (tmp_path / FILE).read_text().splitlines()
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}" + CHATML)
    write_modelfile(tmp_path, "model.gguf", tmp_path)
    assert (tmp_path / FILE).read_text() == "FROM ./model.gguf\n", "today's date would be everybody's"
    assert lines[1].startswith('TEMPLATE """{{ range') and lines[-1] == 'PARAMETER stop "<|im_end|>"'
