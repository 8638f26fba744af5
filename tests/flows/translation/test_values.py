"""Each value that the translation tables name, against what was written by hand for it: optimizers, schedules, objectives, types
of rows, templates."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.flows.translation.test_keys import (
    AXOLOTL,
    INFO,
    LLAMA,
    LORA,
    OF_AXOLOTL,
    OF_DATASETS,
    OF_LLAMA_FACTORY,
    PAIRS,
    config_of,
    here,
    of_dataset,
    resolved,
    rows,
    translated,
    value_of,
)
from trnflow.flows.translation import axolotl, llama_factory, templates, trainer_keys, write
from trnflow.flows.translation.translation import hidden
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.errors import ConfigError

__all__ = ["here"]  # a fixture
OPTIMIZERS = {
    "adamw": "adamw_torch adamw_torch_fused adamw_hf adamw_apex_fused paged_adamw paged_adamw_32bit adamw",
    "adamw_8bit": "adamw_bnb_8bit adamw_8bit paged_adamw_8bit adamw_torch_8bit ao_adamw_8bit",
    "adafactor": "adafactor",
}
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup constant"}
PAIRS_OF_LLAMA = {**LLAMA, "stage": "dpo", "dataset": "pairs"}
VALUES: list[tuple[dict[str, Any], str, str, dict[str, str]]] = [
    (AXOLOTL, "optimizer", "train.optimizer", OPTIMIZERS),
    (AXOLOTL, "lr_scheduler", "train.schedule", SCHEDULES),
    (AXOLOTL, "adapter", "train.method", {"lora": "lora qlora"}),
    (
        AXOLOTL,
        "excess_length_strategy",
        "tokenize.overlong",
        {"drop": "drop", "truncate": "truncate", "error": "raise"},
    ),
    ({**AXOLOTL, **PAIRS}, "rl", "train.objective", {"dpo": "dpo ipo", "orpo": "orpo", "simpo": "simpo"}),
    ({**AXOLOTL, **PAIRS}, "rl", "train.loss_type", {"sigmoid": "dpo", "ipo": "ipo"}),
    (LLAMA, "optim", "train.optimizer", OPTIMIZERS),
    (LLAMA, "lr_scheduler_type", "train.schedule", SCHEDULES),
    (LLAMA, "finetuning_type", "train.method", {"lora": "lora", "full": "full"}),
    (PAIRS_OF_LLAMA, "pref_loss", "train.objective", {"dpo": "sigmoid ipo", "orpo": "orpo", "simpo": "simpo"}),
    (PAIRS_OF_LLAMA, "pref_loss", "train.loss_type", {"sigmoid": "sigmoid", "ipo": "ipo"}),
    (
        {**LLAMA, "dataset": "talks,more"},
        "mix_strategy",
        "data.stopping_strategy",
        {"first_exhausted": "interleave_under", "all_exhausted": "interleave_over"},
    ),
]
"""(a config, key, setting, {ours: theirs})."""


@pytest.mark.parametrize("at", range(len(VALUES)), ids=[key for _, key, _, _ in VALUES])
def test_a_value_becomes_what_was_written_by_hand_for_it(here: Path, at: int) -> None:
    base, key, setting, expected = VALUES[at]
    for ours, theirs in expected.items():
        for value in theirs.split():
            assert value_of(resolved({**base, key: value}), setting) == ours, value


OF_TRNFLOW = {"train.keep_checkpoints": 2, "train.eps": 1e-8, "evaluate.batch": 32, "train.warmup_ratio": 0.0}
"""Settings that a translation may leave to trnflow's defaults."""


