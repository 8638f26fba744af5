"""A config of LLaMA-Factory 0.9 becomes the settings of a recipe: a table with a rule for each key, then what several keys
decide. Its rows are named in a file of its own, `dataset_info.json`."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from trnflow.flows.recipes.schema import Tree
from trnflow.flows.recipes.yaml_tree import BYTES
from trnflow.flows.translation.templates import LLAMA_FACTORY as TEMPLATES
from trnflow.flows.translation.trainer_keys import (
    LOOK,
    MACHINE,
    OURS,
    READ,
    TRAINER,
    all_of,
    amount,
    count,
    epochs,
    flag,
    from_one,
    hold_out,
    if_any,
    names,
    number,
    optimizer,
    schedule,
    set_batch,
    set_rest,
    set_steps,
    set_warmup,
    text,
    texts,
    whole,
    word,
)
from trnflow.flows.translation.translation import Table, Translation, lacks, nothing, part, refuses, to
from trnflow.tasks.data.format.conversation import SHAREGPT
from trnflow.tasks.errors import ConfigError

IMAGES = "trnflow trains on texts alone"
WEIGHTS = "trnflow trains all weights, a head, or LoRA (train.method, train.freeze)"
OPTIMIZER = "trnflow has adamw, adamw_8bit and adafactor (train.optimizer)"
LOSS = "another loss is a function of yours: train.loss"
NO_TRAINING = "it trains nothing: `trnflow predict` and `trnflow get` use a trained model"
RL = "no reinforcement learning: rank answers beforehand, and stage: dpo trains on pairs"
WRITES = "evaluate.generation says how texts are generated"
STAGES: dict[str, Tree] = {"sft": {}, "pt": {}, "rm": {"objective": "reward"}, "kto": {"objective": "kto"}}
"""`stage` but for dpo -> settings of `train`."""
LOSSES: dict[str, Tree] = {
    "sigmoid": {"objective": "dpo"}, "ipo": {"objective": "dpo", "loss_type": "ipo"}, "orpo": {"objective": "orpo"},
    "simpo": {"objective": "simpo"},
}  # fmt: skip
"""`pref_loss` -> settings of `train`."""


def _shares(value: Any) -> list[float]:
    return [number(share) for share in str(value).split(",")]


KEYS: Table = {
    **TRAINER,
    "model_name_or_path": to("model.source", text),
    "model_revision": to("model.revision", text),
    "tokenizer_name": to("model.tokenizer", text),
    "stage": part("train.objective", text),
    "pref_loss": part("train.objective", text),
    "pref_beta": to("train.beta", number),
    "simpo_gamma": to("train.simpo_gamma", number),
    "kto_chosen_weight": to("train.desirable_weight", number),
    "kto_rejected_weight": to("train.undesirable_weight", number),
    "dataset": part("data.source", word),
    "dataset_dir": part("data.source", text),
    "max_samples": part("data.limit", count),
    "val_size": part("data.split", amount),
    "eval_dataset": lacks("other rows to validate on: name them in data.splits.validation"),
    "mix_strategy": part("data.stopping_strategy", text),
    "interleave_probs": part("data.mix", _shares),
    "template": part("format.chat_template", text),
    "enable_thinking": part("format.template_arguments", flag),
    "train_on_prompt": part("format.task", flag),
    "mask_history": part("format.turns", flag),
    "cutoff_len": part("tokenize.max_length", count),
    "packing": part("pack.strategy", flag),
    "neat_packing": part("pack.strategy", flag),
    "add_tokens": part("tokenize.new_tokens", names),
    "add_special_tokens": part("tokenize.new_tokens", names),
    "finetuning_type": part("train.method", text),
    "lora_rank": part("train.lora.rank", count),
    "lora_alpha": part("train.lora.alpha", whole),
    "lora_dropout": part("train.lora.dropout", number),
    "lora_target": part("train.lora.targets", names),
    "additional_target": part("train.lora.modules_to_save", names),
    "use_rslora": part("train.lora.use_rslora", flag),
    "use_dora": part("train.lora.use_dora", flag),
    "loraplus_lr_ratio": part("train.lora.loraplus_lr_ratio", number),
    "pissa_init": part("train.lora.init_lora_weights", flag),
    "pissa_iter": part("train.lora.init_lora_weights", whole),
    "quantization_bit": part("train.lora.base_dtype", whole),
    "quantization_type": refuses("train.lora.base_dtype has nf4 and int8", "nf4"),
    "quantization_method": refuses("train.lora.base_dtype quantises as bitsandbytes does", "bnb", "bitsandbytes"),
    "per_device_train_batch_size": part("train.global_batch", count),
    "per_device_eval_batch_size": to("evaluate.batch", from_one),
    "num_train_epochs": to("train.epochs", epochs),
    "lr_scheduler_type": to("train.schedule", schedule),
    "optim": to("train.optimizer", optimizer),
    "pure_bf16": part("train.dtype", flag),
    "disable_gradient_checkpointing": to("train.remat", lambda value: not flag(value)),
    "gradient_checkpointing": nothing("disable_gradient_checkpointing decides there"),
    "early_stopping_steps": to("train.early_stopping_patience", if_any(whole)),
    "do_train": part("train", flag),
    "do_eval": nothing("training evaluates where there are validation rows"),
    "do_predict": nothing("`trnflow predict` and the stage evaluate_model do so"),
    **all_of(refuses(NO_TRAINING), "export_dir", "infer_backend"),
    **all_of(lacks(NO_TRAINING), "export_size", "export_device", "export_legacy_format", "export_quantization_bit",
        "export_quantization_dataset", "export_quantization_nsamples", "export_quantization_maxlen", "export_hub_model_id",
        "infer_dtype"),
    **all_of(refuses("training begins with train.warm_start_from's model of the store, or with model.source"),
        "adapter_name_or_path", "adapter_folder", "train_from_scratch"),
    **all_of(refuses(WEIGHTS), "use_llama_pro", "mixture_of_depths", "shift_attn", "freeze_extra_modules"),
    **all_of(lacks(WEIGHTS), "freeze_trainable_layers", "freeze_trainable_modules", "oft_rank", "oft_block_size",
        "oft_target", "module_dropout", "loraplus_lr_embedding", "moe_aux_loss_coef", "freeze_language_model"),
    **all_of(refuses(OPTIMIZER), "use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon"),
    **all_of(lacks(OPTIMIZER), *(f"galore_{name}" for name in ("target", "rank", "update_interval", "scale", "proj_type",
        "layerwise")), *(f"apollo_{name}" for name in ("target", "rank", "update_interval", "scale", "proj", "proj_type",
        "scale_type", "layerwise", "scale_front")), *(f"badam_{name}" for name in ("mode", "start_block", "switch_mode",
        "switch_interval", "update_ratio", "mask_mode", "verbose"))),
    **all_of(refuses(LOSS), "use_dft_loss", "use_asft_loss", "use_eaft_loss"),
    **all_of(lacks(LOSS), "asft_alpha", "eaft_alpha", "pref_ftx", "pref_bco_weight", "dpo_label_smoothing", "ld_alpha"),
    **all_of(refuses("the reference is the model from which training starts"), "ref_model", "ref_model_adapters"),
    **all_of(refuses(RL), "reward_model", "reward_model_adapters"),
    **all_of(lacks(RL), "ppo_buffer_size", "ppo_epochs", "ppo_score_norm", "ppo_target", "ppo_whiten_rewards",
        "reward_model_type", "reward_model_quantization_bit", "ref_model_quantization_bit"),
    **all_of(nothing("texts have no pictures, films or sounds"), "image_max_pixels", "image_min_pixels",
        "image_do_pan_and_scan", "crop_to_patches", "video_max_pixels", "video_min_pixels", "video_fps", "video_maxlen",
        "use_audio_in_video", "audio_sampling_rate", "freeze_vision_tower", "freeze_multi_modal_projector", "media_dir"),
    **all_of(nothing(WRITES), "predict_with_generate", "eval_num_beams", "generation_max_length", "generation_num_beams",
        "max_new_tokens", "temperature", "top_p", "top_k", "num_beams", "repetition_penalty", "length_penalty", "do_sample",
        "skip_special_tokens", "use_kv_cache"),
    **all_of(lacks("the rows' own system prompts and the chat template's count"), "default_system", "tool_format",
        "preserve_thinking"),
    **all_of(nothing(READ), "tokenized_path", "data_shared_file_system"),
    **all_of(nothing(OURS), "flash_attn", "use_unsloth", "use_unsloth_gc", "use_v1_kernels", "upcast_layernorm",
        "upcast_lmhead_output", "block_diag_attn", "fp8_backend"),
    **all_of(nothing(MACHINE), "quantization_device_map", "use_mca", "tensor_model_parallel_size",
        "pipeline_model_parallel_size", "expert_model_parallel_size", "context_parallel_size", "sequence_parallel",
        "bias_activation_fusion", "apply_rope_fusion", "use_distributed_optimizer", "overlap_param_gather",
        "overlap_grad_reduce", "moe_grouped_gemm", "moe_token_dispatcher_type", "recompute_granularity", "use_kt",
        "kt_weight_path", "kt_expert_checkpoint_path", "kt_use_lora_experts", "kt_lora_expert_num"),
    **all_of(nothing(LOOK), "include_effective_tokens_per_second", "print_param_status", "swanlab_api_key",
        "swanlab_lark_webhook_url", "swanlab_lark_secret", "compute_accuracy", "enable_torch_profiler"),
    "pissa_convert": nothing("consolidate writes an adapter of the original model"),
    "create_new_adapter": nothing("each training has an adapter of its own"),
    "resize_vocab": lacks("with LoRA it trains embedding and head there: train.lora.modules_to_save=[embed_tokens,lm_head]"),
    "init_special_tokens": lacks("new rows of the embeddings begin as docs/training.md says"),
    "new_special_tokens_config": lacks("list the tokens in tokenize.new_tokens"),
    "split_special_tokens": nothing("special tokens count only where a template wrote them"),
    "double_quantization": nothing("the scales of 4-bit weights; train.lora.base_dtype says the weights' type"),
    "rope_scaling": lacks("set it in model.overrides, in the names of the model's config.json"),
    "ignore_pad_token_for_loss": nothing("padding is never trained on"),
    "eval_on_each_dataset": lacks("validation rows of all sources are evaluated together"),
    "disable_shuffling": lacks("rows are shuffled anew in each epoch, by train.seed"),
    "trust_remote_code": lacks("no code of a model repository is run: use a model that transformers knows"),
}  # fmt: skip
"""{key of a config: rule}."""

LORA = ("lora_rank", "lora_dropout", "additional_target", "use_rslora", "use_dora", "loraplus_lr_ratio")
"""Keys that set the setting of their rule with LoRA, and nothing without."""

DEFAULTS: Tree = {"train.epochs": 3, "train.weight_decay": 0.0, "train.seed": 42, "train.remat": True}
"""Settings that differ here where a config of LLaMA-Factory says nothing, and the number of epochs."""


def translate(t: Translation) -> None:
    """Translate a config of LLaMA-Factory. Raises ConfigError for what would be half a recipe."""
    t.start(KEYS)
    if not t.values.get("do_train"):
        t.refuse("do_train", NO_TRAINING, "set do_train: true, if the config is of a training")
    t.ignore("do_train", "`trnflow run` trains and evaluates")
    _objective(t)
    _rows(t)
    _lengths(t)
    _method(t)
    _numbers(t)
    t.end(KEYS, DEFAULTS)


def _objective(t: Translation) -> None:
    stage = str(t.values.get("stage") or "sft")
    keys = ["stage"]
    if stage in STAGES:
        chosen = STAGES[stage]
    elif stage != "dpo":
        t.refuse("stage", RL if stage == "ppo" else f"it is one of {', '.join(STAGES)}, dpo")
    else:
        loss = str(t.values.get("pref_loss") or "sigmoid")
        if loss not in LOSSES:
            t.refuse("pref_loss", f"trnflow has {', '.join(LOSSES)}")
        chosen, keys = LOSSES[loss], ["stage", "pref_loss"]
    for name, value in chosen.items():
        t.set(f"train.{name}", value, *keys)


class Rows:
    """An entry of `dataset_info.json`, read as LLaMA-Factory reads it.

    Attributes:
        label: Its name in data.mix.
        columns: {what for: column}; where the entry names some, the others have none.
        tags: {what for: a message's field, or a role's name}.
    """

    def __init__(self, name: str, entry: Tree) -> None:
        usual = {"prompt": "instruction", "query": "input", "response": "output", "messages": "conversations"}
        self.name, self.entry, self.label = name, entry, re.sub(r"[^\w-]+", "-", name)
        try:
            self.columns = texts(entry.get("columns") or usual)
            self.tags = texts(entry.get("tags") or {})
        except ValueError as error:
            raise ConfigError(f"{INFO}: columns or tags of {name}: {error}", "correct it") from error
        self.form = str(entry.get("formatting") or "alpaca")
        self.is_ranked = bool(entry.get("ranking"))


def _rows(t: Translation) -> None:
    given = t.values.get("dataset")
    if not given:
        t.refuse("dataset", "it names no rows", "name them: `dataset: NAME`, as in dataset_info.json")
    folder, entries = _dataset_info(t, [name.strip() for name in given.split(",")])
    for rows in entries:
        section = f"data.mix.{rows.label}" if len(entries) > 1 else "data"
        for name, value in _source(t, rows, folder).items():
            t.set(f"{section}.{name}", value, *(["dataset", "dataset_dir"] if name == "source" else []))
    _mixture(t, entries)
    _form(t, entries)
    limit = t.values.get("max_samples")
    if limit is not None and len(entries) == 1:
        t.set("data.limit", {"train": limit}, "max_samples")
        t.notes.append(
            "max_samples: data.limit takes a random sample by data.shuffle_seed, and there the first rows are read"
        )
    elif limit is not None:
        t.lack(
            "max_samples", f"it counts for each of {len(entries)} sources, and data.limit for all: all rows are read"
        )
    share = t.values.get("val_size") or 0.0
    if share >= 1:
        t.lack("val_size", "a number of rows: set data.split to a share, such as {validation: 0.1}")
    hold_out(t, {"validation": share} if 0 < share < 1 else {}, *(["val_size"] if share < 1 else []))


def _dataset_info(t: Translation, wanted: list[str]) -> tuple[Path, list[Rows]]:
    """Return the folder of the rows, and their entries."""
    named = str(t.values.get("dataset_dir") or "data")
    if named == "ONLINE":
        return Path(), [Rows(name, {"hf_hub_url": name}) for name in wanted]
    if named.startswith("REMOTE:"):
        fix = f"download dataset_info.json of {named[7:]}, and set dataset_dir to its folder"
        t.refuse("dataset_dir", "it is on the hub, and says there what the rows are", fix)
    # the folder lies beside that of the examples
    places = [Path(named), *(above / named for above in t.file.resolve().parents[:4])]
    folder = next((place for place in places if (place / INFO).is_file()), None)
    if folder is None:
        t.refuse(
            "dataset",
            f"there is no {Path(named) / INFO}, which says what these rows are",
            "give the command in LLaMA-Factory's folder, set dataset_dir to the folder with that file, or use `trnflow new DATA`",
        )
    known = _read_info(folder / INFO)
    for name in wanted:
        if not isinstance(known.get(name), dict):
            t.refuse("dataset", f"{folder / INFO} has no {name}", f"name one of {', '.join([*known][:5])}")
    return folder, [Rows(name, known[name]) for name in wanted]


INFO, FORMS = "dataset_info.json", ("alpaca", "sharegpt", "openai")


def _read_info(file: Path) -> Tree:
    with file.open("rb") as stream:
        data = stream.read(BYTES + 1)
    try:
        if len(data) > BYTES:
            raise ValueError(f"it has more than {BYTES:,} bytes")
        known = json.loads(data)
        if not isinstance(known, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} can't be read: {error}", "correct it") from error
    return known


def _source(t: Translation, rows: Rows, folder: Path) -> Tree:
    """Return the settings of a source."""
    entry = rows.entry
    source: Tree = {}
    if hub := entry.get("hf_hub_url"):
        source = {"source": hub, "splits": {"train": str(entry.get("split") or "train")}}
    elif file := entry.get("file_name"):
        source = {"source": str(folder / str(file))}
    else:
        where = next(
            (key for key in ("ms_hub_url", "om_hub_url", "script_url", "cloud_file_name") if key in entry), "nothing"
        )
        t.refuse(
            "dataset",
            f"{rows.name} is named by {where}, which trnflow does not read",
            "download its rows, and name the file",
        )
    if entry.get("subset"):
        source["name"] = str(entry["subset"])
    if entry.get("num_samples") or entry.get("folder"):
        t.notes.append(f"{rows.name}: num_samples and folder of {INFO} are not translated")
    return source


def _mixture(t: Translation, entries: list[Rows]) -> None:
    strategy, shares = str(t.values.get("mix_strategy") or "concat"), t.values.get("interleave_probs")
    if len(entries) == 1 or strategy == "concat":
        if "mix_strategy" in t.values:
            t.note("mix_strategy", strategy, "translated", "all rows of each source")
        return
    ways = {"interleave_under": "first_exhausted", "interleave_over": "all_exhausted"}
    if strategy not in ways:
        t.refuse("mix_strategy", f"trnflow has {', '.join(ways)} and concat")
    t.set("data.stopping_strategy", ways[strategy], "mix_strategy")
    weights = shares or [1.0] * len(entries)
    if len(weights) != len(entries):
        t.refuse("interleave_probs", f"it has {len(weights)} shares for {len(entries)} sources", "give each source one")
    for rows, weight in zip(entries, weights, strict=True):
        t.set(f"data.mix.{rows.label}.weight", weight, "interleave_probs" if shares else "mix_strategy")


def _form(t: Translation, entries: list[Rows]) -> None:
    """Write what rows become. Raises ConfigError where sources differ in it."""
    first = entries[0]
    for rows in entries:
        for name in ("images", "videos", "audios"):
            if rows.columns.get(name):
                t.refuse("dataset", f"{rows.name} has {name}, and {IMAGES}", "leave it out")
        # a recipe has one format for the rows of all sources
        alike = (rows.form, rows.columns, rows.tags, rows.is_ranked)
        if rows.form not in FORMS:
            t.refuse("dataset", f"{rows.name} has the formatting {rows.form}", f"LLaMA-Factory has {', '.join(FORMS)}")
        if alike != (first.form, first.columns, first.tags, first.is_ranked):
            fix = "translate them one by one, or give their rows the same columns"
            t.refuse("dataset", f"{first.name} and {rows.name} have other formats in {INFO}", fix)
    stage = str(t.values.get("stage") or "sft")
    if stage == "pt":
        t.set("format.task", "text", "stage")
        t.set("format.text", first.columns.get("prompt") or "text")
        t.notes.append(
            "stage: pt: a text begins with the tokenizer's first token (bos), if it has one; there many tokenizers give none"
        )
        if "template" in t.values:
            t.ignore("template", "texts are trained on as they are")
        return
    if stage == "sft":
        t.set("format.task", "chat", "stage")
        _chat(t, first)
    else:
        _pairs(t, first, stage)
    _template(t)
    if "train_on_prompt" in t.values:
        if t.values["train_on_prompt"]:
            t.lack("train_on_prompt", "answers alone are trained on; format.task=text trains on all of a column")
        else:
            t.note("train_on_prompt", False, "translated", f"format.task={t.get('format.task')}")
    if "mask_history" in t.values:
        t.set("format.turns", "last" if t.values["mask_history"] else "all", "mask_history")


def _chat(t: Translation, rows: Rows) -> None:
    if rows.form == "alpaca":
        # format.chat_template reads messages alone: a function makes them
        module = re.sub(r"\W", "_", t.name) + "_rows"
        # a name begins with no digit
        module = module if module.isidentifier() else "rows_" + re.sub(r"[^0-9A-Za-z_]", "_", t.name)
        t.functions[Path(f"{module}.py")] = _maker(rows.columns)
        t.set("format.make", f"{module}:make", why="as LLaMA-Factory writes rows of Alpaca's columns")
        return
    t.set("format.messages", rows.columns.get("messages") or "conversations", why=INFO)
    for name in ("system", "tools"):
        # a column that is not named is not read there
        t.set(f"format.{name}", rows.columns.get(name), why=INFO)
    if rows.columns.get("tools") and t.values.get("template") in TEMPLATES:
        t.notes.append(
            f"template {t.values['template']} is written without tools: rows with some need format.chat_template=tokenizer"
        )
    _tags(t, rows)


ROLE_TAGS = {
    "user_tag": "user", "assistant_tag": "assistant", "observation_tag": "tool", "function_tag": "assistant",
    "system_tag": "system",
}  # fmt: skip


def _tags(t: Translation, rows: Rows) -> None:
    for tag, meant in rows.tags.items():
        known = {"role_tag": ("from", "role"), "content_tag": ("value", "content")}.get(tag)
        fits = meant in known if known else SHAREGPT.get(meant, meant) == ROLE_TAGS.get(tag)
        if not fits:
            t.refuse("dataset", f"{rows.name} has {tag} {meant}, which trnflow does not read", "rename it in the rows")
    if rows.form == "openai":
        t.notes.append("formatting openai adds a system prompt, `detailed thinking off`, which is not translated")


def _maker(columns: dict[str, str]) -> str:
    """Return a module whose function makes messages of a row of Alpaca's columns."""
    taken = {name: columns.get(name) for name in ("prompt", "query", "response", "system", "history")}
    return f'''"""What LLaMA-Factory makes of a row of Alpaca's columns: a conversation."""

PROMPT, QUERY, RESPONSE = {taken["prompt"]!r}, {taken["query"]!r}, {taken["response"]!r}
SYSTEM, HISTORY = {taken["system"]!r}, {taken["history"]!r}


def make(row: dict) -> dict | None:
    """Return a row's messages: prompt and query are one turn of the user's. A row without answer is left out."""
    if not isinstance(row.get(RESPONSE), str):
        return None
    messages = [{{"role": "system", "content": row[SYSTEM]}}] if row.get(SYSTEM) else []
    for question, answer in row.get(HISTORY) or []:
        messages += [{{"role": "user", "content": question}}, {{"role": "assistant", "content": answer}}]
    asked = "\\n".join(row[name] for name in (PROMPT, QUERY) if row.get(name))
    return {{"messages": [*messages, {{"role": "user", "content": asked}}, {{"role": "assistant", "content": row[RESPONSE]}}]}}
'''


