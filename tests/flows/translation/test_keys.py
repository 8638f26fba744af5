"""Each line of the tables that translate axolotl's and LLaMA-Factory's keys, against what was written by hand for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from trnflow.flows.recipes import recipe as settings
from trnflow.flows.translation import axolotl, llama_factory, templates, write
from trnflow.flows.translation.translation import Entry, Table, Translation, nothing
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
    Case("seed", 6, {"evaluate.batch": 32, "train.seed": 6}, {"eval_batch_size": 0, "per_device_eval_batch_size": 0}),
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
SETS = {
    "train_on_inputs": "format.task", "train_on_prompt": "format.task", "metric_for_best_model": "train.best_metric",
    "do_train": "train", "plugins": "train", "float32": "train.dtype", "message_property_mappings": "format.messages",
    "message_field_role": "format.messages", "message_field_content": "format.messages", "roles": "format.messages",
    "peft_autocast_adapter_dtype": "train.lora", "roles_to_train": "format.turns", "message_field_training": "format.turns",
    "message_field_training_detail": "format.turns",
}  # fmt: skip
"""{key of `NAMED`: the setting that it is about}."""
LLAMA_FACTORY = "LLaMA-Factory"
TABLES: dict[str, Table] = {"axolotl": axolotl.KEYS, LLAMA_FACTORY: llama_factory.KEYS}
CASES = {"axolotl": OF_AXOLOTL, "datasets": OF_DATASETS, LLAMA_FACTORY: OF_LLAMA_FACTORY}
OUTCOMES: dict[str, dict[str, dict[str, str]]] = yaml.safe_load(Path(__file__).with_name("outcomes.yaml").read_text())


def silent(whose: str) -> list[tuple[str, str, str]]:
    """The keys that set nothing, each with its outcome and words of the reason."""
    parts = [OUTCOMES[whose], *([] if whose == "datasets" else [OUTCOMES["both"]])]
    return [
        (key, outcome, words)
        for part in parts
        for outcome, groups in part.items()
        for words, keys in groups.items()
        for key in keys.split()
    ]


NUMBER = (
    "learning_rate weight_decay adam_beta1 adam_beta2 label_smoothing_factor eval_steps adam_epsilon max_grad_norm "
    "neftune_noise_alpha logging_steps save_steps warmup_ratio warmup_steps loraplus_lr_ratio lora_dropout simpo_gamma"
)
FLAG = "group_by_length load_best_model_at_end dataloader_drop_last"
TEXT = (
    "eval_strategy evaluation_strategy metric_for_best_model mlflow_experiment_name mlflow_tracking_uri model_revision"
)


def wrong(*kinds: tuple[Any, str, str]) -> dict[str, tuple[Any, str]]:
    """Return {key: (a wrong value, words of the error)} of (value, words, keys)."""
    return {key: (value, words) for value, words, keys in kinds for key in keys.split()}


WRONG = {
    "axolotl": wrong(
        (
            "many",
            "it must be a number",
            f"{NUMBER} val_set_size num_epochs adam_eps noisy_embedding_alpha rl_beta dpo_beta orpo_alpha kto_desirable_weight "
            "kto_undesirable_weight center_rewards_coefficient",
        ),
        (
            2.5,
            "it must be a whole number",
            "max_steps seed early_stopping_patience save_total_limit lora_r lora_alpha evals_per_epoch eval_batch_size",
        ),
        (0, "it must be 1 or more", "gradient_accumulation_steps sequence_len micro_batch_size batch_size"),
        (
            "often",
            "it must be true or false",
            f"{FLAG} dataset_exact_deduplication train_on_inputs sample_packing load_in_4bit load_in_8bit lora_target_linear "
            "peft_use_dora peft_use_rslora bfloat16 float16 float32 reward_model peft_autocast_adapter_dtype",
        ),
        ("often", "it must be true, false, auto or full", "torch_compile bf16 fp16"),
        (
            7,
            "it must be text",
            f"{TEXT} base_model revision_of_model tokenizer_config excess_length_strategy chat_template chat_template_jinja "
            "adapter rl optimizer lr_scheduler",
        ),
        ("rope", "it must be a mapping", "model_config overrides_of_model_config chat_template_kwargs"),
        ("q_proj", "it must be a mapping", "lora_rank_pattern lora_alpha_pattern special_tokens"),
        ("org/rows", "it must be a list of mappings", "datasets pretraining_dataset test_datasets"),
        (7, "it must be a list of names", "tokens lora_target_modules lora_modules_to_save plugins"),
    ),
    "datasets": wrong(
        (
            7,
            "it must be text",
            "path type name revision split ds_type field text_column field_messages field_tools field_chosen field_rejected "
            "message_field_role message_field_content field_system message_field_training message_field_training_detail "
            "chat_template chat_template_jinja",
        ),
        (7, "it must be a list of names", "data_files roles_to_train"),
        ({"role": 7}, "it must be a mapping of names", "message_property_mappings"),
        (["user"], "it must be a mapping", "roles"),
    ),
    LLAMA_FACTORY: wrong(
        (
            "many",
            "it must be a number",
            f"{NUMBER} val_size num_train_epochs pref_beta kto_chosen_weight kto_rejected_weight interleave_probs",
        ),
        (
            2.5,
            "it must be a whole number",
            "max_steps seed early_stopping_patience early_stopping_steps save_total_limit lora_alpha pissa_iter quantization_bit "
            "per_device_eval_batch_size",
        ),
        (
            0,
            "it must be 1 or more",
            "gradient_accumulation_steps max_samples cutoff_len lora_rank per_device_train_batch_size",
        ),
        (
            "often",
            "it must be true or false",
            f"{FLAG} enable_thinking train_on_prompt mask_history packing neat_packing use_rslora use_dora pissa_init pure_bf16 "
            "do_train disable_gradient_checkpointing",
        ),
        ("often", "it must be true, false, auto or full", "torch_compile bf16 fp16"),
        (
            7,
            "it must be text",
            f"{TEXT} model_name_or_path tokenizer_name stage pref_loss dataset dataset_dir mix_strategy template "
            "finetuning_type lr_scheduler_type optim",
        ),
        (7, "it must be a list of names", "add_tokens add_special_tokens lora_target additional_target"),
    ),
}
ANY = {"gradient_checkpointing", "peft_layers_to_transform", "peft_init_lora_weights"}
"""Keys of axolotl's that take a value of any type; the last two are checked as what they set."""
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
        monkeypatch.setattr(module, "KEYS", {**module.KEYS, case.key: nothing("planted")})
    elif case.key in module.LORA:
        monkeypatch.setattr(module, "LORA", [key for key in module.LORA if key != case.key])
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
    for whose, table in {**TABLES, "datasets": axolotl.DATASET}.items():
        cases = {case.key for case in CASES[whose]}
        written = cases | NAMED.keys() | {key for key, *_ in silent(whose)}
        assert table.keys() - written == cases - table.keys() == set()
        assert not {key for key, *_ in silent(whose)} & (cases | NAMED.keys() & WRONG[whose].keys())
        assert WRONG[whose].keys() == {key for key, rule in table.items() if rule.kind in ("to", "part")} - ANY


