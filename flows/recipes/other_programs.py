"""Know a config of axolotl or LLaMA-Factory by its keys."""

from __future__ import annotations

from typing import Any

AXOLOTL, LLAMA_FACTORY, LLAMA_FACTORY_V1 = "axolotl", "LLaMA-Factory", "LLaMA-Factory v1"
_DATA = ("datasets", "pretraining_dataset", "test_datasets", "rl")
_TASKS = ("stage", "finetuning_type", "template", "export_dir")
_V1 = ("train_dataset", "peft_config", "dist_config", "kernel_config")


def program_of(tree: Any) -> str:
    """Return the name of the program whose config a YAML file's value is, or ""."""
    if not isinstance(tree, dict):
        return ""
    if "base_model" in tree and any(name in tree for name in _DATA):
        return AXOLOTL
    if "model_name_or_path" in tree and any(name in tree for name in _TASKS):
        return LLAMA_FACTORY
    # a recipe's `model` is a section
    if isinstance(tree.get("model"), str) and any(name in tree for name in _V1):
        return LLAMA_FACTORY_V1
    return ""