def _pairs(t: Translation, rows: Rows, stage: str) -> None:
    """Write rows with two answers, or with one that is marked."""
    if rows.form == "alpaca":
        fix = "give rows with formatting: sharegpt, whose conversations a chat template writes"
        t.refuse("dataset", f"{rows.name}'s answers are texts, which no chat template writes here", fix)
    messages = rows.columns.get("messages") or "conversations"
    if stage == "kto":
        t.set("format.task", "unpaired_preference", "stage")
        columns = {"completion": messages, "label": rows.columns.get("kto_tag") or "kto_tag"}
    else:
        if not rows.is_ranked:
            t.refuse(
                "dataset",
                f"{rows.name} has no `ranking: true` in {INFO}",
                "name rows with a chosen and a rejected answer",
            )
        t.set("format.task", "preference", "stage")
        columns = {"prompt": messages, **{name: rows.columns.get(name) or name for name in ("chosen", "rejected")}}
    t.set("data.columns", columns, why=INFO)
    _tags(t, rows)


def _template(t: Translation) -> None:
    name = t.values.get("template")
    if name in TEMPLATES:
        t.set("format.chat_template", TEMPLATES[name], "template")
        if "enable_thinking" in t.values:
            t.ignore("enable_thinking", f"{name} has no thinking")
        return
    t.set("format.chat_template", "tokenizer", why=f"there {name}" if name else "")
    if name:
        t.lack("template", "the tokenizer's own is used: write theirs as Jinja into format.chat_template")
    if "enable_thinking" in t.values:
        t.set("format.template_arguments", {"enable_thinking": t.values["enable_thinking"]}, "enable_thinking")


