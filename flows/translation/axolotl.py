"""A config of axolotl 0.19 becomes the settings of a recipe: a table with a rule for each key, then what several keys decide."""

from __future__ import annotations

import re
from keyword import iskeyword
from pathlib import Path
from string import Formatter
from typing import Any
from urllib.parse import quote

from trnflow.flows.recipes.schema import Tree
from trnflow.flows.translation.templates import AXOLOTL as TEMPLATES
from trnflow.flows.translation.templates import PROMPTS
from trnflow.flows.translation.trainer_keys import (
    LOOK,
    MACHINE,
    OURS,
    READ,
    TRAINER,
    above_zero,
    all_of,
    amount,
    count,
    entries,
    epochs,
    files,
    flag,
    from_one,
    hold_out,
    if_any,
    mapping,
    names,
    number,
    optimizer,
    schedule,
    set_batch,
    set_rest,
    set_steps,
    set_warmup,
    share_of,
    text,
    texts,
    whole,
    word,
)
from trnflow.flows.translation.translation import OFF, Nearest, Table, Translation, lacks, nothing, part, refuses, to
from trnflow.tasks.data.format.conversation import SHAREGPT
from trnflow.tasks.data.format.sections_template import ROLES
from trnflow.tasks.data.format.training_fields import DETAILS, FLAGS
from trnflow.tasks.sources.data_files import FORMATS as FILES

IMAGES = "trnflow trains on texts alone, and this config is for images, sound or video"
RL = "no reinforcement learning: rank answers beforehand, and train.objective=dpo trains on pairs"
WEIGHTS = "trnflow trains all weights, a head, or LoRA (train.method, train.freeze)"
QUANTISED = "of quantised weights trnflow trains LoRA alone (train.lora.base_dtype=nf4 or int8)"
MODEL = "transformers' own class of the model is used"
TOKENIZER = "the tokenizer's own files count"
LOSS = "another loss is a function of yours: train.loss"
METHODS = {"lora": "lora", "qlora": "lora"}
BASES = {"load_in_4bit": "nf4", "load_in_8bit": "int8"}
PREFERENCES: dict[str, Tree] = {
    "dpo": {"objective": "dpo"}, "ipo": {"objective": "dpo", "loss_type": "ipo"}, "orpo": {"objective": "orpo"},
    "simpo": {"objective": "simpo"}, "kto": {"objective": "kto"},
}  # fmt: skip
"""`rl` -> settings of `train`."""


def _inits(value: Any) -> str | None:
    if value in (True, "true"):
        return None
    if value not in ("gaussian", "olora", "pissa", "pissa_niter_4", "pissa_niter_16"):
        raise Nearest("train.lora.init_lora_weights has gaussian, olora and pissa: A begins uniformly, B is 0")
    return str(value)


def _kind(value: Any) -> str | dict[str, str]:
    """Return the type of rows, which may be a prompt of the user's."""
    return texts(value) if isinstance(value, dict) else text(value)


def _roles(value: Any) -> dict[str, list[str]]:
    return {role: names(others) for role, others in mapping(value).items()}


