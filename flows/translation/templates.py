"""Chat templates that axolotl and LLaMA-Factory keep under names of their own (`templates.yaml`)."""

from __future__ import annotations

from pathlib import Path

import yaml

_TABLES: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
AXOLOTL: dict[str, str] = _TABLES["axolotl"]
LLAMA_FACTORY: dict[str, str] = _TABLES["llama_factory"]
PROMPTS: dict[str, str] = _TABLES["prompts"]
"""`type` of axolotl's data sets -> format.prompt_template."""
