"""`trnflow new config.yml`: the recipe, the rows as the model reads them, what is said, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.flows.translation.test_keys import AXOLOTL, INFO, LLAMA, PAIRS, here, resolved, rows, translated
from tests.helpers.chats import tokenizer_in
from tests.helpers.command_line import InProcessShell, Shell
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.other_programs import program_of
from trnflow.flows.translation import write
from trnflow.flows.translation.templates import AXOLOTL as TEMPLATES
from trnflow.flows.translation.templates import LLAMA_FACTORY
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.errors import ConfigError

__all__ = ["here"]  # a fixture
ALPACA = [{"instruction": f"say {n}", "input": "" if n % 2 else "now", "output": f"it is {n}"} for n in range(30)]
TALKS = [
    {"conversations": [{"from": "human", "value": f"hi {n}"}, {"from": "gpt", "value": f"yes {n}"}]} for n in range(30)
]
SYSTEMS = [{"instruction": f"say {n}", "output": f"it is {n}", "sys": "" if n % 2 else "Be kind."} for n in range(30)]
OPENING = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
PAIRED = OPENING.replace("a task.", "a task, paired with an input that provides further context.")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "data").mkdir()
    tokenizer_in(tmp_path / "model", LLAMA_FACTORY["llama3"])
    (tmp_path / "model/config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "data/alpaca.json").write_text(json.dumps(ALPACA))
    (tmp_path / "data/talks.jsonl").write_text("\n".join(map(json.dumps, TALKS)))
    (tmp_path / "data/systems.jsonl").write_text("\n".join(map(json.dumps, SYSTEMS)))
    info = {"a": {"file_name": "alpaca.json"}, "t": {"file_name": "talks.jsonl", "formatting": "sharegpt"}}
    (tmp_path / "data/dataset_info.json").write_text(json.dumps(info))
    return InProcessShell(tmp_path)


def write_config(folder: Path, config: dict[str, Any], name: str = "config.yml") -> None:
    (folder / name).write_text(yaml.safe_dump(config))


def of_axolotl(**entry: Any) -> dict[str, Any]:
    return {"base_model": "./model", "learning_rate": 2e-4, "sequence_len": 256, "datasets": [entry]}


def of_llama_factory(name: str, template: str) -> dict[str, Any]:
    return {
        "model_name_or_path": "./model", "stage": "sft", "do_train": True, "dataset": name, "template": template,
        "cutoff_len": 256,
    }  # fmt: skip


LLAMA3 = "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
QWEN = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
ROWS = {
    # in axolotl Alpaca's headings, in LLaMA-Factory a turn of the user's
    "axolotl's alpaca": (
        of_axolotl(path="data/alpaca.json", type="alpaca"),
        [f"<s>{PAIRED}\n\n### Instruction:\nsay 0\n\n### Input:\nnow\n\n### Response:\n", "it is 0</s>"],
        [f"<s>{OPENING}\n\n### Instruction:\nsay 1\n\n### Response:\n", "it is 1</s>"],
    ),
    "axolotl's alpaca:phi": (
        of_axolotl(path="data/alpaca.json", type="alpaca:phi"),
        [f"<s><|system|>\n{PAIRED}<|end|>\n<|user|>\nsay 0<|end|>now<|assistant|>", "it is 0</s>"],
        [f"<s><|system|>\n{OPENING}<|end|>\n<|user|>\nsay 1<|end|>\n<|assistant|>\n", "it is 1</s>"],
    ),
    "a prompt of one's own": (
        of_axolotl(
            path="data/alpaca.json",
            type={
                "field_output": "output",
                "system_prompt": "Be short.",
                "system_format": "{system}\n",
                "format": "Q: {instruction} ({input}) A: ",
                "no_input_format": "Q: {instruction} A: ",
            },
        ),
        ["<s>Be short.\nQ: say 0 (now) A: ", "it is 0</s>"],
        ["<s>Be short.\nQ: say 1 A: ", "it is 1</s>"],
    ),
    "a prompt of one's own, with system prompts in the rows": (
        of_axolotl(
            path="data/systems.jsonl",
            type={
                "field_system": "sys",
                "field_output": "output",
                "system_prompt": "Be short.",
                "system_format": "{{{system}}}\n",
                "no_input_format": "Q {{x}}: {instruction} A: ",
            },
        ),
        ["<s>{Be kind.}\nQ {x}: say 0 A: ", "it is 0</s>"],
        ["<s>Q {x}: say 1 A: ", "it is 1</s>"],
    ),
    "axolotl's chat_template": (
        {
            **of_axolotl(
                path="data/talks.jsonl",
                type="chat_template",
                field_messages="conversations",
                message_property_mappings={"role": "from", "content": "value"},
            ),
            "chat_template": "llama3",
        },
        ["<s>" + LLAMA3.format("hi 0"), "yes 0<|eot_id|>"],
        ["<s>" + LLAMA3.format("hi 1"), "yes 1<|eot_id|>"],
    ),
    "LLaMA-Factory's alpaca": (
        of_llama_factory("a", "llama3"),
        ["<s>" + LLAMA3.format("say 0\nnow"), "it is 0<|eot_id|>"],
        ["<s>" + LLAMA3.format("say 1"), "it is 1<|eot_id|>"],
    ),
    "LLaMA-Factory's sharegpt": (
        of_llama_factory("t", "qwen"),
        [QWEN.format("hi 0"), "yes 0<|im_end|>\n"],
        [QWEN.format("hi 1"), "yes 1<|im_end|>\n"],
    ),
}
"""{what: (config, [prompt, what is trained on] of the first rows)}, as the program's own source writes them."""