KEYS: Table = {
    **TRAINER,
    "base_model": to("model.source", text),
    "revision_of_model": to("model.revision", text),
    "model_revision": to("model.revision", text),
    "tokenizer_config": to("model.tokenizer", text),
    "model_config": to("model.overrides", mapping),
    "overrides_of_model_config": to("model.overrides", mapping),
    "tokens": part("tokenize.new_tokens", lambda value: value if isinstance(value, dict) else names(value)),
    "datasets": part("data.source", entries),
    "pretraining_dataset": part("data.source", entries),
    "test_datasets": part("data.splits", entries),
    "val_set_size": part("data.split", amount),
    "dataset_exact_deduplication": to("data.dedupe", flag),
    "chat_template": part("format.chat_template", word),
    "chat_template_jinja": part("format.chat_template", word),
    "chat_template_kwargs": to("format.template_arguments", mapping),
    "default_system_message": lacks("write it into the rows: format.system names its column"),
    # answers alone are trained on in both by default
    "train_on_inputs": part("format.task", flag),
    "sequence_len": part("tokenize.max_length", count),
    "excess_length_strategy": part("tokenize.overlong", text),
    "sample_packing": part("pack.strategy", flag),
    "adapter": part("train.method", word),
    "load_in_4bit": part("train.lora.base_dtype", flag),
    "load_in_8bit": part("train.lora.base_dtype", flag),
    "lora_r": part("train.lora.rank", whole),
    "lora_alpha": part("train.lora.alpha", whole),
    "lora_dropout": part("train.lora.dropout", number),
    "lora_target_linear": part("train.lora.targets", flag),
    "lora_target_modules": part("train.lora.targets", files),
    "lora_modules_to_save": part("train.lora.modules_to_save", names),
    "lora_rank_pattern": part("train.lora.rank_pattern", mapping),
    "lora_alpha_pattern": part("train.lora.alpha_pattern", mapping),
    "peft_layers_to_transform": part("train.lora.layers_to_transform"),
    "peft_use_dora": part("train.lora.use_dora", flag),
    "peft_use_rslora": part("train.lora.use_rslora", flag),
    "peft_init_lora_weights": part("train.lora.init_lora_weights"),
    "loraplus_lr_ratio": part("train.lora.loraplus_lr_ratio", number),
    "micro_batch_size": part("train.global_batch", count),
    "batch_size": part("train.global_batch", count),
    "eval_batch_size": to("evaluate.batch", from_one),
    "num_epochs": to("train.epochs", epochs),
    "optimizer": to("train.optimizer", optimizer),
    "lr_scheduler": to("train.schedule", schedule),
    "adam_eps": to("train.eps", above_zero),
    "noisy_embedding_alpha": to("train.neftune_noise_alpha", if_any(number)),
    "bfloat16": part("train.dtype", flag),
    "float16": part("train.dtype", flag),
    "float32": part("train.dtype", flag),
    "gradient_checkpointing": to("train.remat", lambda value: value not in OFF),
    "evals_per_epoch": part("train.eval_every_epoch", whole),
    "saves_per_epoch": nothing("training saves its state every train.checkpoint_every updates"),
    "rl": part("train.objective", word),
    "reward_model": part("train.objective", flag),
    "rl_beta": to("train.beta", number),
    "dpo_beta": to("train.beta", number),
    "orpo_alpha": to("train.beta", number),
    "simpo_gamma": to("train.simpo_gamma", number),
    "kto_desirable_weight": to("train.desirable_weight", number),
    "kto_undesirable_weight": to("train.undesirable_weight", number),
    "center_rewards_coefficient": to("train.center_rewards_coefficient", number),
    "plugins": part("train", names),
    "special_tokens": part("tokenize", mapping),
    **all_of(
        refuses(IMAGES), "processor_type", "processor_kwargs", "image_size", "image_resize_algorithm",
    ),
    # nothing is left to freeze in a model of texts
    "freeze_mm_modules": nothing("a model of texts has no such parts"),
    **all_of(refuses(RL), "ebft", "nemo_gym_enabled", "use_vllm", "process_reward_model"),
    **all_of(
        lacks(RL), "trl", "vllm", "nemo_gym_dir", "nemo_gym_auto_clone", "nemo_gym_auto_start", "nemo_gym_config_paths",
        "nemo_gym_datasets", "nemo_gym_head_port", "nemo_gym_server_timeout", "nemo_gym_verify_timeout", "nemo_gym_multi_turn",
        "nemo_gym_max_turns", "reward_funcs",
    ),
    **all_of(
        refuses(WEIGHTS), "unfrozen_parameters", "relora", "lisa_n_layers", "spectrum_top_fraction", "lora_model_dir",
        "peft_layer_replication", "peft_trainable_token_indices", "reinit_weights", "use_onebitllms",
    ),
    **all_of(refuses(QUANTISED), "qat", "gptq", "quantization", "llmcompressor"),
    **all_of(
        lacks(WEIGHTS), "relora_prune_ratio", "relora_prune_method", "relora_cpu_offload", "jagged_restart_steps",
        "jagged_restart_warmup_steps", "jagged_restart_anneal_steps", "lisa_step_interval", "lisa_layers_attribute", "peft",
        "lora_target_parameters", "lora_fan_in_fan_out", "embedding_lr", "embedding_lr_scale", "lr_groups",
        "loraplus_lr_embedding", "peft_layers_pattern", "optim_target_modules",
    ),
    **all_of(
        lacks(QUANTISED), "quantize_moe_experts", "model_quantization_config", "model_quantization_config_kwargs",
        "bnb_config_kwargs", "gptq_groupsize", "gptq_model_v1", "gptq_disable_exllama", "nvfp4_merge_aware", "fp8_config",
        "dsv4_fp4_grouped_mode",
    ),
    **all_of(refuses(LOSS), "diffusion", "kd_trainer", "hatchery", "use_eaft"),
    **all_of(
        lacks(LOSS), "eaft_alpha", "eaft_k", "dpo_use_weighting", "dpo_label_smoothing", "dpo_loss_type",
        "dpo_loss_weights", "rpo_alpha", "cpo_alpha",
    ),
    **all_of(
        lacks("schedules have train.warmup_ratio and train.decay_ratio alone"), "cosine_min_lr_ratio",
        "cosine_constant_lr_ratio", "lr_quadratic_warmup", "lr_div_factor", "eta_min",
    ),
    **all_of(
        lacks("AdamW and Adafactor have no such setting"), "adam_epsilon2", "adam_beta3", "torchdistx_path", "dion_lr",
        "dion_momentum",
    ),
    **all_of(nothing(LOOK), *(f"wandb_{name}" for name in (
        "project", "name", "entity", "watch", "log_model", "run_id", "mode")), *(f"comet_{name}" for name in (
        "api_key", "workspace", "project_name", "experiment_key", "mode", "online", "experiment_config")), *(
        f"swanlab_{name}" for name in ("experiment_name", "description", "log_completions", "completion_log_interval",
        "completion_max_buffer", "log_model", "api_key")), "use_wandb", "use_mlflow", "use_comet", "mlflow_run_name",
        "hf_mlflow_log_artifacts", "use_otel_metrics", "otel_metrics_host", "otel_metrics_port", "include_tkps", "debug",
        "eval_table_size", "eval_max_new_tokens", "test_value", "gradio_title"),
    "strict": nothing("settings of the command line count over the recipe's"),
    **all_of(nothing(MODEL), "model_type", "type_of_model", "base_model_config", "cls_model_config",
        "base_model_ignore_patterns", "num_labels", "experimental_skip_move_to_device", "torch_dtype", "model_kwargs"),
    "overrides_of_model_kwargs": lacks("model.overrides changes the model's config.json alone"),
    "peft_autocast_adapter_dtype": part("train.lora", flag),
    **all_of(nothing(TOKENIZER), "tokenizer_type", "tokenizer_use_fast", "tokenizer_legacy", "tokenizer_save_jinja_files",
        "is_llama_derived_model", "is_mistral_derived_model", "is_falcon_derived_model", "is_qwen_derived_model"),
    **all_of(lacks(TOKENIZER), "tokenizer_use_mistral_common", "added_tokens_overrides"),
    # such code is in no key, and not in the published model
    "trust_remote_code": lacks("no code of a model repository is run: use a model that transformers knows"),
    **all_of(nothing("embeddings grow for tokenize.new_tokens"), "resize_token_embeddings_to_32x", "shrink_embeddings",
        "mean_resizing_embeddings"),
    "eot_tokens": nothing("the last special token of an answer ends it"),
    **all_of(nothing(READ), "dataset_prepared_path", "dataset_processes", "dataset_keep_in_memory", "skip_prepare_dataset",
        "num_dataset_shards_to_save", "streaming_multipack_buffer_size", "pretrain_multipack_buffer_size"),
    **all_of(nothing("packed rows attend within themselves; see pack.strategy"), "eval_sample_packing", "pad_to_sequence_len",
        "pad_to_multiple_of", "sample_packing_eff_est", "sample_packing_seq_len_multiplier", "sample_packing_group_size",
        "sample_packing_bin_size", "sample_packing_mp_start_method", "total_num_tokens", "pretrain_multipack_attn",
        "pretraining_sample_concatenation", "multipack_real_batches", "batch_flattening", "dpo_padding_free",
        "max_packed_sequence_len"),
    **all_of(nothing(OURS), "attn_implementation", "flash_attention", "xformers_attention", "sdp_attention",
        "sdpa_varlen", "flex_attention", "eager_attention", "sage_attention", "flex_attn_compile_kwargs", "flash_optimum",
        "flash_attn_cross_entropy", "flash_attn_fuse_mlp", "flash_attn_rms_norm", "fused_attn_kernel", "large_head_attention",
        "gemma4_hybrid_attn_impl", "flash_attn_d512", "lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel",
        "lora_embedding_kernel", "use_kernels", "use_scattermoe", "use_sonicmoe", "experts_implementation",
        "llama4_linearized_experts", "cut_cross_entropy", "chunked_cross_entropy", "chunked_cross_entropy_num_chunks",
        "tiled_mlp", "tiled_mlp_num_shards", "tiled_mlp_use_original_mlp", "liger_rope", "liger_rms_norm",
        "liger_rms_norm_gated", "liger_layer_norm", "liger_glu_activation", "liger_swiglu", "liger_cross_entropy",
        "liger_fused_linear_cross_entropy", "use_dsv4_kernels", "use_glm_dsa_kernels", "dpo_use_liger_kernel",
        "activation_offloading", "layer_offloading", "selective_checkpointing", "ple_cpu_offload", "lora_on_cpu",
        "embeddings_skip_upcast", "fp32_norms", "fp32_norm_classes", "gc_steps", "gc_collect_steps", "deepcompile",
        "precompute_ref_log_probs", "qlora_sharded_model_loading"),
    **all_of(nothing(MACHINE), "context_parallel_size", "sequence_parallel_degree", "heads_k_stride", "ring_attn_func",
        "expert_parallel_size", "expert_parallel_num_nvl_bytes", "expert_parallel_token_capacity"),
    **all_of(lacks("rows are shuffled anew in each epoch, by train.seed"), "sample_packing_sequentially",
        "curriculum_sampling", "shuffle_before_merging_datasets"),
    "shuffle_merged_datasets": nothing("rows are shuffled anew in each epoch, by train.seed"),
    **all_of(lacks("a row is left out by tokenize.overlong alone, or by a function of yours"), "min_sample_len",
        "max_prompt_len", "eval_sequence_len", "dataset_shard_num", "dataset_shard_idx"),
    **all_of(lacks("training stops by itself where the loss is not finite"), "loss_watchdog_threshold",
        "loss_watchdog_patience"),
    **all_of(lacks("evaluate.metrics and evaluate.harness name further metrics"), "do_causal_lm_eval",
        "eval_causal_lm_metrics", "do_bench_eval", "bench_dataset", "bench_split"),
    **all_of(lacks("no code of another program is run"), "trainer_cls", "use_pose", "scaling_softmax", "scaling_softmax_factor",
        "scaling_softmax_bias"),
    "rope_scaling": lacks("set it in model.overrides, in the names of the model's config.json"),
}  # fmt: skip
"""{key of a config: rule}."""