@pytest.mark.parametrize("base", [AXOLOTL, LLAMA], ids=["axolotl", "llama-factory"])
def test_where_a_config_says_nothing_their_defaults_count(here: Path, base: dict[str, Any]) -> None:
    recipe = resolved(base)
    expected = DEFAULTS["axolotl" if base is AXOLOTL else "LLaMA-Factory"]
    assert {setting: value_of(recipe, setting) for setting in expected} == expected
    # written also where trnflow's default is the same
    t = translated(base)
    assert t.get("train.epochs") == expected["train.epochs"]
    assert {t.why["tokenize.max_length"], t.why["pack.chunk_length"]} == {t.usual}


def outcome_of(whose: str, key: str, value: Any) -> tuple[Entry, Translation]:
    """What becomes of a key with this value, and the translation."""
    base, name = (LLAMA, key) if whose == LLAMA_FACTORY else (AXOLOTL, key)
    if whose == "datasets":
        base, name = {**AXOLOTL, "datasets": rows(**{key: value})}, f"datasets.0.{key}"
    else:
        base = {**base, key: value}
    t = translated(base)
    return t.entries[name], t


@pytest.mark.parametrize("whose", ["axolotl", "datasets", LLAMA_FACTORY])
def test_a_key_that_sets_nothing_has_the_outcome_that_was_written_by_hand_for_it(here: Path, whose: str) -> None:
    for key, outcome, words in silent(whose):
        sets_nothing(whose, key, outcome, words)


def sets_nothing(whose: str, key: str, outcome: str, words: str) -> None:
    if outcome == "refused":
        with pytest.raises(ConfigError, match=rf"^config.yml:\d+: {key}( 'planted')? is not translated: ") as caught:
            outcome_of(whose, key, "planted")
        assert words in caught.value.message and caught.value.fix
    else:
        entry, t = outcome_of(whose, key, "planted")
        assert (entry.outcome, words in entry.text) == (outcome, True), (key, entry)
        assert t.settings == translated(LLAMA if whose == LLAMA_FACTORY else AXOLOTL).settings, key
        line = f"# not translated: {'datasets.0.' * (whose == 'datasets')}{key}: planted: "
        assert (line in write.recipe_text(t)) == (outcome == "not translated")
    assert outcome_of(whose, key, False)[0].outcome == "no effect"


@pytest.mark.parametrize("whose", ["axolotl", "datasets", LLAMA_FACTORY])
def test_a_wrong_value_is_an_error_that_names_file_line_key_and_setting(here: Path, whose: str) -> None:
    for key, (value, words) in WRONG[whose].items():
        names_its_key(whose, key, value, words)


def names_its_key(whose: str, key: str, value: Any, words: str) -> None:
    name = f"datasets.0.{key}" if whose == "datasets" else key
    with pytest.raises(ConfigError, match=rf"^config.yml:\d+: {name} can't be .*: {words}") as caught:
        outcome_of(whose, key, value)
    setting = caught.value.fix.removeprefix("correct it, or leave it out and set ").removesuffix(" in the recipe")
    sets = [name for case in CASES[whose] if case.key == key for name in case.expected] or [SETS[key]]
    assert any(f"{name}.".startswith(f"{setting}.") for name in sets), (setting, sets)


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
