"""The model families whose parameters and activations are known from their config's numbers alone, without torch.

For `trnflow plan`, which has no time to build a model. Names, shapes and tensor parallel plans are those of transformers'
own classes for bert, roberta, distilbert, llama, mistral, qwen2 and qwen3; the tests compare them with the real models.
Fields that a config leaves out have transformers' defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tasks.artifact import Meta
from tasks.training.plan import Shape
from tasks.training.rules import RULES

Shapes = dict[str, Shape]


@dataclass(frozen=True)
class Anatomy:
    """What the size of activations depends on. width: of the residual stream; heads, head: attention's, and each one's width;
    key_heads: those of keys and values; inner: the MLP's width; gated: the MLP multiplies two branches; head_norms: queries
    and keys are normalised; vocabulary: logits a token, 0 where a row has a few labels; causal: each position sees those before
    it; dropouts: of the residual stream, a layer; attention_dropout: of attention's weights."""

    layers: int
    width: int
    heads: int
    key_heads: int
    head: int
    inner: int
    vocabulary: int
    gated: bool = False
    head_norms: bool = False
    causal: bool = False
    dropouts: int = 0
    attention_dropout: bool = False


@dataclass(frozen=True)
class Family:
    """shapes: of the parameters, tied ones once; plan: module -> tensor parallel style."""

    shapes: Shapes
    plan: dict[str, str]
    anatomy: Anatomy


def family_of(fields: Mapping[str, Any], task: str, labels: int) -> Family | None:
    """fields: of the model's config; labels: of a classification. None where the family is not known."""
    kind = str(fields.get("model_type"))
    known = FAMILIES.get(kind)
    if known is None or fields.get("is_decoder") or (known is _as_bert and task != "classification"):
        return None
    given = {name: value for name, value in fields.items() if value is not None}
    return known(kind, {**DEFAULTS[kind], **given}, task, labels)


_BERT: Meta = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
_LLAMA: Meta = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
}
_QWEN: Meta = {**_LLAMA, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32}
DEFAULTS: dict[str, Meta] = {
    "bert": _BERT,
    "roberta": {**_BERT, "vocab_size": 50265},
    "distilbert": {
        "vocab_size": 30522,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "max_position_embeddings": 512,
    },
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
}
"""By `model_type`: what transformers fills in."""

LLAMA_PLAN = {
    "model.embed_tokens": "embedding_rowwise",
    **{f"model.layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"},
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.mlp.gate_proj": "colwise",
    "model.layers.*.mlp.up_proj": "colwise",
    "model.layers.*.mlp.down_proj": "rowwise",
    "lm_head": "colwise_gather_output",
}
"""transformers' own for llama, mistral and qwen2; qwen3's adds norms that stay whole."""


