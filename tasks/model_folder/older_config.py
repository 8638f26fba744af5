"""Add the keys that transformers 4.57 reads to a config that transformers 5 wrote.

4.57, and optimum-neuron, ignore `rope_parameters` without a warning, and would compute another model.
"""

from __future__ import annotations

from trnflow.tasks.artifact import Meta

THETA, SHARE = "rope_theta", "partial_rotary_factor"
SEPARATE = (THETA, SHARE)
"""Entries of `rope_parameters` that are keys of their own in 4.57; the others are in `rope_scaling`."""

NAMES: dict[str, dict[str, str]] = {
    "gpt_neox": {THETA: "rotary_emb_base", SHARE: "rotary_pct"},
    "gpt_neox_japanese": {THETA: "rotary_emb_base", SHARE: "rotary_pct"},
}
"""{model_type: {entry of `rope_parameters`: the family's own key in 4.57}}"""

BY_LAYER_TYPE: dict[str, dict[str, str]] = {
    "modernbert": {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"},
    "modernbert-decoder": {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"},
    "gemma3_text": {"full_attention": THETA, "sliding_attention": "rope_local_base_freq"},
    "gemma3n_text": {"full_attention": THETA, "sliding_attention": "rope_local_base_freq"},
    "olmo3": {"full_attention": THETA, "sliding_attention": THETA},
}
"""{model_type: {kind of layer: key of its base in 4.57}}, of families whose layers differ."""

UNSCALED = ("modernbert", "modernbert-decoder")

NESTED = "text_config"
"""Where a model that reads images too keeps the settings of its language model."""


def with_older_keys(config: Meta, settings: Meta) -> Meta:
    """Return `config.json` with the keys of 4.57. settings: with defaults."""
    extended = {**config, **older_keys(settings)}
    if isinstance(settings.get(NESTED), dict):
        extended[NESTED] = {**(config.get(NESTED) or {}), **older_keys(settings[NESTED])}
    return extended


def older_keys(config: Meta) -> Meta:
    """Return the entries that 4.57 needs, of settings with defaults; {} without rotary embeddings."""
    rope, family = config.get("rope_parameters") or {}, str(config["model_type"])
    if family in BY_LAYER_TYPE:
        scaling = {} if family in UNSCALED else _scaling(rope["full_attention"])
        return {**_bases(rope, family), **scaling, **_layer_pattern(config)}
    if not rope or any(isinstance(entry, dict) for entry in rope.values()):
        return {}
    names = NAMES.get(family, {})
    return {**{names.get(name, name): rope[name] for name in SEPARATE if rope.get(name) is not None}, **_scaling(rope)}


def _bases(rope: Meta, family: str) -> Meta:
    """Return {key of 4.57: base} of a family whose layers differ."""
    keys: Meta = {}
    for kind, key in BY_LAYER_TYPE[family].items():
        # 4.57 scales no sliding layers, and OLMo 3's kinds share a base: null stops it, in place of computing another
        # model
        scaled = bool(_scaling(rope[kind])) and (kind == "sliding_attention" or family in UNSCALED)
        other = key in keys and keys[key] != rope[kind][THETA]
        keys[key] = None if scaled or other else rope[kind][THETA]
    return keys


def _scaling(rope: Meta) -> Meta:
    """Return {"rope_scaling": ...} of one kind of layer; {} without scaling."""
    if rope.get("rope_type", "default") == "default":
        return {}
    # in transformers 5 it replaces rope_parameters, so it is written only with scaling, and whole
    return {"rope_scaling": {name: value for name, value in rope.items() if name not in SEPARATE}}


def _layer_pattern(config: Meta) -> Meta:
    """Return ModernBERT's `global_attn_every_n_layers`, of which version 5 writes a list."""
    kinds = config.get("layer_types") or []
    if config["model_type"] != "modernbert" or not kinds:
        return {}
    for every in range(1, len(kinds) + 1):
        if kinds == ["sliding_attention" if index % every else "full_attention" for index in range(len(kinds))]:
            return {"global_attn_every_n_layers": every}
    # 4.57 ignores the list, and knows equal distances alone; 0 stops it
    return {"global_attn_every_n_layers": 0}