def _lengths(t: Translation) -> None:
    length = t.values.get("cutoff_len") or 2048
    t.set("tokenize.max_length", length, "cutoff_len", why=t.usual)
    stage, pairs = str(t.values.get("stage") or "sft"), bool(t.get("train.objective"))
    packing = t.values.get("packing")
    # pretraining packs there by default
    packs = stage == "pt" if packing is None else bool(packing)
    packs = (packs or bool(t.values.get("neat_packing"))) and not pairs
    why = "" if stage == "pt" else "there each turn is cut in proportion, here the end of the row"
    t.set("tokenize.overlong", "split" if packs and stage == "pt" else "truncate", why=why)
    strategy = ("concat" if stage == "pt" else "bfd") if packs else "pad"
    t.set("pack.strategy", strategy, "packing", "neat_packing", why=t.usual)
    if packing and stage == "sft" and not t.values.get("neat_packing"):
        t.notes.append(
            "packing: rows of a chunk do not attend to each other here, as with neat_packing; a chunk there is a token shorter"
        )
    if pairs:
        t.set("pack.chunk_length", 2 * length, why="both answers of a row")
    else:
        t.set("pack.chunk_length", length, "cutoff_len", why=t.usual)
    adding = [key for key in ("add_tokens", "add_special_tokens") if t.values.get(key)]
    if adding:
        t.set("tokenize.new_tokens", [token for key in adding for token in t.values[key]], *adding)