def _linear(name: str, inside: int, outside: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outside, inside), **({f"{name}.bias": (outside,)} if bias else {})}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _as_llama(kind: str, of: Meta, task: str, labels: int) -> Family:
    width, heads, inner, vocabulary = (
        int(of[name]) for name in ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    )
    key_heads, head = int(of.get("num_key_value_heads", heads)), int(of.get("head_dim", width // heads))
    biases = of["attention_bias"] and kind in ("llama", "qwen3")
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, width)}
    for number in range(int(of["num_hidden_layers"])):
        layer = f"model.layers.{number}"
        for name, outside in (("q", heads), ("k", key_heads), ("v", key_heads)):
            shapes |= _linear(f"{layer}.self_attn.{name}_proj", width, outside * head, biases or kind == "qwen2")
        shapes |= _linear(f"{layer}.self_attn.o_proj", heads * head, width, biases)
        if kind == "qwen3":
            shapes |= {f"{layer}.self_attn.{name}_norm.weight": (head,) for name in "qk"}
        for name in ("gate", "up"):
            shapes |= _linear(f"{layer}.mlp.{name}_proj", width, inner, of["mlp_bias"] and kind == "llama")
        shapes |= _linear(f"{layer}.mlp.down_proj", inner, width, of["mlp_bias"] and kind == "llama")
        shapes |= {f"{layer}.{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
    shapes["model.norm.weight"] = (width,)
    speaks = task != "classification"
    if not speaks:
        shapes["score.weight"] = (labels, width)
    elif not of["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, width)
    anatomy = Anatomy(
        layers=int(of["num_hidden_layers"]),
        width=width,
        heads=heads,
        key_heads=key_heads,
        head=head,
        inner=inner,
        vocabulary=vocabulary if speaks else 0,
        gated=True,
        head_norms=kind == "qwen3",
        causal=True,
        attention_dropout=of["attention_dropout"] > 0,
    )
    return Family(shapes, LLAMA_PLAN, anatomy)


def _as_bert(kind: str, of: Meta, task: str, labels: int) -> Family:
    width, inner = int(of["hidden_size"]), int(of["intermediate_size"])
    shapes = {
        f"{kind}.embeddings.word_embeddings.weight": (int(of["vocab_size"]), width),
        f"{kind}.embeddings.position_embeddings.weight": (int(of["max_position_embeddings"]), width),
        f"{kind}.embeddings.token_type_embeddings.weight": (int(of["type_vocab_size"]), width),
        **_norm(f"{kind}.embeddings.LayerNorm", width),
    }
    for number in range(int(of["num_hidden_layers"])):
        layer = f"{kind}.encoder.layer.{number}"
        for name in ("query", "key", "value"):
            shapes |= _linear(f"{layer}.attention.self.{name}", width, width)
        shapes |= _linear(f"{layer}.attention.output.dense", width, width)
        shapes |= _norm(f"{layer}.attention.output.LayerNorm", width)
        shapes |= _linear(f"{layer}.intermediate.dense", width, inner)
        shapes |= _linear(f"{layer}.output.dense", inner, width) | _norm(f"{layer}.output.LayerNorm", width)
    if kind == "bert":
        shapes |= _linear("bert.pooler.dense", width, width) | _linear("classifier", width, labels)
    else:
        shapes |= _linear("classifier.dense", width, width) | _linear("classifier.out_proj", width, labels)
    heads = int(of["num_attention_heads"])
    dropouts = 2 if of["hidden_dropout_prob"] > 0 else 0
    anatomy = _encoder(int(of["num_hidden_layers"]), width, heads, inner)
    noisy = replace(anatomy, dropouts=dropouts, attention_dropout=of["attention_probs_dropout_prob"] > 0)
    return Family(shapes, RULES[kind], noisy)


def _encoder(layers: int, width: int, heads: int, inner: int) -> Anatomy:
    """That classifies rows, and sees both ways."""
    return Anatomy(layers, width, heads, key_heads=heads, head=width // heads, inner=inner, vocabulary=0)


_DISTILLED = (("num_hidden_layers", "n_layers"), ("num_attention_heads", "n_heads"))  # either may be given


def _as_distilbert(kind: str, of: Meta, task: str, labels: int) -> Family | None:
    if task != "classification":
        return None
    layers, heads = (int(of[long] if long in of else of[short]) for long, short in _DISTILLED)
    width, inner = int(of["hidden_size"] if "hidden_size" in of else of["dim"]), int(of["hidden_dim"])
    shapes = {
        "distilbert.embeddings.word_embeddings.weight": (int(of["vocab_size"]), width),
        "distilbert.embeddings.position_embeddings.weight": (int(of["max_position_embeddings"]), width),
        **_norm("distilbert.embeddings.LayerNorm", width),
    }
    for number in range(layers):
        layer = f"distilbert.transformer.layer.{number}"
        for name in ("q_lin", "k_lin", "v_lin", "out_lin"):
            shapes |= _linear(f"{layer}.attention.{name}", width, width)
        shapes |= _norm(f"{layer}.sa_layer_norm", width) | _linear(f"{layer}.ffn.lin1", width, inner)
        shapes |= _linear(f"{layer}.ffn.lin2", inner, width) | _norm(f"{layer}.output_layer_norm", width)
    shapes |= _linear("pre_classifier", width, width) | _linear("classifier", width, labels)
    anatomy = _encoder(layers, width, heads, inner)
    noisy = replace(anatomy, dropouts=1 if of["dropout"] > 0 else 0, attention_dropout=of["attention_dropout"] > 0)
    return Family(shapes, RULES[kind], noisy)


FAMILIES: dict[str, Callable[[str, Meta, str, int], Family | None]] = {
    "bert": _as_bert,
    "roberta": _as_bert,
    "distilbert": _as_distilbert,
    "llama": _as_llama,
    "mistral": _as_llama,
    "qwen2": _as_llama,
    "qwen3": _as_llama,
}
"""By `model_type`."""