@pytest.mark.parametrize("whose", ["axolotl", "datasets", "llama-factory"])
def test_a_line_of_the_tables_writes_what_was_written_by_hand_for_it(here: Path, whose: str) -> None:
    """`test_keys` reads the recipes, too."""
    tables = {
        "axolotl": [(config_of(AXOLOTL, case), case) for case in OF_AXOLOTL],
        "datasets": [(of_dataset(case)[0], case) for case in OF_DATASETS],
        "llama-factory": [(config_of(LLAMA, case), case) for case in OF_LLAMA_FACTORY],
    }
    for config, case in tables[whose]:
        t = translated(config)
        found = {setting: t.get(setting) if t.has(setting) else OF_TRNFLOW.get(setting) for setting in case.expected}
        # tuples are lists in a recipe
        assert json.loads(json.dumps(found)) == json.loads(json.dumps(case.expected)), case.key


def test_two_answers_of_a_row_share_a_chunk_with_no_others(here: Path) -> None:
    for packed, plain in (
        ({**AXOLOTL, **PAIRS, "sample_packing": True}, {**AXOLOTL, "sample_packing": True}),
        ({**PAIRS_OF_LLAMA, "packing": True}, {**LLAMA, "packing": True}),
        ({**PAIRS_OF_LLAMA, "neat_packing": True}, {**LLAMA, "neat_packing": True}),
    ):
        assert (translated(packed).get("pack.strategy"), translated(plain).get("pack.strategy")) == ("pad", "bfd")


@pytest.mark.parametrize("form", ["hf_", "sk-", "ghp_", "github_pat_", "glpat-", "wandb_v1_"])
def test_a_token_is_shown_nowhere(form: str) -> None:
    assert hidden({"mine": [f"it is {form}abcDEF012345, truly"]}) == {"mine": ["it is ***, truly"]}
    assert hidden(f"my{form}abcDEF012345") == f"my{form}abcDEF012345", "a word that only holds it"


@pytest.mark.parametrize("key", ["base_model", "tokenizer_config"])
def test_an_address_with_a_secret_becomes_no_setting(here: Path, key: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^config.yml:\d+: {key} .*it holds a secret, and a recipe holds none"
    ) as error:
        translated({**AXOLOTL, key: "https://me:hunter2@host/model"})
    assert "hunter2" not in error.value.message


@pytest.mark.parametrize(("updates", "warm"), [(30, 0), (40, 2), (1000, 30), (10_000, 100)])
def test_axolotl_warms_up_for_3_percent_of_known_updates_rounded_down_and_for_100_at_most(
    here: Path, updates: int, warm: int
) -> None:
    share = translated({**AXOLOTL, "max_steps": updates}).get("train.warmup_ratio")
    assert math.ceil(share * updates) == warm  # trnflow rounds up


def test_no_value_of_the_tables_is_missing_above() -> None:
    def theirs(table: dict[str, str]) -> set[str]:
        return {value for values in table.values() for value in values.split()}

    assert theirs(OPTIMIZERS) == trainer_keys.OPTIMIZERS.keys() and theirs(SCHEDULES) == trainer_keys.SCHEDULES.keys()
    assert theirs(VALUES[4][3]) | {"kto"} == axolotl.PREFERENCES.keys()
    assert theirs(VALUES[9][3]) == llama_factory.LOSSES.keys()
    assert set(llama_factory.STAGES) == {"sft", "pt", "rm", "kto"}


def test_stages_of_llama_factory_have_their_objectives(here: Path) -> None:
    for stage, dataset, objective in (
        ("sft", "talks", "sft"), ("pt", "texts", "sft"), ("rm", "pairs", "reward"), ("kto", "marks", "kto"),
        ("dpo", "pairs", "dpo"),
    ):  # fmt: skip
        assert resolved({**LLAMA, "stage": stage, "dataset": dataset}).train.objective == objective


CHAT, TEXT = "chat", "text"
TYPES = [
    (AXOLOTL, "chat_template", CHAT), (AXOLOTL, "sharegpt", CHAT), (AXOLOTL, "sharegpt.load_multirole", CHAT),
    (AXOLOTL, "completion", TEXT), (AXOLOTL, "pretrain", TEXT), (AXOLOTL, "alpaca", "instruction"),
    (AXOLOTL, "alpaca:chat", "instruction"), (AXOLOTL, "alpaca:chatml", "instruction"), (AXOLOTL, "alpaca:phi", "instruction"),
    *(({**AXOLOTL, **PAIRS}, kind, "preference") for kind in (
        "chat_template.default", "chat_template.argilla_chat", "chat_template.argilla", "chatml.argilla_chat")),
    *(({**AXOLOTL, "rl": "kto"}, kind, "unpaired_preference") for kind in ("llama3.argilla_chat", "chatml.argilla_chat")),
]  # fmt: skip