QUICK = (
    "a prompt of one's own, with system prompts in the rows",
    "axolotl's alpaca",
    "axolotl's chat_template",
    "LLaMA-Factory's alpaca",
)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly) for name in ROWS]
)
def test_rows_are_read_as_the_program_writes_them(shell: Shell, name: str) -> None:
    config, *expected = ROWS[name]
    write_config(shell.folder, config)
    assert shell("new", "config.yml").returncode == 0
    document = shell.json("preview", "config.yaml")
    assert [[span["text"] for span in row["spans"]] for row in document["rows"]][:2] == expected
    assert all([span["train"] for span in row["spans"]] == [False, True] for row in document["rows"])


def test_a_process_writes_a_recipe_and_says_what_became_of_each_key(shell: Shell) -> None:
    shell = Shell(shell.folder)
    extra = {"wandb_name": "mine", "loss_watchdog_patience": 3, "weight_decay": 0.1, "num_epochs": 0.5}
    write_config(shell.folder, {**of_axolotl(path="data/alpaca.json", type="alpaca"), **extra})
    done = shell("new", "config.yml", "train.log_every=3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "a config of axolotl: 9 keys"
    assert "  weight_decay                       train.weight_decay=0.1" in lines
    assert "  datasets.0.type                    format.task=instruction, format.style=alpaca" in lines
    assert "  wandb_name: `trnflow ui` shows each run in MLflow; tracking.also names other trackers" in lines
    assert "  loss_watchdog_patience: 3: training stops by itself where the loss is not finite" in lines
    assert any(line.startswith("  num_epochs: 0.5: train.epochs is whole: 1 is written") for line in lines)
    assert lines[-1].startswith("wrote config.yaml: `trnflow preview config.yaml`")
    recipe = settings.load(str(shell.folder / "config.yaml"))
    assert (recipe.train.weight_decay, recipe.train.epochs, recipe.train.log_every) == (0.1, 1, 3)
    text = (shell.folder / "config.yaml").read_text()
    assert "  weight_decay: 0.1   # weight_decay\n" in text and "  seed: 42   # axolotl's default\n" in text
    assert "config.yaml exists" not in shell("new", "config.yml", "name=other").stderr


def test_as_json_each_key_has_its_outcome(shell: Shell) -> None:
    write_config(shell.folder, of_llama_factory("a", "llama3"))
    document = shell.json("new", "config.yml")
    assert document["program"] == "LLaMA-Factory" and document["written"] == ["config.yaml", "config_rows.py"]
    assert {entry["key"] for entry in document["keys"]} == of_llama_factory("a", "llama3").keys()
    assert document["settings"]["train"]["lora"] == {"rank": 8, "alpha": 16, "targets": "all-linear"}


def test_the_config_itself_and_files_in_the_way_stay(shell: Shell) -> None:
    write_config(shell.folder, of_llama_factory("a", "llama3"), "config.yaml")
    before = (shell.folder / "config.yaml").read_bytes()
    assert "wrote config-recipe.yaml and config_recipe_rows.py" in shell("new", "config.yaml").stdout
    assert (shell.folder / "config.yaml").read_bytes() == before
    (shell.folder / "other_rows.py").write_text("mine")
    assert "other_rows.py exists" in shell.error("new", "config.yaml", "name=other", code=2)
    assert not (shell.folder / "other.yaml").exists() and (shell.folder / "other_rows.py").read_text() == "mine"
    wrong = shell.error("new", "config.yaml", "name=another", "train.epochs=0", code=2)
    assert "override train.epochs: train.epochs can't be 0" in wrong and not list(shell.folder.glob("another*"))


def test_a_schedule_and_devices_are_taken(shell: Shell) -> None:
    write_config(shell.folder, {**of_axolotl(path="data/alpaca.json", type="alpaca"), "micro_batch_size": 2})
    done = shell(
        "new", "config.yml", "--deploy", "0 3 * * *", "train.devices=4", "train.engine=native", "train.device=cpu"
    )
    assert done.returncode == 0 and "prefect.yaml" in done.stdout, done.stderr
    assert settings.load(str(shell.folder / "config.yaml")).train.global_batch == 8
    assert "is for one device" not in done.stdout
    assert "--code is for data" in shell.error("new", "config.yml", "--code", "name=b", code=2)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_config_given_as_a_recipe_says_what_translates_it(shell: Shell, command: str) -> None:
    write_config(shell.folder, AXOLOTL)
    error = shell.error(command, "config.yml", code=2)
    assert "config.yml is a config of axolotl, not a recipe" in error
    assert f"fix: `trnflow new {shell.folder / 'config.yml'}` writes one" in error


def test_a_shape_of_llama_factory_that_is_not_translated_is_named(shell: Shell) -> None:
    write_config(shell.folder, {"model": "Qwen/Qwen3-4B", "train_dataset": "data/sft.yaml", "max_steps": 10})
    assert "is a config of LLaMA-Factory's v1, which is not translated" in shell.error("new", "config.yml", code=2)
    assert "is a config of LLaMA-Factory v1, not a recipe" in shell.error("plan", "config.yml", code=2)


def test_a_recipe_and_other_files_are_no_configs(shell: Shell) -> None:
    (shell.folder / "mine.yaml").write_text("extends: demo\nmodel: {source: x}\n")
    assert "neither data nor a config of axolotl" in shell.error("new", "mine.yaml", code=2)
    assert "can't be read" in shell.error("new", "nothing.yml", code=2)
    (shell.folder / "big.yml").write_bytes(b"base_model: x\ndatasets: []\n" + b"#" * (1 << 20))
    assert "has more than 1,048,576 bytes" in shell.error("new", "big.yml", code=2)
    (shell.folder / "odd.yml").write_text("base_model: !!python/object/apply:os.system [ls]\ndatasets: []\n")
    assert "type python/object/apply:os.system" in shell.error("new", "odd.yml", code=2)
    trees: list[Any] = [
        None,
        [],
        "base_model",
        {"base_model": "x"},
        {"model_name_or_path": "x"},
        {"model": {"source": "x"}},
    ]
    assert not any(map(program_of, trees))


def test_texts_of_a_config_stay_texts_in_the_recipe(here: Path) -> None:
    nasty = "x\ndata: {make: os:system} # \x1b[31m"
    t_config = {**AXOLOTL, "base_model": nasty, "wandb_name": nasty, nasty: nasty, "chat_template": nasty}
    recipe = resolved(t_config)
    assert recipe.model.source == nasty and recipe.data.make is None and not recipe.hooks
    info = json.loads(INFO)
    info["talks"] = {"file_name": "a.json", "columns": {"prompt": 'a"\nimport os', "response": "'''", "query": "\\"}}
    Path("rows/dataset_info.json").write_text(json.dumps(info))
    functions = translated(LLAMA).functions
    space: dict[str, Any] = {}
    exec(next(iter(functions.values())), space)
    row = {'a"\nimport os': "asked", "'''": "answered", "\\": "more"}
    assert [message["content"] for message in space["make"](row)["messages"]] == ["asked\nmore", "answered"]


def test_secrets_of_a_config_are_neither_printed_nor_written(shell: Shell) -> None:
    secrets = {
        "swanlab_api_key": "hidden-1", "my_token": "hidden-2", "my_server": "http://me:hidden-3@host",
        "trl": {"vllm_server_token": "hidden-4", "more": [{"password": "hidden-5"}]}, "mine": "hf_hidden-678901234567",
        "mlflow_tracking_uri": "http://me:hidden-7@host",
    }  # fmt: skip
    config = {**of_axolotl(path="data/alpaca.json", type="alpaca"), **secrets}
    write_config(shell.folder, config)
    for name, form in (("a", ()), ("b", ("--json",))):
        done = shell("new", "config.yml", f"name={name}", *form)
        assert done.returncode == 0 and "my_token" in done.stdout
        assert "hidden-" not in done.stdout + (shell.folder / f"{name}.yaml").read_text()


def test_new_tokens_beside_lora_are_said_to_train_less(here: Path) -> None:
    assert "modules_to_save" in " ".join(translated({**LLAMA, "add_tokens": "<a>"}).notes)
    for more in ({"additional_target": "embed_tokens"}, {"finetuning_type": "full"}):
        t = translated({**LLAMA, "add_tokens": "<a>", "resize_vocab": True, **more})
        assert "modules_to_save" not in " ".join(t.notes) and t.entries["resize_vocab"].outcome == "no effect"


def test_the_function_of_alpaca_rows_reads_system_and_history(here: Path) -> None:
    info = {
        "talks": {"file_name": "a.json", "columns": {"prompt": "q", "response": "a", "system": "s", "history": "h"}}
    }
    Path("rows/dataset_info.json").write_text(json.dumps(info))
    space: dict[str, Any] = {}
    exec(next(iter(translated(LLAMA).functions.values())), space)
    talk = space["make"]({"q": "three", "a": "four", "s": "be kind", "h": [["one", "two"]]})["messages"]
    assert [(turn["role"], turn["content"]) for turn in talk] == [
        ("system", "be kind"), ("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four"),
    ]  # fmt: skip
    assert space["make"]({"q": "no answer", "a": None}) is None


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**AXOLOTL, "rl": "grpo"}, "rl 'grpo' is not translated: no reinforcement learning"),
        (
            {**AXOLOTL, "processor_type": "AutoProcessor"},
            "processor_type 'AutoProcessor' is not translated: trnflow trains on texts alone",
        ),
        ({**AXOLOTL, "adapter": "llama-adapter"}, "adapter 'llama-adapter' is not translated: trnflow has LoRA"),
        ({**AXOLOTL, "optimizer": "muon"}, "optimizer can't be 'muon': trnflow has adamw, adamw_8bit and adafactor"),
        (
            {**AXOLOTL, "plugins": ["axolotl.integrations.diffusion.DiffusionPlugin"]},
            "plugins is not translated: axolotl.integrations.diffusion",
        ),
        (
            {**AXOLOTL, "datasets": rows(type="jeopardy")},
            "datasets.0.type 'jeopardy' is not translated: trnflow has no such rows",
        ),
        (
            {**AXOLOTL, "datasets": [*rows(), *rows(type="alpaca")]},
            "format.task would be both 'chat' and 'instruction'",
        ),
        (
            {**AXOLOTL, "datasets": [*rows(), *rows(field_messages="talk")]},
            "format.messages would be both 'messages' and 'talk'",
        ),
        (
            {**AXOLOTL, "datasets": [*rows(), *rows(field_tools="calls")]},
            "format.tools would be both 'tools' and 'calls'",
        ),
        (
            {**AXOLOTL, "datasets": [*rows(field_system="sys"), *rows()]},
            "format.system would be both 'sys' and 'system'",
        ),
        (
            {**AXOLOTL, "datasets": rows(roles={"assistant": ["narrator"]})},
            "datasets.0.roles is not translated: trnflow reads the role narrator",
        ),
        ({**AXOLOTL, "datasets": rows(roles_to_train=["user"])}, "trnflow trains on the assistant's turns"),
        (
            {**AXOLOTL, "datasets": rows(message_property_mappings={"role": "who"})},
            "trnflow reads role from role or from, not who",
        ),
        (
            {**AXOLOTL, "datasets": rows(type={"field_instruction": "user-prompt"})},
            "datasets.0.type is not translated: a template can't name the column 'user-prompt'",
        ),
        ({**AXOLOTL, "datasets": rows(type={"field_output": "if"})}, "a template can't name the column 'if'"),
        ({**AXOLOTL, "datasets": rows(type={"format": "{instruction}{"})}, "'{instruction}{': "),
        ({**AXOLOTL, "datasets": rows(type={"format": "{output}"})}, "has the field output"),
        ({**AXOLOTL, "datasets": rows(data_files=["a", "b"])}, "data.source takes one file, folder or pattern"),
        ({**AXOLOTL, "adapter": "lora", "lora_target_modules": "vision.*"}, "vision.* is a pattern of whole names"),
        ({**AXOLOTL, "learning_rate": "fast"}, "learning_rate can't be 'fast'"),
        ({**AXOLOTL, "micro_batch_size": [2]}, "micro_batch_size can't be a list: it must be a number"),
        ({**LLAMA, "do_train": False}, "do_train false is not translated: it trains nothing"),
        ({**LLAMA, "stage": "ppo"}, "stage 'ppo' is not translated: no reinforcement learning"),
        (
            {**LLAMA, "stage": "dpo", "dataset": "pairs", "pref_loss": "hinge"},
            "pref_loss 'hinge' is not translated: trnflow has sigmoid, ipo, orpo, simpo",
        ),
        ({**LLAMA, "stage": "dpo"}, "talks has no `ranking: true`"),
        ({**LLAMA, "finetuning_type": "oft"}, "finetuning_type 'oft' is not translated: trnflow trains all weights"),
        ({**LLAMA, "quantization_bit": 3}, "quantization_bit 3 is not translated"),
        ({**LLAMA, "dataset": "nobody"}, "dataset 'nobody' is not translated: rows/dataset_info.json has no nobody"),
        (
            {**LLAMA, "dataset_dir": "elsewhere"},
            "there is no elsewhere/dataset_info.json, which says what these rows are",
        ),
        ({**LLAMA, "dataset_dir": "REMOTE:org/rows"}, "dataset_dir 'REMOTE:org/rows' is not translated"),
        ({**LLAMA, "dataset": "talks,texts"}, "talks and texts have other formats in dataset_info.json"),
        ({**LLAMA, "dataset": "talks, texts"}, "talks and texts have other formats in dataset_info.json"),
        (
            {**LLAMA, "dataset": "talks,more", "mix_strategy": "interleave_under", "interleave_probs": "0.5"},
            "it has 1 shares for 2 sources",
        ),
        (
            {**AXOLOTL, "datasets": rows(split="train+test")},
            "datasets.0.split 'train+test' is not translated: data.splits has one",
        ),
        ({**AXOLOTL, "datasets": rows(split="[:5]")}, "datasets.0.split '[:5]' is not translated: it names no split"),
        ({**AXOLOTL, "adapter": "qlora", "load_in_8bit": True}, "load_in_8bit true is not translated: qlora is of 4"),
        ({**LLAMA, "use_galore": True}, "use_galore true is not translated: trnflow has adamw"),
    ],
)
def test_what_would_be_half_a_recipe_is_one_error_that_names_the_key(
    here: Path, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        translated(config)
    assert says in caught.value.message and caught.value.message.startswith("config.yml:") and caught.value.fix


@pytest.mark.parametrize(
    ("key", "value", "setting"),
    [
        ("learning_rate", -1, "train.learning_rate"),
        ("weight_decay", -3, "train.weight_decay"),
        ("adam_beta1", 1.5, "train.beta1"),
        ("seed", -7, "train.seed"),
        ("lora_r", 0, "train.lora.rank"),
        ("lora_dropout", 2, "train.lora.dropout"),
        ("lora_target_modules", ["q_proj", ""], ""),
        ("eval_batch_size", 10**8, "evaluate.batch"),
        ("sequence_len", 10**10, "tokenize.max_length"),
        ("val_set_size", -0.2, ""),
        ("warmup_ratio", 1.5, ""),
        ("chat_template_kwargs", {"messages": 1}, "format.template_arguments"),
    ],
)
def test_a_value_that_no_recipe_takes_is_named_at_its_line_of_the_config(
    shell: Shell, key: str, value: Any, setting: str
) -> None:
    config = {**of_axolotl(path="data/talks.jsonl", type="chat_template"), "adapter": "lora"}
    config.pop(key, None)
    (shell.folder / "config.yml").write_text(yaml.safe_dump(config, sort_keys=False) + yaml.safe_dump({key: value}))
    error = shell.error("new", "config.yml", code=2)
    line = (shell.folder / "config.yml").read_text().splitlines().index(
        yaml.safe_dump({key: value}).splitlines()[0]
    ) + 1
    assert f"error: config.yml:{line}: {key}{f': {setting}' if setting else ' '}" in error
    assert "config.yaml" not in error and "unfinished" not in error and not [*shell.folder.glob("*.yaml")]


def test_what_is_nearly_the_same_is_written_and_named(here: Path) -> None:
    for config, key, setting, value in (
        ({**AXOLOTL, "num_epochs": 2.5}, "num_epochs", "train.epochs", 2),
        ({**AXOLOTL, "optimizer": "adamw_torch_4bit"}, "optimizer", "train.optimizer", "adamw_8bit"),
        ({**AXOLOTL, "lr_scheduler": "rex"}, "lr_scheduler", "train.schedule", "cosine"),
        ({**AXOLOTL, "warmup_steps": 10}, "warmup_steps", "train.warmup_ratio", None),
        ({**AXOLOTL, "val_set_size": 500}, "val_set_size", "data.split", {}),
        ({**AXOLOTL, "evals_per_epoch": 4, "val_set_size": 0.1}, "evals_per_epoch", "train.eval_every_epoch", True),
        ({**AXOLOTL, "chat_template": "qwen3_5"}, "chat_template", "format.chat_template", "tokenizer"),
        ({**AXOLOTL, "train_on_inputs": True}, "train_on_inputs", "format.task", "chat"),
        ({**AXOLOTL, "special_tokens": {"eos_token": "<e>"}}, "special_tokens", "tokenize.new_tokens", None),
        ({**AXOLOTL, "datasets": rows(split="train[:20%]")}, "datasets.0.split", "data.splits", {"train": "train"}),
        (
            {**AXOLOTL, "datasets": rows(message_field_training="learn")},
            "datasets.0.message_field_training",
            "format.turns",
            None,
        ),
        ({**AXOLOTL, "datasets": rows(train_on_eos="all")}, "datasets.0.train_on_eos", "format.turns", None),
        ({**AXOLOTL, "overrides_of_model_kwargs": {"x": 1}}, "overrides_of_model_kwargs", "model.overrides", None),
        (
            {**AXOLOTL, "adapter": "lora", "peft_autocast_adapter_dtype": False},
            "peft_autocast_adapter_dtype",
            "train.method",
            "lora",
        ),
        (
            {**AXOLOTL, "adapter": "lora", "lora_target_linear": True, "lora_target_modules": ["embed_tokens"]},
            "lora_target_modules",
            "train.lora.targets",
            "all-linear",
        ),
        ({**LLAMA, "resize_vocab": True}, "resize_vocab", "train.lora.modules_to_save", None),
        ({**LLAMA, "mlflow_tracking_uri": "http://me:pw@host"}, "mlflow_tracking_uri", "tracking.uri", None),
        ({**LLAMA, "template": "qwen3"}, "template", "format.chat_template", "tokenizer"),
        ({**LLAMA, "train_on_prompt": True}, "train_on_prompt", "format.task", "chat"),
        ({**LLAMA, "dataset": "talks,more", "max_samples": 10}, "max_samples", "data.limit", None),
        (
            {**LLAMA, "pissa_init": True, "pissa_iter": 8},
            "pissa_iter",
            "train.lora.init_lora_weights",
            "pissa_niter_16",
        ),
    ):
        t = translated(config)
        assert t.entries[key].outcome == "not translated", key
        assert t.get(setting) == value, key


def test_axolotls_layers_of_a_dense_model_are_translated(here: Path) -> None:
    pattern = r"model.language_model.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj"
    recipe = resolved({**AXOLOTL, "adapter": "lora", "lora_target_modules": pattern})
    assert recipe.train.lora and recipe.train.lora.targets and "self_attn.q_proj" in recipe.train.lora.targets
    assert len(recipe.train.lora.targets) == 7


def test_several_sources_become_a_mixture(here: Path) -> None:
    recipe = resolved({**AXOLOTL, "datasets": [*rows(name="a"), *rows(path="org/more", split="train[:5]"), *rows()]})
    assert recipe.data.mix and [*recipe.data.mix] == ["rows", "more", "rows-3"]
    assert (recipe.data.mix["rows"].name, recipe.data.mix["more"].source) == ("a", "org/more")
    recipe = resolved({**LLAMA, "dataset": "talks, more", "mix_strategy": "interleave_under"})
    assert recipe.data.mix and {name: source.weight for name, source in recipe.data.mix.items()} == {
        "talks": 1.0,
        "more": 1.0,
    }


def test_the_tables_have_templates_that_name_no_file_of_this_machine() -> None:
    assert {"chatml", "llama3", "gemma3"} <= TEMPLATES.keys() and {"llama3", "qwen", "default"} <= LLAMA_FACTORY.keys()
    assert all("generation" in template for template in LLAMA_FACTORY.values())


@pytest.mark.parametrize("name", [*LLAMA_FACTORY])
def test_a_template_that_is_written_without_tools_refuses_them(name: str) -> None:
    special = {"eos_token": "</s>", "bos_token": "<s>"}
    template = ChatTemplate("theirs", LLAMA_FACTORY[name], special, date="2026-01-01", arguments={})
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    assert "yes" in template.render({"messages": talk, "tools": None}, "row 1")
    for given in (
        {"messages": talk, "tools": [{"name": "look"}]},
        {"messages": [*talk, {"role": "tool", "content": "found"}]},
        {"messages": [talk[0], {**talk[1], "tool_calls": [{"function": {"name": "look"}}]}]},
    ):
        with pytest.raises(Exception, match="written here without tools"):
            template.render(given, "row 1")


def test_columns_that_are_not_named_in_dataset_info_are_not_read(here: Path) -> None:
    recipe = resolved(LLAMA)
    assert (recipe.format.system, recipe.format.tools) == (None, None)
    info = {"talks": {**json.loads(INFO)["talks"], "columns": {"messages": "m", "system": "s", "tools": "calls"}}}
    Path("rows/dataset_info.json").write_text(json.dumps(info))
    recipe = resolved({**LLAMA, "template": "llama3"})
    assert (recipe.format.system, recipe.format.tools) == ("s", "calls")
    assert any(
        "template llama3 is written without tools" in note for note in translated({**LLAMA, "template": "llama3"}).notes
    )


@pytest.mark.parametrize("base", [AXOLOTL, LLAMA], ids=["axolotl", "llama-factory"])
def test_devices_that_share_their_rows_count_once_in_the_batch(here: Path, base: dict[str, Any]) -> None:
    batch = {"micro_batch_size": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    config = {**base, **batch, "context_parallel_size": 2, "tensor_parallel_size": 2}
    Path("config.yml").write_text(yaml.safe_dump(config))
    assert write.translated(Path("config.yml"), ["train.devices=8"]).get("train.global_batch") == 12
    alone = write.translated(Path("config.yml"), [])
    assert alone.get("train.global_batch") == 6 and "N x 6 / 4, as 4 of them share" in " ".join(alone.notes)


def test_warm_up_lengths_and_first_rows_are_as_axolotl_takes_them(here: Path) -> None:
    # Trainer would go on to the share
    assert resolved({**AXOLOTL, "warmup_steps": 0, "warmup_ratio": 0.1}).train.warmup_ratio == 0
    assert resolved({**AXOLOTL, "warmup_ratio": 0.1}).train.warmup_ratio == 0.1
    texts = translated({**AXOLOTL, "datasets": rows(type="completion"), "excess_length_strategy": "raise"})
    assert texts.get("tokenize.overlong") == "split"
    assert texts.entries["excess_length_strategy"].outcome == "no effect"
    assert "the first rows are read" in " ".join(translated({**AXOLOTL, "datasets": rows(split="train[:5]")}).notes)


@pytest.mark.parametrize("text", ["a\n\n", "a\x85b\n", "a\n  b", " a\nb\n", "a\n\n\n  ", "\ta\nb", "a\u2028b\nc"])
def test_a_template_of_any_lines_stays_as_it_is(here: Path, text: str) -> None:
    config = {**AXOLOTL, "chat_template": "jinja", "chat_template_jinja": text}
    assert resolved(config).format.chat_template == text


@pytest.mark.parametrize("name", ["2024-run", "x" * 250, "\u00e4" * 120, "class"])
def test_the_name_of_a_config_becomes_names_of_files_and_of_a_module(shell: Shell, name: str) -> None:
    write_config(shell.folder, of_llama_factory("a", "llama3"), f"{name}.yml")
    recipe, module = shell.json("new", f"{name}.yml")["written"]
    assert Path(module).stem.isidentifier() and len(recipe.encode()) < 200
    assert settings.load(str(shell.folder / recipe)).format.make == f"{Path(module).stem}:make"


def test_devices_are_a_number_or_leave_the_batch_alone(here: Path) -> None:
    Path("config.yml").write_text(yaml.safe_dump({**AXOLOTL, "micro_batch_size": 2}))
    for given, batch in (("train=3", 2), ("train.devices=auto", 2), ("train.devices=4", 8), ('train.devices="4"', 8)):
        t = write.translated(Path("config.yml"), [f"{given}", "data.limit=5"])
        assert not isinstance(t.settings["train"], dict) or t.get("train.global_batch") == batch


PACKS = {"packing": True}
NOTES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "held out": ({**AXOLOTL, "val_set_size": 0.1}, "drawn by what it holds", AXOLOTL),
    "held out by LLaMA-Factory": ({**LLAMA, "val_size": 0.1}, "drawn by what it holds", LLAMA),
    "updates": (AXOLOTL, "warm-up down", {**AXOLOTL, "max_steps": 5}),
    "line breaks": (AXOLOTL, "also a line break", {**AXOLOTL, "datasets": rows(type="alpaca")}),
    "bos of pairs": (
        {**AXOLOTL, "rl": "dpo", "datasets": rows(type="chat_template.default")}, "bos stands before each text", AXOLOTL,
    ),
    "first rows": ({**LLAMA, "max_samples": 5}, "the first rows are read", LLAMA),
    "bos of texts": ({**LLAMA, "stage": "pt", "dataset": "texts"}, "first token (bos)", LLAMA),
    "chunks": ({**LLAMA, **PACKS}, "a token shorter", {**LLAMA, "neat_packing": True}),
}  # fmt: skip
"""{what differs: (config, what `new` says, a config of which it is not said)}, as tests/clients/test_other_trainers.py found."""


@pytest.mark.parametrize("name", NOTES)
def test_what_differs_is_said_where_it_does(here: Path, name: str) -> None:
    config, note, other = NOTES[name]
    assert note in " ".join(translated(config).notes) and note not in " ".join(translated(other).notes)


@pytest.mark.parametrize(
    "config",
    [
        {**AXOLOTL, "base_model": "https://me:hunter22@host/model"},
        {**AXOLOTL, "datasets": rows(path="https://me:hunter22@host/rows.jsonl")},
        {**LLAMA, "model_name_or_path": "https://me:hunter22@host/model"},
    ],
    ids=["model", "rows", "llama-factory"],
)
def test_an_address_with_a_secret_is_refused_without_it(here: Path, config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="it holds a secret") as error:
        translated(config)
    assert "hunter22" not in f"{error.value.message} {error.value.fix}"


def test_a_recipe_beside_a_config_has_no_shipped_recipe_s_name(here: Path) -> None:
    assert write.name_beside(Path("demo.yml"), {}) == "demo-recipe"
    assert write.name_beside(Path("tickets.yml"), {}) == "tickets"
    assert write.name_beside(Path("tickets.yml"), {"name": "mine"}) == "mine"


def test_lengths_that_a_config_of_axolotl_leaves_out_are_named_as_its_default(here: Path) -> None:
    lengths = ["  max_length: 512   # axolotl's default", "  chunk_length: 512   # axolotl's default"]
    t = translated(AXOLOTL)
    assert [line for line in write.recipe_text(t).splitlines() if "_length" in line] == lengths
    assert "tokenize.max_length" in "\n".join(write.table(t))
    pairs = write.recipe_text(translated({**AXOLOTL, **PAIRS}))
    assert "  chunk_length: 1024   # both answers of a row" in pairs


def test_the_table_names_the_split_that_the_recipe_reads(here: Path) -> None:
    for split in ({}, {"split": "test"}):
        t = translated({**AXOLOTL, "test_datasets": rows(**split)})
        read = t.settings["data"]["splits"]["validation"]
        assert read == split.get("split", "train")
        assert t.entries["test_datasets"].text == f"data.splits.validation={read}"