SHARDS = lacks("all rows of the split are read: data.limit takes some")
DATASET: Table = {
    "path": part("data.source", text),
    "type": part("format.task", _kind),
    "name": to("data.name", text),
    "revision": part("data.revision", text),
    "split": part("data.splits", text),
    "data_files": part("data.source", files),
    "ds_type": part("data.format", text),
    "field": part("format.text", text),
    "text_column": part("format.text", text),
    "field_messages": part("format.messages", text),
    "field_tools": to("format.tools", text),
    "field_chosen": part("data.columns", text),
    "field_rejected": part("data.columns", text),
    "message_property_mappings": part("format.messages", texts),
    "message_field_role": part("format.messages", text),
    "message_field_content": part("format.messages", text),
    "roles": part("format.messages", _roles),
    "roles_to_train": part("format.turns", names),
    "chat_template": part("format.chat_template", word),
    "chat_template_jinja": part("format.chat_template", word),
    **all_of(SHARDS, "shards", "shards_idx", "preprocess_shards", "skip"),
    **all_of(
        lacks("the end of each turn that is trained on is trained on, and no other", "turn"), "train_on_eos", "train_on_eot"
    ),
    **all_of(
        nothing("thinking is read from `thinking` or `reasoning_content`, where the chat template writes it"),
        "field_thinking", "template_thinking_key", "split_thinking",
    ),
    "drop_system_message": lacks("a system message of the rows is kept: remove it from the rows"),
    "trust_remote_code": lacks("no code of a dataset repository is run"),
    "field_system": part("format.system", text),
    "message_field_training": part("format.turns", text),
    "message_field_training_detail": part("format.turns", text),
}  # fmt: skip
"""{key of an entry of `datasets`: rule}."""

