"""Each line of the tables that translate axolotl's and LLaMA-Factory's keys, against what was written by hand for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from trnflow.flows.recipes import recipe as settings
from trnflow.flows.translation import axolotl, llama_factory, templates, write
from trnflow.flows.translation.translation import Rule, Table, Translation, nothing
from trnflow.tasks.errors import ConfigError

AXOLOTL: dict[str, Any] = {
    "base_model": "org/model", "learning_rate": 3e-4, "datasets": [{"path": "org/rows", "type": "chat_template"}],
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_name_or_path": "org/model", "stage": "sft", "do_train": True, "dataset": "talks", "dataset_dir": "rows",
}  # fmt: skip
INFO = """{"talks": {"hf_hub_url": "org/talks", "formatting": "sharegpt"}, 
"more": {"file_name": "more.json", "formatting": "sharegpt"},
"pairs": {"file_name": "pairs.json", "formatting": "sharegpt", "ranking": true},
"marks": {"file_name": "marks.json", "formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "label"}},
"texts": {"file_name": "texts.jsonl", "columns": {"prompt": "body"}}}"""


class Case(NamedTuple):
    """A key with a value, and the recipe's settings that must follow. beside: further keys, None to leave one out."""

    key: str
    value: Any
    expected: dict[str, Any]
    beside: dict[str, Any] = {}


LORA = {"adapter": "lora"}
VALID = {"val_set_size": 0.1}
PAIRS = {"rl": "dpo", "datasets": [{"path": "org/rows", "type": "chat_template.default"}]}


def rows(**entry: Any) -> list[dict[str, Any]]:
    return [{"path": "org/rows", "type": "chat_template", **entry}]


TRAINER = [
    Case("learning_rate", "2e-5", {"train.learning_rate": 2e-5}),
    Case("max_steps", 70, {"train.max_steps": 70}),
    Case("weight_decay", 0.1, {"train.weight_decay": 0.1}),
    Case("adam_beta1", 0.8, {"train.beta1": 0.8}),
    Case("adam_beta2", 0.95, {"train.beta2": 0.95}),
    Case("adam_epsilon", 1e-6, {"train.eps": 1e-6}),
    Case("max_grad_norm", 0.3, {"train.max_grad_norm": 0.3}),
    Case("max_grad_norm", 0, {"train.max_grad_norm": None}),
    Case("label_smoothing_factor", 0.1, {"train.label_smoothing": 0.1}),
    Case("neftune_noise_alpha", 5, {"train.neftune_noise_alpha": 5.0}),
    Case("group_by_length", True, {"train.group_by_length": True}),
    Case("dataloader_drop_last", True, {"train.last_batch": "drop"}),
    Case("seed", 7, {"train.seed": 7}),
    Case("torch_compile", True, {"train.compile": True}),
    Case(
        "gradient_accumulation_steps",
        16,
        {"train.global_batch": 32},
        {"micro_batch_size": 2, "per_device_train_batch_size": 2},
    ),
    Case("warmup_ratio", 0.2, {"train.warmup_ratio": 0.2}),
    Case("warmup_steps", 7, {"train.warmup_ratio": 0.065}, {"max_steps": 100}),
    Case("warmup_steps", 100, {"train.warmup_ratio": 0.995}, {"max_steps": 100}),
    Case("bf16", True, {"train.dtype": "bfloat16"}),
    Case("fp16", True, {"train.dtype": "float16"}, {"bf16": False}),
    Case("logging_steps", 3, {"train.log_every": 3}),
    Case("save_steps", 33, {"train.checkpoint_every": 33}),
    Case("save_total_limit", 5, {"train.keep_checkpoints": 5}),
    Case("save_steps", 34, {"train.keep_checkpoints": 2, "train.checkpoint_every": 34}, {"save_total_limit": -1}),
    Case("adam_beta1", 0.7, {"train.eps": 1e-8, "train.beta1": 0.7}, {"adam_epsilon": 0}),
    Case("seed", 8, {"train.neftune_noise_alpha": None, "train.seed": 8}, {"neftune_noise_alpha": 0}),
    Case("seed", 9, {"train.early_stopping_patience": None, "train.seed": 9}, {"early_stopping_patience": 0}),
    Case(
        "seed",
        6,
        {"evaluate.batch": 32, "train.seed": 6},
        {"eval_batch_size": 0, "per_device_eval_batch_size": 0},
    ),
    Case("mlflow_experiment_name", "mine", {"tracking.experiment": "mine"}),
    Case("mlflow_tracking_uri", "http://mlflow:5000", {"tracking.uri": "http://mlflow:5000"}),
]
HELD_OUT = [
    Case("eval_steps", 50, {"train.eval_every": 50, "train.eval_every_epoch": False}),
    Case("eval_strategy", "steps", {"train.eval_every": 500, "train.eval_every_epoch": False}),
    Case("evaluation_strategy", "steps", {"train.eval_every": 500, "train.eval_every_epoch": False}),
    Case("load_best_model_at_end", True, {"train.keep_best": True}),
    Case("early_stopping_patience", 3, {"train.early_stopping_patience": 3}),
]
OF_AXOLOTL = [
    *TRAINER,
    *(case._replace(beside={**case.beside, **VALID}) for case in HELD_OUT),
    Case("base_model", "org/other", {"model.source": "org/other"}),
    Case("revision_of_model", "v1", {"model.revision": "v1"}),
    Case("model_revision", "v1", {"model.revision": "v1"}),
    Case("tokenizer_config", "org/words", {"model.tokenizer": "org/words"}),
    Case("model_config", {"rope_theta": 5.0}, {"model.overrides": {"rope_theta": 5.0}}),
    Case("overrides_of_model_config", {"rope_theta": 5.0}, {"model.overrides": {"rope_theta": 5.0}}),
    Case("tokens", ["<a>"], {"tokenize.new_tokens": ("<a>",)}),
    Case("special_tokens", {"additional_special_tokens": ["<b>"]}, {"tokenize.new_tokens": ("<b>",)}),
    Case("datasets", rows(path="org/others"), {"data.source": "org/others"}),
    Case(
        "pretraining_dataset",
        [{"path": "org/web", "name": "en", "type": "pretrain"}],
        {
            "data.source": "org/web",
            "data.name": "en",
            "format.task": "text",
            "pack.strategy": "concat",
            "tokenize.overlong": "split",
        },
        {"datasets": None},
    ),
    Case(
        "test_datasets",
        rows(split="test"),
        {"data.splits": {"train": "train", "validation": "test"}, "evaluate.split": "validation"},
    ),
    Case("val_set_size", 0.2, {"data.split": {"validation": 0.2}, "evaluate.split": "validation"}),
    Case("dataset_exact_deduplication", True, {"data.dedupe": True}),
    Case("chat_template", "chatml", {"format.chat_template": templates.AXOLOTL["chatml"]}),
    Case("chat_template_jinja", "{{ x }}", {"format.chat_template": "{{ x }}"}, {"chat_template": "jinja"}),
    Case("chat_template_kwargs", {"enable_thinking": False}, {"format.template_arguments": {"enable_thinking": False}}),
    Case("sequence_len", 1024, {"tokenize.max_length": 1024, "pack.chunk_length": 1024}),
    Case("sequence_len", 1024, {"tokenize.max_length": 1024, "pack.chunk_length": 2048}, PAIRS),
    Case("excess_length_strategy", "truncate", {"tokenize.overlong": "truncate"}),
    Case("excess_length_strategy", "raise", {"tokenize.overlong": "error"}),
    Case("sample_packing", True, {"pack.strategy": "bfd"}),
    Case("adapter", "lora", {"train.method": "lora"}),
    Case("load_in_4bit", True, {"train.lora.base_dtype": "nf4"}, LORA),
    Case("adapter", "qlora", {"train.lora.base_dtype": "nf4"}),
    Case("load_in_8bit", True, {"train.lora.base_dtype": "int8"}, LORA),
    Case("lora_r", 32, {"train.lora.rank": 32}, LORA),
    Case("lora_alpha", 64, {"train.lora.alpha": 64}, LORA),
    Case("lora_dropout", 0.05, {"train.lora.dropout": 0.05}, LORA),
    Case("lora_target_linear", True, {"train.lora.targets": "all-linear"}, LORA),
    Case(
        "lora_target_modules",
        ["q_proj", "self_attn.v_proj"],
        {"train.lora.targets": ("q_proj", "self_attn.v_proj")},
        LORA,
    ),
    Case("lora_modules_to_save", ["embed_tokens"], {"train.lora.modules_to_save": ("embed_tokens",)}, LORA),
    Case("lora_rank_pattern", {"q_proj": 4}, {"train.lora.rank_pattern": {"q_proj": 4}}, LORA),
    Case("lora_alpha_pattern", {"q_proj": 4}, {"train.lora.alpha_pattern": {"q_proj": 4}}, LORA),
    Case("peft_layers_to_transform", [1, 2], {"train.lora.layers_to_transform": (1, 2)}, LORA),
    Case("peft_use_dora", True, {"train.lora.use_dora": True}, LORA),
    Case("peft_use_rslora", True, {"train.lora.use_rslora": True}, LORA),
    Case("peft_init_lora_weights", "pissa", {"train.lora.init_lora_weights": "pissa"}, LORA),
    Case("loraplus_lr_ratio", 16, {"train.lora.loraplus_lr_ratio": 16.0}, LORA),
    Case("micro_batch_size", 4, {"train.global_batch": 8, "train.micro_batch": 4}, {"gradient_accumulation_steps": 2}),
    Case("batch_size", 16, {"train.global_batch": 16}, {"micro_batch_size": 4}),
    Case("eval_batch_size", 3, {"evaluate.batch": 3}),
    Case("num_epochs", 4.0, {"train.epochs": 4}),
    Case("optimizer", "adafactor", {"train.optimizer": "adafactor"}),
    Case("optimizer", "paged_adamw_8bit", {"train.optimizer": "adamw_8bit"}),
    Case("lr_scheduler", "linear", {"train.schedule": "linear"}),
    Case("lr_scheduler", "constant", {"train.schedule": "constant", "train.warmup_ratio": 0.0}, {"warmup_steps": 5}),
    Case("adam_eps", 1e-6, {"train.eps": 1e-6}),
    Case("noisy_embedding_alpha", 5, {"train.neftune_noise_alpha": 5.0}),
    Case("bfloat16", True, {"train.dtype": "bfloat16"}),
    Case("float16", True, {"train.dtype": "float16"}),
    Case("gradient_checkpointing", "offload", {"train.remat": True}),
    Case("evals_per_epoch", 1, {"train.eval_every_epoch": True}, VALID),
    Case("evals_per_epoch", 4, {"train.eval_every": 13}, {**VALID, "max_steps": 100, "num_epochs": 2}),
    Case("eval_steps", 0.25, {"train.eval_every": 25}, {**VALID, "max_steps": 100}),
    Case("rl", "ipo", {"train.objective": "dpo", "train.loss_type": "ipo", "format.task": "preference"}, PAIRS),
    Case("rl", "orpo", {"train.objective": "orpo", "format.task": "preference"}, PAIRS),
    Case("rl", "simpo", {"train.objective": "simpo"}, PAIRS),
    Case(
        "rl",
        "kto",
        {"train.objective": "kto", "format.task": "unpaired_preference"},
        {"datasets": rows(type="chatml.argilla_chat")},
    ),
    Case("reward_model", True, {"train.objective": "reward"}, {**PAIRS, "rl": None}),
    Case("rl_beta", 0.3, {"train.beta": 0.3}, PAIRS),
    Case("dpo_beta", 0.3, {"train.beta": 0.3}, PAIRS),
    Case("orpo_alpha", 0.3, {"train.beta": 0.3}, {**PAIRS, "rl": "orpo"}),
    Case("simpo_gamma", 0.7, {"train.simpo_gamma": 0.7}, {**PAIRS, "rl": "simpo"}),
    Case(
        "kto_desirable_weight",
        0.2,
        {"train.desirable_weight": 0.2},
        {"rl": "kto", "datasets": rows(type="chatml.argilla_chat")},
    ),
    Case(
        "kto_undesirable_weight",
        0.2,
        {"train.undesirable_weight": 0.2},
        {"rl": "kto", "datasets": rows(type="chatml.argilla_chat")},
    ),
    Case(
        "center_rewards_coefficient",
        0.01,
        {"train.center_rewards_coefficient": 0.01},
        {**PAIRS, "rl": None, "reward_model": True},
    ),
]
OF_DATASETS = [
    Case("path", "org/others", {"data.source": "org/others"}),
    Case(
        "type",
        "alpaca",
        {
            "format.task": "instruction",
            "format.style": "alpaca",
            "format.context": "input",
            "format.response": "output",
        },
    ),
    Case("type", "completion", {"format.task": "text", "format.text": "text", "tokenize.overlong": "split"}),
    Case(
        "type", "alpaca:chat", {"format.prompt_template": templates.PROMPTS["alpaca:chat"], "format.response": "output"}
    ),
    Case(
        "type",
        {"field_instruction": "q", "field_output": "a", "no_input_format": "Q: {instruction}"},
        {
            "format.prompt_template": "{% set opening_system = system if system is defined else '' %}"
            "{% if opening_system %}{{ opening_system }}{% endif %}{% if input is defined and input %}"
            "{{ q }}{{ ' ' }}{{ input }}{{ ' ' }}{% else %}{{ 'Q: ' }}{{ q }}{% endif %}",
            "format.response": "a",
        },
    ),
    Case("name", "main", {"data.name": "main"}),
    Case("revision", "v2", {"data.revision": "v2"}),
    Case("split", "train_sft", {"data.splits": {"train": "train_sft"}}),
    Case("split", "train[:50]", {"data.splits": {"train": "train"}, "data.limit": {"train": 50}}),
    Case("data_files", ["a/b.json"], {"data.source": "https://huggingface.co/datasets/org/rows/resolve/main/a/b.json"}),
    Case(
        "data_files",
        "mine.json",
        {
            "data.source": "https://huggingface.co/datasets/org/rows/resolve/refs%2Fpr%2F1/mine.json",
            "data.revision": None,
        },
        {"ds_type": "json", "revision": "refs/pr/1"},
    ),
    # on the disk
    Case("data_files", ["rows/mine.json"], {"data.source": "rows/mine.json"}, {"path": "rows"}),
    Case("data_files", "mine.jsonl", {"data.source": "mine.jsonl"}, {"path": "json"}),
    Case("ds_type", "json", {"data.format": "jsonl"}, {"path": "rows/without-ending"}),
    Case("field", "body", {"format.text": "body"}, {"type": "completion"}),
    Case("text_column", "body", {"format.text": "body"}, {"type": "completion"}),
    Case("field_messages", "talk", {"format.messages": "talk"}),
    Case("field_system", "sys_prompt", {"format.system": "sys_prompt"}),
    Case("field_tools", "calls", {"format.tools": "calls"}),
    Case(
        "field_chosen",
        "good",
        {"data.columns": {"prompt": "messages", "chosen": "good", "rejected": "rejected"}},
        {"type": "chat_template.default", "rl": "dpo"},
    ),
    Case(
        "field_rejected",
        "bad",
        {"data.columns": {"prompt": "messages", "chosen": "chosen", "rejected": "bad"}},
        {"type": "chat_template.default", "rl": "dpo"},
    ),
    Case("chat_template", "chatml", {"format.chat_template": templates.AXOLOTL["chatml"]}),
    Case("chat_template_jinja", "{{ x }}", {"format.chat_template": "{{ x }}"}),
]
OF_LLAMA_FACTORY = [
    *TRAINER,
    *(case._replace(beside={**case.beside, "val_size": 0.1}) for case in HELD_OUT),
    Case("model_name_or_path", "org/other", {"model.source": "org/other"}),
    Case("model_revision", "v1", {"model.revision": "v1"}),
    Case("tokenizer_name", "org/words", {"model.tokenizer": "org/words"}),
    Case(
        "stage",
        "pt",
        {"format.task": "text", "format.text": "body", "pack.strategy": "concat", "tokenize.overlong": "split"},
        {"dataset": "texts"},
    ),
    Case("stage", "rm", {"train.objective": "reward", "format.task": "preference"}, {"dataset": "pairs"}),
    Case(
        "stage",
        "kto",
        {"train.objective": "kto", "data.columns": {"completion": "messages", "label": "label"}},
        {"dataset": "marks"},
    ),
    Case(
        "pref_loss",
        "orpo",
        {"train.objective": "orpo", "format.task": "preference"},
        {"stage": "dpo", "dataset": "pairs"},
    ),
    Case(
        "pref_loss", "ipo", {"train.objective": "dpo", "train.loss_type": "ipo"}, {"stage": "dpo", "dataset": "pairs"}
    ),
    Case("pref_beta", 0.3, {"train.beta": 0.3}, {"stage": "dpo", "dataset": "pairs"}),
    Case("simpo_gamma", 0.7, {"train.simpo_gamma": 0.7}, {"stage": "dpo", "pref_loss": "simpo", "dataset": "pairs"}),
    Case("kto_chosen_weight", 0.2, {"train.desirable_weight": 0.2}, {"stage": "kto", "dataset": "marks"}),
    Case("kto_rejected_weight", 0.2, {"train.undesirable_weight": 0.2}, {"stage": "kto", "dataset": "marks"}),
    Case("dataset", "more", {"data.source": "rows/more.json"}),
    Case("dataset_dir", "ONLINE", {"data.source": "org/online"}, {"dataset": "org/online"}),
    Case("max_samples", 100, {"data.limit": {"train": 100}}),
    Case("val_size", 0.2, {"data.split": {"validation": 0.2}, "evaluate.split": "validation"}),
    Case("mix_strategy", "interleave_over", {"data.stopping_strategy": "all_exhausted"}, {"dataset": "talks,more"}),
    Case(
        "interleave_probs",
        "0.25,0.75",
        {"data.mix.talks.weight": 0.25, "data.mix.more.weight": 0.75},
        {"dataset": "talks,more", "mix_strategy": "interleave_under"},
    ),
    Case("template", "llama3", {"format.chat_template": templates.LLAMA_FACTORY["llama3"]}),
    Case("enable_thinking", False, {"format.template_arguments": {"enable_thinking": False}}),
    Case("mask_history", True, {"format.turns": "last"}),
    Case("cutoff_len", 1024, {"tokenize.max_length": 1024, "pack.chunk_length": 1024}),
    Case(
        "cutoff_len",
        1024,
        {"tokenize.max_length": 1024, "pack.chunk_length": 2048},
        {"stage": "rm", "dataset": "pairs"},
    ),
    Case("packing", True, {"pack.strategy": "bfd"}),
    Case("packing", False, {"pack.strategy": "pad"}, {"stage": "pt", "dataset": "texts"}),
    Case("neat_packing", True, {"pack.strategy": "bfd"}),
    Case("add_tokens", "<a>,<b>", {"tokenize.new_tokens": ("<a>", "<b>")}),
    Case("add_special_tokens", "<c>", {"tokenize.new_tokens": ("<c>",)}),
    Case("finetuning_type", "full", {"train.method": "full"}),
    Case("lora_rank", 16, {"train.lora.rank": 16, "train.lora.alpha": 32}),
    Case("lora_alpha", 5, {"train.lora.alpha": 5}),
    Case("lora_dropout", 0.05, {"train.lora.dropout": 0.05}),
    Case("lora_target", "q_proj,v_proj", {"train.lora.targets": ("q_proj", "v_proj")}),
    Case("additional_target", "embed_tokens", {"train.lora.modules_to_save": ("embed_tokens",)}),
    Case("use_rslora", True, {"train.lora.use_rslora": True}),
    Case("use_dora", True, {"train.lora.use_dora": True}),
    Case("loraplus_lr_ratio", 16, {"train.lora.loraplus_lr_ratio": 16.0}),
    Case("pissa_init", True, {"train.lora.init_lora_weights": "pissa_niter_16"}),
    Case("pissa_iter", -1, {"train.lora.init_lora_weights": "pissa"}, {"pissa_init": True}),
    Case("quantization_bit", 4, {"train.lora.base_dtype": "nf4"}),
    Case("quantization_bit", 8, {"train.lora.base_dtype": "int8"}),
    Case(
        "per_device_train_batch_size",
        4,
        {"train.global_batch": 8, "train.micro_batch": 4},
        {"gradient_accumulation_steps": 2},
    ),
    Case("per_device_eval_batch_size", 3, {"evaluate.batch": 3}),
    Case("num_train_epochs", 4.0, {"train.epochs": 4}),
    Case("lr_scheduler_type", "cosine", {"train.schedule": "cosine"}),
    Case("optim", "adamw_8bit", {"train.optimizer": "adamw_8bit"}),
    Case("pure_bf16", True, {"train.dtype": "bfloat16"}),
    Case("disable_gradient_checkpointing", True, {"train.remat": False}),
    Case("early_stopping_steps", 3, {"train.early_stopping_patience": 3}, {"val_size": 0.1}),
]
NAMED = {
    "train_on_inputs": "trnflow trains on answers, as axolotl by default",
    "train_on_prompt": "likewise",
    "metric_for_best_model": "eval_loss is trnflow's default, too",
    "do_train": "must be true",
    "plugins": "code, no setting",
    "float32": "what processors compute in anyway",
    "message_property_mappings": "both usual names are read",
    "message_field_role": "likewise",
    "message_field_content": "likewise",
    "roles": "the same roles are read",
    "peft_autocast_adapter_dtype": "fp32, as by default",
    "roles_to_train": "the assistant's turns are trained on",
    "message_field_training": "read where trnflow knows the name",
    "message_field_training_detail": "likewise",
}
"""{key that sets nothing by itself: why}; `test_translation` has what they do."""
DEFAULTS = {
    "axolotl": {
        "train.epochs": 1, "train.weight_decay": 0.0, "train.schedule": "cosine", "train.warmup_ratio": 0.03, "train.seed": 42,
        "train.optimizer": "adamw", "train.beta1": 0.9, "train.beta2": 0.999, "train.eps": 1e-8, "train.max_grad_norm": 1.0,
        "train.global_batch": 1, "train.method": "full", "train.remat": False, "tokenize.max_length": 512,
        "tokenize.overlong": "drop", "pack.chunk_length": 512, "pack.strategy": "pad", "data.split": {},
        "evaluate.split": "train", "data.splits": {"train": "train"}, "format.chat_template": "tokenizer", "format.turns": "all",
        "train.last_batch": "pad",
    },
    "LLaMA-Factory": {
        "train.epochs": 3, "train.weight_decay": 0.0, "train.schedule": "linear", "train.warmup_ratio": 0.0, "train.seed": 42,
        "train.optimizer": "adamw", "train.beta1": 0.9, "train.beta2": 0.999, "train.eps": 1e-8, "train.max_grad_norm": 1.0,
        "train.global_batch": 8, "train.method": "lora", "train.lora.rank": 8, "train.lora.alpha": 16, "train.lora.dropout": 0.0,
        "train.lora.targets": "all-linear", "train.remat": True, "train.dtype": "float32", "train.learning_rate": 5e-5,
        "tokenize.max_length": 2048, "tokenize.overlong": "truncate", "pack.chunk_length": 2048, "pack.strategy": "pad",
        "data.split": {}, "evaluate.split": "train", "format.messages": "conversations", "train.last_batch": "pad",
    },
}  # fmt: skip
"""The recipe's values where a config says nothing, from their own sources."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/dataset_info.json").write_text(INFO)
    return tmp_path


def translated(config: dict[str, Any]) -> Translation:
    Path("config.yml").write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not None}))
    return write.translated(Path("config.yml"), [])


def resolved(config: dict[str, Any]) -> settings.Recipe:
    t = translated(config)
    for file, code in t.functions.items():
        file.write_text(code)
    Path("mine.yaml").write_text(write.recipe_text(t))
    return settings.load("mine.yaml")


def value_of(recipe: settings.Recipe, setting: str) -> Any:
    value: Any = recipe
    for name in setting.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def values(config: dict[str, Any], case: Case) -> dict[str, Any]:
    recipe = resolved(config)
    return {setting: value_of(recipe, setting) for setting in case.expected}


def config_of(base: dict[str, Any], case: Case) -> dict[str, Any]:
    return {**base, **case.beside, case.key: case.value}


def of_dataset(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """A config of axolotl with the key in its data set, and one without."""
    outer = {"rl": case.beside["rl"]} if "rl" in case.beside else {}
    inner = {name: value for name, value in case.beside.items() if name != "rl"}
    without = {**AXOLOTL, **outer, "datasets": rows(**inner)}
    return {**without, "datasets": rows(**inner, **{case.key: case.value})} if case.key not in ("path", "type") else {
        **without, "datasets": [{**rows()[0], **inner, case.key: case.value}]
    }, without  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, module: Any, table: str, key: str) -> None:
    planted: Table = {**getattr(module, table), key: nothing("planted")}
    monkeypatch.setattr(module, table, planted)


def ids(case: Case) -> str:
    return f"{case.key}={case.value}"[:40]


@pytest.mark.parametrize(
    ("base", "case"),
    [*((AXOLOTL, case) for case in OF_AXOLOTL), *((LLAMA, case) for case in OF_LLAMA_FACTORY)],
    ids=lambda given: (
        ids(given) if isinstance(given, Case) else "axolotl" if "base_model" in given else "llama-factory"
    ),
)
def test_a_key_sets_what_was_written_by_hand_for_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, base: dict[str, Any], case: Case
) -> None:
    config = config_of(base, case)
    assert values(config, case) == case.expected
    # a setting that is the same without the key would not show a wrong line
    module: Any = axolotl if base is AXOLOTL else llama_factory
    if module.KEYS[case.key].kind == "to":
        plant(monkeypatch, module, "KEYS", case.key)
    elif case.key in module.LORA:
        plant(monkeypatch, module, "LORA", case.key)
    else:
        config = {**base, **{key: value for key, value in case.beside.items() if key not in ("datasets", case.key)}}
    try:
        planted = values(config, case)
    except ConfigError:
        return  # without `rl` two answers are no rows
    assert planted != case.expected


@pytest.mark.parametrize("case", OF_DATASETS, ids=ids)
def test_a_key_of_a_data_set_sets_what_was_written_by_hand_for_it(here: Path, case: Case) -> None:
    config, without = of_dataset(case)
    assert values(config, case) == case.expected
    assert values(without, case) != case.expected


def test_every_line_of_the_tables_has_its_case() -> None:
    for table, cases in (
        ({**axolotl.KEYS, **axolotl.LORA}, OF_AXOLOTL),
        (axolotl.DATASET, OF_DATASETS),
        ({**llama_factory.KEYS, **llama_factory.LORA}, OF_LLAMA_FACTORY),
    ):
        sets = {key for key, rule in table.items() if rule.kind in ("to", "part")}
        assert sets - {case.key for case in cases} - NAMED.keys() == set()


@pytest.mark.parametrize("base", [AXOLOTL, LLAMA], ids=["axolotl", "llama-factory"])
def test_where_a_config_says_nothing_their_defaults_count(here: Path, base: dict[str, Any]) -> None:
    recipe = resolved(base)
    expected = DEFAULTS["axolotl" if base is AXOLOTL else "LLaMA-Factory"]
    assert {setting: value_of(recipe, setting) for setting in expected} == expected


def lines_of(kind: str) -> list[tuple[dict[str, Any], str, Rule]]:
    return [
        (base, key, rule)
        for base, module in ((AXOLOTL, axolotl), (LLAMA, llama_factory))
        for key, rule in module.KEYS.items()
        if rule.kind == kind
    ]


def test_a_key_without_effect_changes_no_setting_and_is_said(here: Path) -> None:
    for base, key, rule in lines_of("nothing"):
        t = translated({**base, key: "planted"})
        assert t.entries[key].outcome == "no effect" and t.entries[key].text == rule.text
        assert t.settings == translated(base).settings, key


def test_a_key_that_is_not_translated_changes_no_setting_and_is_named(here: Path) -> None:
    for base, key, rule in lines_of("lacks"):
        t = translated({**base, key: "planted"})
        assert t.entries[key].outcome == "not translated" and t.entries[key].text == rule.text
        assert t.settings == translated(base).settings, key
        assert f"# not translated: {key}: planted: " in write.recipe_text(t)
        assert translated({**base, key: False}).entries[key].outcome == "no effect"


def test_a_key_that_would_make_half_a_recipe_is_refused_by_name_and_line(here: Path) -> None:
    for base, key, rule in lines_of("refuses"):
        with pytest.raises(ConfigError, match=rf"^config.yml:\d+: {key}( 'planted')? is not translated: ") as caught:
            translated({**base, key: "planted"})
        assert rule.text in caught.value.message and caught.value.fix
        assert translated({**base, key: False}).entries[key].outcome == "no effect"


ODD: tuple[Any, ...] = ("planted", -1, 2.5, True, [], {}, [1], {"a": [1]}, [{"a": 1}], 1e300)


@pytest.mark.nightly
@pytest.mark.parametrize("base", [AXOLOTL, LLAMA], ids=["axolotl", "llama-factory"])
def test_no_value_of_a_key_is_more_than_an_error(here: Path, base: dict[str, Any]) -> None:
    """Each key with values of each type, by itself and beside keys that give it a meaning."""
    module: Any = axolotl if base is AXOLOTL else llama_factory
    for key, rule in module.KEYS.items():
        beside: list[dict[str, Any]] = [{}]
        if rule.kind in ("to", "part"):
            beside += [{**LORA, **VALID, "val_size": 0.1, "max_steps": 100}]
        for value in ODD:
            for others in beside:
                attempt({**base, **others, key: value})
    for key in axolotl.DATASET if base is AXOLOTL else ():
        for value in ODD:
            attempt(
                {**base, "datasets": rows(**{key: value})} if key != "path" else {**base, "datasets": [{key: value}]}
            )


def attempt(config: dict[str, Any]) -> None:
    try:
        t = translated(config)
    except ConfigError as error:
        assert error.message.startswith("config.yml") and error.fix
    else:
        assert write.recipe_text(t) and write.table(t)