def _method(t: Translation) -> None:
    kind = str(t.values.get("finetuning_type") or "lora")
    if kind not in ("lora", "full"):
        t.refuse("finetuning_type", WEIGHTS)
    t.set("train.method", kind, "finetuning_type")
    whole_embedding = kind == "lora" and not t.values.get("additional_target")
    if t.values.get("resize_vocab") and not whole_embedding:
        t.ignore("resize_vocab", "embeddings grow for tokenize.new_tokens")
    if t.has("tokenize.new_tokens") and whole_embedding:
        t.notes.append(
            "new tokens: LLaMA-Factory trains all of the embedding and the head beside LoRA, and this recipe does not:"
            " train.lora.modules_to_save=[embed_tokens,lm_head] does"
        )
    if kind == "full":
        t.ignore_lora(KEYS, "finetuning_type is full")
        return
    t.set_read(KEYS, LORA)
    # alpha follows from the rank there
    rank = t.get("train.lora.rank") or 8
    alpha = t.values.get("lora_alpha")
    t.set("train.lora.rank", rank)
    if alpha:
        t.set("train.lora.alpha", alpha, "lora_alpha")
    else:
        t.set("train.lora.alpha", 2 * rank, why=f"{t.usual}: 2 x rank")
    modules = t.values.get("lora_target") or ["all"]
    t.set("train.lora.targets", "all-linear" if "all" in modules else modules, "lora_target", why=t.usual)
    if bits := t.values.get("quantization_bit"):
        if bits not in (4, 8):
            t.refuse("quantization_bit", "train.lora.base_dtype has nf4 (4 bits) and int8")
        t.set("train.lora.base_dtype", "nf4" if bits == 4 else "int8", "quantization_bit")
    if t.values.get("pissa_init"):
        _pissa(t)


def _pissa(t: Translation) -> None:
    times = t.values.get("pissa_iter", 16)
    near = times if times in (4, 16) else 16
    way = "pissa" if times == -1 else f"pissa_niter_{near}"
    t.set("train.lora.init_lora_weights", way, "pissa_init", "pissa_iter")
    if times not in (-1, near):
        t.lack("pissa_iter", f"train.lora.init_lora_weights has 4 and 16: {near} is written")


def _numbers(t: Translation) -> None:
    rows = t.values.get("per_device_train_batch_size") or 8
    set_batch(t, "per_device_train_batch_size", rows, t.values.get("gradient_accumulation_steps") or 1)
    set_steps(t)
    set_warmup(t, lambda share, total: math.ceil(total * share))
    if t.values.get("bf16") or t.values.get("pure_bf16"):
        t.set("train.dtype", "bfloat16", *(key for key in ("bf16", "pure_bf16") if t.values.get(key)))
    elif t.values.get("fp16"):
        t.set("train.dtype", "float16", "fp16")
    elif t.get("train.method") == "full":
        # all weights are cast to fp32 there; of LoRA the frozen ones keep the model's type, as the machine chooses it here
        t.default("train.dtype", "float32")
    set_rest(t)