CHAT = ("chat_template", "sharegpt", "sharegpt.load_multirole")
PAIRS = ("chat_template.default", "chat_template.argilla_chat", "chat_template.argilla", "chatml.argilla_chat")
PLAIN = ("completion", "pretrain")
KTO = ("llama3.argilla_chat", "chatml.argilla_chat")


def translate(t: Translation) -> None:
    """Translate a config of axolotl. Raises ConfigError for what would be half a recipe."""
    t.start(KEYS)
    _objective(t)
    _plugins(t)
    _rows(t)
    _lengths(t)
    _method(t)
    _tokens(t)
    _numbers(t)
    t.end(KEYS, DEFAULTS)


DEFAULTS: Tree = {
    "train.epochs": 1, "train.weight_decay": 0.0, "train.schedule": "cosine", "train.seed": 42,
}  # fmt: skip
"""Settings that differ here where a config of axolotl says nothing."""


def _objective(t: Translation) -> None:
    # reward models are no `rl` there
    way = t.values.get("rl")
    if way:
        if way not in PREFERENCES:
            t.refuse("rl", RL)
        for name, value in PREFERENCES[way].items():
            t.set(f"train.{name}", value, "rl")
    elif t.values.get("reward_model"):
        t.set("train.objective", "reward", "reward_model")


KERNELS = ("cut_cross_entropy", "liger", "kernels", "expert_parallel", "swanlab", "densemixer")


def _plugins(t: Translation) -> None:
    for at, name in enumerate(t.values.get("plugins") or []):
        kind = str(name).removeprefix("axolotl.integrations.").partition(".")[0]
        if kind not in KERNELS:
            t.refuse("plugins", f"{name} is another program's code: {WEIGHTS if kind == 'spectrum' else LOSS}")
        if not at:
            t.ignore("plugins", OURS)


def _rows(t: Translation) -> None:
    """Write where rows come from, what becomes of them, and how they are split."""
    key = "datasets" if t.values.get("datasets") else "pretraining_dataset"
    if not (sources := t.values.get(key)):
        t.refuse(key, "it names no rows", "name them: `datasets: [{path: ..., type: ...}]`")
    labels: list[str] = []
    given = []
    for at, source in enumerate(sources):
        label = re.sub(r"[^\w-]+", "-", str(source.get("path", "")).rpartition("/")[2]).strip("-") or "rows"
        labels.append(f"{label}-{at + 1}" if label in labels else label)
        mixed = f"data.mix.{labels[at]}." if len(sources) > 1 else "data."
        above = f"{key}.{at}."

        def place(setting: str, mixed: str = mixed) -> str:
            return setting.replace("data.", mixed, 1) if setting.startswith("data.") else setting

        entry = t.apply(DATASET, source, above, place)
        _source(t, entry, above, place)
        _form(t, entry, above, place, pretrains=key == "pretraining_dataset")
        for name in ("field_system", "message_field_training", "message_field_training_detail"):
            if name in entry and f"{above}{name}" not in t.entries:
                t.ignore(f"{above}{name}", "rows of this type are not read by it")
        for name in ("system", "tools") if len(sources) > 1 and entry.get("type") in CHAT else ():
            t.set(f"format.{name}", entry.get(f"field_{name}") or name)
        given.append(entry)
    t.entries.pop(key, None)
    _splits(t, given)


BUILDERS = ("json", "csv", "parquet", "arrow", "text")