def test_a_type_of_rows_has_the_task_that_was_written_by_hand_for_it(here: Path) -> None:
    for base, kind, task in TYPES:
        assert resolved({**base, "datasets": rows(type=kind)}).format.task == task, kind
    found = {kind for _, kind, _ in TYPES}
    known = {*axolotl.CHAT, *axolotl.PLAIN, *axolotl.PAIRS, *axolotl.KTO, *templates.PROMPTS}
    assert found == {*known, "alpaca"}


def test_builders_of_datasets_read_files(here: Path) -> None:
    assert axolotl.BUILDERS == ("json", "csv", "parquet", "arrow", "text")
    for builder in axolotl.BUILDERS:
        assert resolved({**AXOLOTL, "datasets": rows(path=builder, data_files="my/rows")}).data.source == "my/rows"
    for kind, ours in {"json": "jsonl", "csv": "csv", "parquet": "parquet", "arrow": "arrow", "text": "txt"}.items():
        assert resolved({**AXOLOTL, "datasets": rows(path="./rows", ds_type=kind)}).data.format == ours


AGREE: list[tuple[dict[str, Any], str, Any, str, str]] = [
    (AXOLOTL, "datasets.0.message_property_mappings", {"role": "from", "content": "value"}, "translated", "from and value"),
    (AXOLOTL, "datasets.0.message_field_role", "role", "translated", "role and content"),
    (AXOLOTL, "datasets.0.message_field_content", "content", "translated", "role and content"),
    (AXOLOTL, "datasets.0.roles", {"user": ["human"], "assistant": ["gpt"]}, "translated", "the same roles"),
    (AXOLOTL, "datasets.0.roles_to_train", ["assistant"], "translated", "format.turns=all"),
    (AXOLOTL, "datasets.0.message_field_training", "train", "translated", "is read by this name"),
    (AXOLOTL, "datasets.0.message_field_training_detail", "train_detail", "translated", "is read by this name"),
    (AXOLOTL, "metric_for_best_model", "eval_loss", "translated", "train.best_metric=eval_loss"),
    *((AXOLOTL, "chat_template", name, "translated", "format.chat_template=tokenizer") for name in (
        "tokenizer_default", "tokenizer_default_fallback_chatml")),
    (AXOLOTL, "train_on_inputs", False, "translated", "format.task=chat"),
    ({**AXOLOTL, "bf16": False}, "float32", True, "translated", "train.dtype=float32"),
    (AXOLOTL, "torch_compile", "auto", "translated", "train.compile=true"),
    ({**AXOLOTL, **LORA}, "peft_autocast_adapter_dtype", True, "no effect", "in fp32, as there"),
    (AXOLOTL, "peft_init_lora_weights", "pissa", "no effect", "no adapter"),
    ({**AXOLOTL, **LORA}, "peft_init_lora_weights", "loftq", "not translated", "gaussian, olora and pissa"),
    ({**AXOLOTL, **LORA}, "peft_init_lora_weights", "olora", "translated", "init_lora_weights=olora"),
    *((AXOLOTL, "plugins", [f"axolotl.integrations.{name}.Plugin"], "no effect", "up to rounding") for name in (
        "cut_cross_entropy", "liger", "kernels", "expert_parallel", "swanlab", "densemixer")),
    (LLAMA, "metric_for_best_model", "eval_loss", "translated", "train.best_metric=eval_loss"),
    (LLAMA, "train_on_prompt", False, "translated", "format.task=chat"),
    (LLAMA, "do_train", True, "no effect", "`trnflow run` trains"),
    ({**LLAMA, "pissa_init": True}, "pissa_iter", 4, "translated", "init_lora_weights=pissa_niter_4"),
    ({**LLAMA, "finetuning_type": "full"}, "pissa_init", True, "no effect", "finetuning_type is full"),
    *((AXOLOTL, "optimizer", name, "not translated", "adamw_8bit is written") for name in (
        "adamw_torch_4bit", "ao_adamw_4bit", "ao_adamw_fp8")),
]  # fmt: skip
"""(a config, key, value, outcome, words of the reason) where what a key says needs no setting, or has none."""


