"""Published models stop after an answer: in transformers and llama.cpp, which get nothing but the folder, as in `predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import RunClient, run_client  # noqa: F401 - a fixture
from tests.helpers.command_line import InProcessShell

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KINDS: dict[str, dict[str, Any]] = {
    "chat": {
        "format": {"task": "chat", "chat_template": CHATML},
        "tokenize": {"train": None, "max_length": 64, "new_tokens": ["<|im_start|>", "<|im_end|>"]},
    },
    "sections": {"format": {"task": "chat", "chat_template": "sections"}},
    "instruct": {"format": {"task": "instruction", "style": "dolly"}},
}
ENDS = {"chat": ["<|im_end|>", "<s>", "</s>"], "sections": ["</s>", "<s>"], "instruct": ["</s>", "<s>"]}
"""What ends a text in the folder: stories260K's own settings end it with <s> and </s>."""
RECIPE: dict[str, Any] = {
    "extends": "demo-llm",
    "tracking": {"enabled": False},
    "data": {"source": "rows.jsonl", "name": None, "text": None, "split": {"validation": 0.1, "test": 0.1}},
    "model": {"config": {}},
    "tokenize": {"train": None, "max_length": 64},
    "pack": {"chunk_length": 64},
    "train": {
        "engine": "native", "device": "cpu", "devices": 1, "tensor_parallel_size": 1, "zero1": False, "dtype": "float32",
        "max_steps": 60, "global_batch": 4, "micro_batch": 4, "learning_rate": 3.0e-3, "checkpoint_every": 100,
        "eval_every": None,
    },
    "export": {"target": "gguf", "gguf_type": "f32"},
    "evaluate": {"generation": {"prompts": 3, "max_new_tokens": 16, "before": False}},
}  # fmt: skip
SCRIPT = """
import json, sys, urllib.request
import xllamacpp
folder, rows, chats = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = folder + "/model.gguf", 128, 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)


def post(path, **body):
    request = urllib.request.Request(
        server.listening_address + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return json.loads(urllib.request.urlopen(request).read())


made = [post("/completion", prompt=row, n_predict=16, temperature=0, return_tokens=True) for row in rows]
said = [post("/v1/chat/completions", messages=chat, max_tokens=16, temperature=0)["choices"][0] for chat in chats]
print(json.dumps([
    [[one["tokens"], one["stop_type"]] for one in made],
    [[one["message"]["content"], one["finish_reason"]] for one in said],
]))
"""


def rows_of(kind: str) -> list[dict[str, Any]]:
    colors = [("red", "blue", "green")[n * 7 % 3] for n in range(48)]
    asked = [(f"color {color} {n}", f"It is {color}.") for n, color in enumerate(colors)]
    if kind == "instruct":
        return [{"instruction": question, "response": answer} for question, answer in asked]
    said = [talk(*pair) + (talk("sure?", "Yes.") if n % 2 else []) for n, pair in enumerate(asked)]
    return [{"messages": messages} for messages in said]