def _source(t: Translation, entry: Tree, above: str, place: Any) -> None:
    path, named_files = entry.get("path"), entry.get("data_files")
    if not path:
        t.refuse(f"{above}path", "it names no rows")
    kind = entry.get("ds_type")
    is_local = bool(kind) or Path(path).suffix.lstrip(".") in FILES or path.startswith((".", "/", "~")) or "://" in path
    if named_files:
        if len(named_files) > 1:
            t.refuse(f"{above}data_files", "data.source takes one file, folder or pattern", "name a pattern in path")
        # axolotl asks the disk first, and then the hub, also with ds_type
        at_hub = path not in BUILDERS and re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", path) and not Path(path).exists()
        keys = [f"{above}path", f"{above}data_files"]
        if at_hub:
            revision = quote(entry.get("revision") or "main", safe="")
            keys += [f"{above}revision"] * ("revision" in entry)
            # a URL, because data.splits names a hub's splits, not its files
            source = f"https://huggingface.co/datasets/{path}/resolve/{revision}/{named_files[0]}"
            t.set(place("data.source"), source, *keys)
        else:
            t.set(place("data.source"), named_files[0], *keys)
            if "revision" in entry:
                t.ignore(f"{above}revision", "a file of yours has none")
    else:
        t.set(place("data.source"), path, f"{above}path")
        if "revision" in entry:
            t.set(place("data.revision"), entry["revision"], f"{above}revision")
    if kind:
        if kind in BUILDERS and not named_files:
            t.set(place("data.format"), {"json": "jsonl", "text": "txt"}.get(kind, kind), f"{above}ds_type")
        else:
            t.ignore(f"{above}ds_type", "the file's name says its format")
    _split(t, entry, above, place, named=not is_local and not named_files)


def _split(t: Translation, entry: Tree, above: str, place: Any, *, named: bool) -> None:
    """Write the split that is read. named: whether the source has names of splits."""
    key, split = f"{above}split", str(entry.get("split") or "train")
    if "+" in split:
        t.refuse(
            key, "data.splits has one split of theirs for train", "name one, or write them as two entries of datasets"
        )
    name, _, some = split.partition("[")
    if not name:
        t.refuse(key, "it names no split", "name it before the bracket, such as train[:100]")
    # where a split is named the others are not read, and theirs reads one
    if named and not files_of(name):
        t.set(place("data.splits"), {"train": name}, key)
    elif "split" in entry:
        t.ignore(key, "a file without another split's name is train")
    if some and (rows := re.fullmatch(r":(\d+)\]", some)) and place("data.x") == "data.x":
        t.set("data.limit", {"train": int(rows[1])}, key)
        t.notes.append(
            f"{key}: data.limit takes a random sample by data.shuffle_seed, and there the first rows are read"
        )
    elif some:
        t.lack(key, f"all rows of {name} are read: data.limit={{train: N}} takes some")


def files_of(name: str) -> str:
    """Return the ending of a file's name, "" of a split's name."""
    return Path(name).suffix


def _form(t: Translation, entry: Tree, above: str, place: Any, *, pretrains: bool) -> None:
    """Write what rows of a type become."""
    kind, key = entry.get("type") or ("pretrain" if pretrains else None), f"{above}type"
    preference = t.get("train.objective")
    if isinstance(kind, dict):
        _own_prompt(t, kind, key)
    elif preference:
        _pairs(t, entry, above, place, str(kind), str(preference))
    elif kind in CHAT:
        t.set("format.task", "chat", key)
        old = kind != "chat_template"
        note = "answers: all that ends a turn is trained on, also a line break behind its end token; there that token alone"
        t.notes += [note] * (note not in t.notes)
        _messages(t, entry, above, "conversations" if old else "messages")
        _template(t, entry, above)
    elif kind in PLAIN:
        t.set("format.task", "text", key)
        column = "field" if "field" in entry else "text_column"
        t.set("format.text", entry.get(column) or "text", f"{above}{column}")
    elif kind == "alpaca" or kind in PROMPTS:
        t.set("format.task", "instruction", key)
        if kind == "alpaca":
            t.set("format.style", "alpaca", key)
        else:
            t.set("format.prompt_template", PROMPTS[kind], key)
        t.set("format.context", "input")
        t.set("format.response", "output")
    else:
        fix = "give rows of messages with type: chat_template, or write the recipe with `trnflow new DATA`"
        t.refuse(key, "trnflow has no such rows", fix)
    _inputs(t, kind)
    for name in ("chat_template", "chat_template_jinja"):
        if t.values.get(name) and name not in t.entries and t.get("format.chat_template") is None:
            t.ignore(name, f"rows of type {kind if isinstance(kind, str) else 'of your own'} are not written by it")


def _own_prompt(t: Translation, kind: Tree, key: str) -> None:
    """Write a prompt of the user's as Jinja."""
    columns = {name: kind.get(f"field_{name}") or name for name in ("instruction", "input", "output", "system")}
    strange = sorted(
        {*kind}
        - {*(f"field_{name}" for name in columns), "format", "no_input_format", "system_prompt", "system_format"}
    )
    if strange:
        t.refuse(key, f"trnflow knows no {strange[0]} of a prompt")

    for column in columns.values():
        if not column.isidentifier() or iskeyword(column) or column in ("self", "true", "false", "none"):
            fix = "rename it in the rows, in field_... and not in the prompt"
            t.refuse(key, f"a template can't name the column {column!r}", fix)

    def jinja(form: str, **fields: str) -> str:
        """Return str.format's text as Jinja."""
        try:
            pieces = [*Formatter().parse(form)]
        except ValueError as error:
            t.refuse(key, f"{form!r}: {error}", "correct its braces")
        written = ""
        for literal, field, spec, conversion in pieces:
            if field is not None and (field not in fields or spec or conversion):
                t.refuse(key, f"{form!r} has the field {field}", f"a prompt has {', '.join(fields)}, in braces")
            written += f"{{{{ {literal!r} }}}}" if literal else ""
            written += f"{{{{ {fields[field]} }}}}" if field is not None else ""
        return written

    asked = {"instruction": columns["instruction"], "input": columns["input"]}
    whole_form = jinja(str(kind.get("format") or "{instruction} {input} "), **asked)
    short_form = jinja(str(kind.get("no_input_format") or "{instruction} "), instruction=asked["instruction"])
    # a row's own system prompt counts, also an empty one
    own, system = columns["system"], "opening_" + columns["system"]
    opening = f"{{% set {system} = {own} if {own} is defined else {str(kind.get('system_prompt') or '')!r} %}}"
    first = jinja(str(kind.get("system_format") or "{system}"), system=system)
    more = f"{asked['input']} is defined and {asked['input']}"
    opening += f"{{% if {system} %}}{first}{{% endif %}}"
    template = f"{opening}{{% if {more} %}}{whole_form}{{% else %}}{short_form}{{% endif %}}"
    t.set("format.task", "instruction", key)
    t.set("format.prompt_template", template, key)
    t.set("format.response", columns["output"], key)


