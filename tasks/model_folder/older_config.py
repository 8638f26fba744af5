"""Add the keys that transformers 4.57 reads to a config that transformers 5 wrote.

transformers 5 writes the settings of rotary position embeddings (RoPE) as `rope_parameters`. Version 4.57, and
optimum-neuron, which is built on it, ignore that key without a warning, and compute with the default base and no scaling.
They read keys whose names depend on the family of models.

In transformers 5 a `rope_scaling` in the file replaces `rope_parameters`. For that reason `rope_scaling` is written only
with scaling, and with all that version 5 needs beside `rope_theta`.
"""

from __future__ import annotations

from trnflow.tasks.artifact import Meta

THETA, SHARE = "rope_theta", "partial_rotary_factor"
SEPARATE = (THETA, SHARE)
"""The entries of `rope_parameters` that are keys of their own in version 4.57; the others are in `rope_scaling`."""

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
"""{model_type: {kind of layer: the key of its base in 4.57}}, of families whose layers differ. In 4.57 the scaling of the
other families is that of layers with full attention, and ModernBERT has none."""

UNSCALED = ("modernbert", "modernbert-decoder")

NESTED = "text_config"
"""The key under which a model that reads images too keeps the settings of its language model."""


def with_older_keys(config: Meta, settings: Meta) -> Meta:
    """Return the content of `config.json` with the keys added that transformers 4.57 reads. For a model that reads
    images too, add such keys also to its entry `text_config`, the settings of its language model.

    config: the content of `config.json` as transformers 5 writes it; settings: all settings of the model, defaults
    included."""
    found = {**config, **older_keys(settings)}
    if isinstance(settings.get(NESTED), dict):
        found[NESTED] = {**(config.get(NESTED) or {}), **older_keys(settings[NESTED])}
    return found


def older_keys(config: Meta) -> Meta:
    """Return {key: value} of the entries that transformers 4.57 needs in `config.json`; {} for a model without rotary
    embeddings.

    config: all settings of the model, defaults included, as transformers 5 names them."""
    rope, family = config.get("rope_parameters") or {}, str(config["model_type"])
    if family in BY_LAYER_TYPE:
        scaling = {} if family in UNSCALED else _scaling(rope["full_attention"])
        return {**_bases(rope, family), **scaling, **_layer_pattern(config)}
    if not rope or any(isinstance(entry, dict) for entry in rope.values()):
        return {}
    names = NAMES.get(family, {})
    return {**{names.get(name, name): rope[name] for name in SEPARATE if rope.get(name) is not None}, **_scaling(rope)}


def _bases(rope: Meta, family: str) -> Meta:
    """Return {key of 4.57: base} of a family whose layers differ.

    Version 4.57 scales no layers with a sliding window, and OLMo 3's two kinds of layers share one base. A base that it can't
    have is null, for which that version stops with an error, in place of computing another model."""
    keys: Meta = {}
    for kind, key in BY_LAYER_TYPE[family].items():
        scaled = bool(_scaling(rope[kind])) and (kind == "sliding_attention" or family in UNSCALED)
        other = key in keys and keys[key] != rope[kind][THETA]
        keys[key] = None if scaled or other else rope[kind][THETA]
    return keys


def _scaling(rope: Meta) -> Meta:
    """Return {"rope_scaling": ...} of one kind of layer; {} without scaling."""
    if rope.get("rope_type", "default") == "default":
        return {}
    return {"rope_scaling": {name: value for name, value in rope.items() if name not in SEPARATE}}


def _layer_pattern(config: Meta) -> Meta:
    """Return ModernBERT's `global_attn_every_n_layers`, which version 5 writes as a list, `layer_types`.

    Version 4.57 knows only layers with full attention at equal distances, and ignores the list. For other lists the number
    is 0, for which that version stops with an error, in place of computing another model."""
    kinds = config.get("layer_types") or []
    if config["model_type"] != "modernbert" or not kinds:
        return {}
    for every in range(1, len(kinds) + 1):
        if kinds == ["sliding_attention" if index % every else "full_attention" for index in range(len(kinds))]:
            return {"global_attn_every_n_layers": every}
    return {"global_attn_every_n_layers": 0}