def test_a_key_that_agrees_or_can_not_is_said_to(here: Path) -> None:
    for line in AGREE:
        agrees(*line)


def agrees(base: dict[str, Any], key: str, value: Any, outcome: str, words: str) -> None:
    *above, name = key.split(".")
    t = translated({**base, "datasets": rows(**{name: value})} if above else {**base, name: value})
    assert (t.entries[key].outcome, words in t.entries[key].text) == (outcome, True), (key, t.entries[key])


@pytest.mark.parametrize("unknown", ["diffusion", "kd", "spectrum", "liger2"])
def test_another_plugin_is_refused(here: Path, unknown: str) -> None:
    with pytest.raises(ConfigError, match="another program's code"):
        translated({**AXOLOTL, "plugins": [f"axolotl.integrations.{unknown}.Plugin"]})


def test_tags_of_dataset_info_are_roles(here: Path) -> None:
    for tag, right, wrong in (
        ("user_tag", "human", "gpt"), ("assistant_tag", "gpt", "human"), ("observation_tag", "observation", "human"),
        ("function_tag", "function_call", "human"), ("system_tag", "system", "human"), ("role_tag", "from", "who"),
        ("content_tag", "value", "what"),
    ):  # fmt: skip
        for meant in (right, wrong):
            info = {"talks": {**json.loads(INFO)["talks"], "tags": {tag: meant}}}
            Path("rows/dataset_info.json").write_text(json.dumps(info))
            if meant == right:
                assert translated(LLAMA).get("format.task") == "chat"
            else:
                with pytest.raises(ConfigError, match=f"talks has {tag} {wrong}, which trnflow does not read"):
                    translated(LLAMA)


def test_formattings_of_dataset_info(here: Path) -> None:
    for form, key in (("sharegpt", "messages"), ("openai", "messages"), ("alpaca", "make")):
        Path("rows/dataset_info.json").write_text(json.dumps({"talks": {"file_name": "a.json", "formatting": form}}))
        assert translated(LLAMA).has(f"format.{key}"), form
    Path("rows/dataset_info.json").write_text('{"talks": {"file_name": "a.json", "formatting": "chatml"}}')
    with pytest.raises(ConfigError, match="talks has the formatting chatml"):
        translated(LLAMA)


@pytest.mark.parametrize("key", ["context_parallel_size", "sequence_parallel_degree", "tensor_parallel_size"])
def test_devices_that_share_their_rows_count_once(here: Path, key: str) -> None:
    Path("config.yml").write_text(yaml.safe_dump({**AXOLOTL, "micro_batch_size": 3, key: 2}))
    assert write.translated(Path("config.yml"), ["train.devices=8"]).get("train.global_batch") == 12


DIGESTS = {
    "alpaca": "64571680", "aya": "dae304c0", "chatml": "e7a3df47", "cohere": "bfdfd991", "deepseek_v2": "5c73a07f",
    "exaone": "18a42400", "falcon_h1": "b7700666", "gemma": "1d096f2e", "gemma3": "f9a34f0f", "gemma3n": "79f1e32f",
    "llama3": "e7f0dce6", "metharme": "533f6102", "mistral_v1": "6757558e", "mistral_v7_tekken": "848b4e6b",
    "nemotron_h": "dc70d326", "phi_3": "f10b9667", "phi_35": "b3f03594", "phi_4": "2d6bc7db", "qwen_25": "cd8e9439"
}  # fmt: skip
"""{axolotl's template: the first digits of the SHA-256 of the file in its package 0.19.0}."""