def _messages(t: Translation, entry: Tree, above: str, usual: str) -> None:
    """Write the column of messages. Raises ConfigError for names of fields or roles that trnflow does not read."""
    t.set("format.messages", entry.get("field_messages") or usual, f"{above}field_messages")
    if entry.get("field_system"):
        t.set("format.system", entry["field_system"], f"{above}field_system")
    for name, known in (("message_field_training", FLAGS), ("message_field_training_detail", DETAILS)):
        if entry.get(name) in known:
            t.note(f"{above}{name}", entry[name], "translated", "format.turns: the field is read by this name")
        elif entry.get(name):
            t.lack(f"{above}{name}", f"rename the field in the rows: trnflow reads {', '.join(known)}")
    _fields(t, entry, above)


def _fields(t: Translation, entry: Tree, above: str) -> None:
    fields = entry.get("message_property_mappings") or {}
    given = {"role": entry.get("message_field_role"), "content": entry.get("message_field_content"), **fields}
    # trnflow reads both shapes by itself, and no third
    for ours, usual in (("role", "from"), ("content", "value")):
        if given.get(ours) not in (None, ours, usual):
            t.refuse(
                f"{above}message_property_mappings", f"trnflow reads {ours} from {ours} or {usual}, not {given[ours]}"
            )
    for name in ("message_property_mappings", "message_field_role", "message_field_content"):
        if entry.get(name):
            strange = [field for field in fields if field not in ("role", "content") and fields[field] != field]
            if strange and name == "message_property_mappings":
                t.lack(f"{above}{name}", f"fields are read by their own names, also {strange[0]}")
            else:
                t.note(
                    f"{above}{name}", entry[name], "translated", "format.messages: role and content, or from and value"
                )
    for role, others in (entry.get("roles") or {}).items():
        for other in others:
            if SHAREGPT.get(other, other) != role or role not in ROLES:
                t.refuse(f"{above}roles", f"trnflow reads the role {other} as {SHAREGPT.get(other, other)}, not {role}")
    if entry.get("roles"):
        t.note(f"{above}roles", entry["roles"], "translated", "format.messages: the same roles")
    trained = entry.get("roles_to_train")
    if trained is not None:
        if [SHAREGPT.get(role, role) for role in trained] != ["assistant"]:
            t.refuse(f"{above}roles_to_train", "trnflow trains on the assistant's turns")
        t.note(f"{above}roles_to_train", trained, "translated", "format.turns=all")


OWN_TEMPLATE = "tokenizer_default"


def _template(t: Translation, entry: Tree, above: str) -> None:
    """Write the chat template."""
    where = above if entry.get("chat_template") or entry.get("chat_template_jinja") else ""
    at = entry if where else t.values
    name, jinja = at.get("chat_template"), at.get("chat_template_jinja")
    keys = [f"{where}{key}" for key in ("chat_template", "chat_template_jinja") if at.get(key)]
    name = str(name or ("jinja" if jinja else OWN_TEMPLATE))
    if name == "jinja" and isinstance(jinja, str):
        t.set("format.chat_template", jinja, *keys)
    elif name == OWN_TEMPLATE or name.startswith(f"{OWN_TEMPLATE}_fallback_"):
        t.set("format.chat_template", "tokenizer", *keys)
    elif name in TEMPLATES:
        t.set("format.chat_template", TEMPLATES[name], *keys)
    else:
        t.set("format.chat_template", "tokenizer", why=f"there {name}")
        t.lack(f"{where}chat_template", "the tokenizer's own is used: write theirs as Jinja into format.chat_template")


def _inputs(t: Translation, kind: Any) -> None:
    if t.values.get("train_on_inputs") and kind not in PLAIN:
        t.lack("train_on_inputs", "answers alone are trained on; format.task=text trains on all of a column")
    elif t.values.get("train_on_inputs") is not None:
        t.note("train_on_inputs", t.values["train_on_inputs"], "translated", f"format.task={t.get('format.task')}")