def talk(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def project(folder: Path, shared: Path, kind: str, **settings: dict[str, Any]) -> InProcessShell:
    """Write the rows and `recipe.yaml` of a kind."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(kind)))
    model = {"source": str(shared / "assets/stories260K-hf"), "config": {}}
    recipe = {**RECIPE, "name": kind, "model": model, **KINDS[kind]}
    recipe |= {name: {**recipe.get(name, {}), **values} for name, values in settings.items()}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return InProcessShell(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_stops_after_an_answer(
    kind: str,
    shared: Path,
    tmp_path: Path,
    run_client: RunClient,  # noqa: F811
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shell, name = project(tmp_path, shared, kind), "recipe.yaml"
    run = shell.json("run", name, "--direct")
    assert not any("did not end" in note for note in run["notes"])
    metrics = {stage["stage"]: stage["metrics"] for stage in run["stages"]}
    assert metrics["evaluate_model"]["exact_match"] == 1
    folder, export = tmp_path / "model", tmp_path / "export"
    shell("get", name, "consolidate", str(folder))
    shell("get", name, "export_neuron", str(export))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(model.generation_config.eos_token_id) == ENDS[kind]

    questions = [f"color {color} {n}" for n, color in ((3, "red"), (50, "blue"), (77, "green"))]
    made, prompts = [], []
    for question in questions:
        given = (
            tokenizer.apply_chat_template(
                talk(question, "")[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            if kind != "instruct"
            else tokenizer(f"### Instruction\n{question}\n\n### Answer\n", return_tensors="pt")
        )
        prompts.append(given["input_ids"][0].tolist())
        made.append(model.generate(given["input_ids"], max_new_tokens=16)[0, len(prompts[-1]) :].tolist())
    texts = [f"It is {question.split()[1]}." for question in questions]
    assert [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in made] == texts
    assert {tokenizer.convert_ids_to_tokens(ids[-1]) for ids in made} == {ENDS[kind][0]}
    predicted = shell.json("predict", name, *questions, "--max-new-tokens", "16")["results"]
    assert [one["generated"] for one in predicted] == [tokenizer.decode(ids, skip_special_tokens=True) for ids in made]
    assert [(one["tokens"], one["ended"]) for one in predicted] == [(len(ids), True) for ids in made]

    chats = [talk(question, "")[:1] for question in questions if kind != "instruct"]
    by_ids, by_chat = run_client("llama-cpp", SCRIPT, export, json.dumps(prompts), json.dumps(chats))
    assert by_ids == [[ids, "eos"] for ids in made]
    assert [[text.strip(), stop] for text, stop in by_chat] == [[text, "stop"] for text in texts[: len(chats)]]
    modelfile = (export / "Modelfile").read_text()
    assert "TEMPLATE" in modelfile
    assert [line for line in modelfile.splitlines() if line.startswith("PARAMETER stop")] == [
        f'PARAMETER stop "{end}"' for end in ENDS[kind]
    ]


@pytest.mark.slow
def test_the_last_lines_of_a_run_say_that_texts_do_not_end(shared: Path, tmp_path: Path) -> None:
    shell = project(
        tmp_path, shared, "instruct", train={"max_steps": 2}, export={"target": "none"}, tokenize={"max_length": 42}
    )
    done = shell("run", "recipe.yaml", "--direct")
    assert done.returncode == 0, done.stderr
    table, verdict, rest = done.stdout.partition("verdict")
    last = [line.strip() for line in rest.splitlines()]
    assert table.splitlines()[-1].startswith("evaluate_model ") and verdict
    first, note, *_ = last[next(at for at, line in enumerate(last) if line.startswith("bits_per_byte ")) :]
    assert "the model before training has" in first
    assert note.startswith("3 of 3 generated texts did not end within 16 tokens: the model has not learnt to stop")
    assert note.endswith("tokenize.max_length cut the end of 36 of 36 answers of train")
    # a run that finds everything done says it, too
    assert shell.json("run", "recipe.yaml", "--direct")["notes"][-len(last) :] == last
    report = tmp_path / "report"
    shell("get", "recipe.yaml", "evaluate_model", str(report))
    assert json.loads((report / "report.json").read_text())["notes"][:2] == [first, note]


def test_a_template_without_an_end_stops_a_run_before_it_trains(shared: Path, tmp_path: Path) -> None:
    shell = project(tmp_path, shared, "chat", format={"chat_template": CHATML.replace("<|im_end|>", "")})
    said = shell.error("run", "recipe.yaml", "--direct", "--no-rehearse", code=2)
    assert "format.chat_template: no special token ends the answers" in said and "{{ eos_token }}" in said
    assert "split train row 1, its answer ends in" in said and "train   " not in said
    assert """name the token that it writes, such as 'tokenize.new_tokens=["<|im_end|>"]';""" in said
    assert shell("get", "recipe.yaml", "consolidate", str(tmp_path / "model")).returncode != 0