def test_templates_of_axolotl_are_its_files() -> None:
    assert {name: hashlib.sha256(text.encode()).hexdigest()[:8] for name, text in templates.AXOLOTL.items()} == DIGESTS


TASK = "Below is an instruction that describes a task"
ASKED = f"{TASK}. Write a response that appropriately completes the request."
PAIRED = f"{TASK}, paired with an input that provides further context. Write a response that appropriately completes the request."
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
IM, HEAD = "<|im_start|>", "<|start_header_id|>{}<|end_header_id|>\n\n"
CHATML = (f"{IM}system\nS<|im_end|>\n", f"{IM}user\nQ<|im_end|>\n{IM}assistant\n", "A<|im_end|>\n")
FORMS = {
    "alpaca": (f"{ASKED}\n\n", "S", "### Instruction:\nQ\n\n### Response:\n", "A</s>\n\n"),
    "chatml": ("", *CHATML),
    "default": ("", "System: S</s>\n", "Human: Q</s>\nAssistant:", "A</s>\n"),
    "llama3": (
        "<s>", f"<s>{HEAD.format('system')}S<|eot_id|>",
        f"{HEAD.format('user')}Q<|eot_id|>{HEAD.format('assistant')}", "A<|eot_id|>",
    ),
    "phi4": (
        "", f"{IM}system<|im_sep|>S<|im_end|>", f"{IM}user<|im_sep|>Q<|im_end|>{IM}assistant<|im_sep|>", "A<|im_end|>",
    ),
    "qwen": (CHATML[0].replace("S<", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<"), *CHATML),
    "qwen3_nothink": ("", *CHATML),
    "vicuna": (VICUNA, "S", "USER: Q ASSISTANT:", "A</s>"),
}  # fmt: skip
"""{LLaMA-Factory's template: (beginning without a system prompt, with the prompt S, a question Q, an answer A)}, from the slots
in its `data/template.py`."""


@pytest.mark.parametrize("name", templates.LLAMA_FACTORY)
def test_templates_of_llama_factory_write_what_its_slots_do(name: str) -> None:
    without, system, question, answer = FORMS[name]
    special = {"eos_token": "</s>", "bos_token": "<s>"}
    template = ChatTemplate(name, templates.LLAMA_FACTORY[name], special, date="2026-01-01", arguments={})
    talk = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}] * 2
    for messages, opening in ((talk, without), ([{"role": "system", "content": "S"}, *talk], system)):
        assert template.render({"messages": messages, "tools": None}, "row 1") == opening + 2 * (question + answer)


PROMPTS = {
    "alpaca:chat": (f"SYSTEM: {PAIRED}\nUSER: Q\nI\nASSISTANT:", f"SYSTEM: {ASKED}\nUSER: Q\nASSISTANT:"),
    "alpaca:chatml": tuple(
        f"{IM}system\n{opening}<|im_end|>\n{IM}user\nQ{more}<|im_end|>\n{IM}assistant\n"
        for opening, more in ((PAIRED, "\nI"), (ASKED, ""))
    ),
    "alpaca:phi": (
        f"<|system|>\n{PAIRED}<|end|>\n<|user|>\nQ<|end|>I<|assistant|>",
        f"<|system|>\n{ASKED}<|end|>\n<|user|>\nQ<|end|>\n<|assistant|>\n",
    ),
}
"""{type: (prompt of instruction Q and input I, of the instruction alone)}, from axolotl's `prompters.py`."""


@pytest.mark.parametrize("name", templates.PROMPTS)
def test_prompts_of_axolotl_are_those_of_its_prompters(name: str) -> None:
    form = ImmutableSandboxedEnvironment().from_string(templates.PROMPTS[name])
    assert (form.render(instruction="Q", input="I"), form.render(instruction="Q", input="")) == PROMPTS[name]