def _pairs(t: Translation, entry: Tree, above: str, place: Any, kind: str, objective: str) -> None:
    """Write rows with two answers, or with one that is marked."""
    key = f"{above}type"
    if objective == "kto":
        if kind not in KTO:
            t.refuse(
                key,
                "its texts are written by no chat template here",
                "give rows with the columns completion (messages) and label, and a type that ends in argilla_chat",
            )
        t.set("format.task", "unpaired_preference", key)
    elif kind in PAIRS:
        t.set("format.task", "preference", key)
        columns = {name: entry.get(f"field_{name}") or name for name in ("chosen", "rejected")}
        keys = [f"{above}field_{name}" for name in columns if entry.get(f"field_{name}")]
        if kind == "chat_template.default":
            columns["prompt"] = entry.get("field_messages") or "messages"
            keys += [f"{above}field_messages"] * bool(entry.get("field_messages"))
        t.set(place("data.columns"), columns, *keys)
    else:
        fix = "give rows of messages with type: chat_template.default"
        t.refuse(key, "its texts are written by no chat template here", fix)
    note = (
        "rl: there the tokenizer's bos stands before each text, also where the template writes none,"
        " and no line break behind an answer's end token"
    )
    t.notes += [note] * (note not in t.notes)
    _fields(t, entry, above)
    _template(t, entry, above)


def _splits(t: Translation, sources: list[Tree]) -> None:
    """Write which rows are held out: none beside theirs."""
    size, tests = t.values.get("val_set_size"), t.values.get("test_datasets")
    share = size or 0.0
    split: Tree = {}
    if share >= 1:
        t.lack("val_set_size", "a number of rows: set data.split to a share, such as {validation: 0.1}")
    elif share > 0:
        split = {"validation": share}
    if tests:
        same = len(sources) == 1 == len(tests) and tests[0].get("path") == sources[0]["path"]
        if same and t.get("data.splits") and not split:
            held_out = t.settings["data"]["splits"]["validation"] = str(tests[0].get("split") or "train")
            t.note("test_datasets", tests, "translated", f"data.splits.validation={held_out}")
        else:
            t.lack("test_datasets", "other rows to validate on: name them in data.splits.validation")
    hold_out(t, split, *(["val_set_size"] if share < 1 else []))


def _lengths(t: Translation) -> None:
    length = t.values.get("sequence_len") or 512
    t.set("tokenize.max_length", length, "sequence_len", why=t.usual)
    pairs, plain_texts = bool(t.get("train.objective")), t.get("format.task") == "text"
    # what is too long is left out there by default
    long = str(t.values.get("excess_length_strategy") or "drop")
    ways = {"drop": "drop", "truncate": "truncate", "raise": "error"}
    if long not in ways:
        t.refuse("excess_length_strategy", f"it is one of {', '.join(ways)}")
    if not plain_texts:
        t.set("tokenize.overlong", ways[long], "excess_length_strategy", why=t.usual)
    elif t.values.get("excess_length_strategy"):
        t.set("tokenize.overlong", "split")
        t.ignore("excess_length_strategy", "texts are split there, too")
    else:
        t.set("tokenize.overlong", "split", why=t.usual)
    # two answers of a row share a chunk, and are never packed with others there
    packs = bool(t.values.get("sample_packing")) and not pairs
    pretrains = bool(t.values.get("pretraining_dataset")) and not t.values.get("datasets")
    strategy = "concat" if pretrains else "bfd" if packs else "pad"
    t.set("pack.strategy", strategy, "sample_packing", why=t.usual)
    if pairs:
        t.set("pack.chunk_length", 2 * length, why="both answers of a row")
    else:
        t.set("pack.chunk_length", length, "sequence_len", why=t.usual)


def _method(t: Translation) -> None:
    adapter = t.values.get("adapter")
    if not adapter:
        t.set("train.method", "full", "adapter")
        t.why["train.method"] = "no adapter"
        t.ignore_lora(KEYS, "no adapter")
        return
    if adapter not in METHODS:
        t.refuse("adapter", "trnflow has LoRA, with DoRA, rsLoRA and PiSSA (train.lora)")
    t.set("train.method", METHODS[adapter], "adapter")
    # qlora is LoRA whose base is in 4 bits: the base alone differs
    for key, base in BASES.items():
        if t.values.get(key):
            t.set("train.lora.base_dtype", base, key, *(["adapter"] if adapter == "qlora" else []))
    if adapter == "qlora" and not t.values.get("load_in_4bit"):
        if t.values.get("load_in_8bit"):
            t.refuse("load_in_8bit", "qlora is of 4 bits", "set load_in_4bit: true, or adapter: lora")
        t.set("train.lora.base_dtype", "nf4", "adapter")
    t.set_read(KEYS, LORA)
    t.apply(INITS, {key: value for key, value in t.values.items() if key in INITS})
    if t.values.get("peft_autocast_adapter_dtype") is False:
        t.lack("peft_autocast_adapter_dtype", "adapters are trained in fp32")
    elif "peft_autocast_adapter_dtype" in t.values:
        t.ignore("peft_autocast_adapter_dtype", "adapters are trained in fp32, as there")
    targets = t.values.get("lora_target_modules")
    if t.values.get("lora_target_linear"):
        t.set("train.lora.targets", "all-linear", "lora_target_linear")
        outside = [name for name in targets or [] if re.search(r"embed|wte|wpe|lm_head|output|norm|conv|experts", name)]
        if outside:
            why = f"all-linear adapts no {outside[0]}: list all layers in train.lora.targets"
            t.lack("lora_target_modules", why)
        elif targets:
            t.ignore("lora_target_modules", "lora_target_linear adapts all linear layers")
    elif targets:
        t.set("train.lora.targets", _targets(t, targets), "lora_target_modules")
    elif t.get("train.lora") is None:
        t.set("train.lora", {})


LORA = (
    "lora_r", "lora_alpha", "lora_dropout", "lora_modules_to_save", "lora_rank_pattern", "lora_alpha_pattern",
    "peft_layers_to_transform", "peft_use_dora", "peft_use_rslora", "loraplus_lr_ratio",
)  # fmt: skip
"""Keys that set the setting of their rule with an adapter, and nothing without."""
INITS: Table = {"peft_init_lora_weights": to("train.lora.init_lora_weights", _inits)}


# axolotl's examples write all layers of the attention and the MLP so, with names in front that models of texts lack
DENSE = re.compile(
    r"[\w.]*layers\.\[\\d\]\+\.(\(_checkpoint_wrapped_module\.\)\?)?\(mlp\|(cross_attn\|)?self_attn\)\.\(up\|down\|gate\|q\|k\|v\|o\)_proj"
)
DENSE_LAYERS = [
    *(f"mlp.{name}_proj" for name in ("up", "down", "gate")),
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")),
]


def _targets(t: Translation, modules: list[str]) -> list[str] | str:
    if modules == ["all-linear"]:
        return "all-linear"
    if len(modules) == 1 and DENSE.fullmatch(modules[0]):
        return DENSE_LAYERS
    strange = [name for name in modules if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", name)]
    if strange:
        fix = "list the last parts of names, such as [q_proj, v_proj], or set lora_target_linear: true"
        t.refuse("lora_target_modules", f"{strange[0]} is a pattern of whole names, and trnflow takes last parts", fix)
    return modules


def _tokens(t: Translation) -> None:
    tokens = t.values.get("tokens")
    if isinstance(tokens, list) and tokens:
        t.set("tokenize.new_tokens", tokens, "tokens")
    special = {**(tokens if isinstance(tokens, dict) else {}), **(t.values.get("special_tokens") or {})}
    key = "special_tokens" if t.values.get("special_tokens") else "tokens"
    if not special:
        return
    added = special.get("additional_special_tokens")
    if added:
        t.set("tokenize.new_tokens", t.read(names, key, added, "tokenize.new_tokens"), key)
    others = [name for name in special if name not in ("pad_token", "additional_special_tokens")]
    if others:
        t.lack(
            key,
            f"{', '.join(others)}: the tokenizer's own are used; save another with yours, and name it in model.tokenizer",
        )
    elif not added:
        t.ignore(key, "padding is never trained on, whatever its token")


def _numbers(t: Translation) -> None:
    rows = t.values.get("micro_batch_size") or 1
    accumulated = t.values.get("gradient_accumulation_steps")
    if accumulated is None and t.values.get("batch_size"):
        set_batch(t, "micro_batch_size", rows, max(1, t.values["batch_size"] // rows), "batch_size")
    else:
        set_batch(t, "micro_batch_size", rows, accumulated or 1)
        if t.values.get("batch_size"):
            t.ignore("batch_size", "gradient_accumulation_steps counts")
    set_steps(t)
    if not t.get("train.max_steps"):
        t.notes.append(
            "updates: trnflow rounds up those of each epoch and of warm-up; axolotl rounds those of all epochs once, and "
            "warm-up down"
        )
    _warmup(t)
    _dtype(t)
    set_rest(t)


def _warmup_updates(share: float, total: int) -> int:
    count = int(share * total)
    return 2 if count == 1 else count


def _warmup(t: Translation) -> None:
    # Trainer's 0 leaves it to warmup_ratio, and axolotl's does not
    if t.values.get("warmup_steps") == 0 and t.values.pop("warmup_ratio", None) is not None:
        t.ignore("warmup_ratio", "warmup_steps counts")
    set_warmup(t, _warmup_updates)
    if t.values.get("warmup_steps") is None and t.values.get("warmup_ratio") is None:
        if t.values.get("lr_scheduler") == "constant":
            return
        total = t.get("train.max_steps")
        # of a known number of updates axolotl rounds down, and warms up for 100 at most
        share = share_of(min(_warmup_updates(0.03, total), 100), total) if total else 0.03
        t.set("train.warmup_ratio", share, why=t.usual + ("" if total else ", there at most 100 updates"))


def _dtype(t: Translation) -> None:
    """Write the type of numbers; `bf16: auto` leaves it to the machine."""
    wide, narrow = t.values.get("bf16", "auto"), t.values.get("fp16")
    if t.values.get("bfloat16") or wide in (True, "full"):
        t.set("train.dtype", "bfloat16", "bfloat16" if t.values.get("bfloat16") else "bf16")
    elif t.values.get("float16") or narrow:
        t.set("train.dtype", "float16", "float16" if t.values.get("float16") else "fp16")
    elif t.values.get("float32"):
        t.set("train.dtype", "float32", "float32")
    elif wide == "auto":
        if "bf16" in t.values:
            t.note("bf16", wide, "translated", "train.dtype: the machine's, as there")
    else:
        t.set("train.dtype", "float32", "bf16")
