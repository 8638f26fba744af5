"""Write a language model as one GGUF file, which llama.cpp runs; equal models give equal bytes.

model.gguf       weights, tokenizer and chat template
Modelfile        how Ollama opens it
export.json      the file's name, and the type of its matrices
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.special_tokens import chat_templates
from trnflow.tasks.errors import ModelError
from trnflow.tasks.export.gguf_tokenizer import token_texts, write_tokenizer
from trnflow.tasks.export.ollama import write_modelfile
from trnflow.tasks.export.sampling import sampling_of, write_sampling
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import write_json

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel

FORMAT = "trnflow-gguf"
VERSION = 1
FILE = "model.gguf"
FIX = "set export.target to stablehlo, onnx or none"


class Family(NamedTuple):
    """How llama.cpp computes a `model_type`.

    Attributes:
        architecture: llama.cpp's name.
        pairs: Whether it rotates neighbouring numbers of a head, where transformers rotates halves.
        shift: Added to the weights of norms: Gemma's are stored less one.
        period: Of layers of which all but the last attend to a window; 0 without windows.
    """

    architecture: str
    pairs: bool = False
    shift: float = 0.0
    period: int = 0

    @property
    def activation(self) -> str:
        return "gelu_pytorch_tanh" if self.shift else "silu"


FAMILIES = {
    "llama": Family("llama", pairs=True),
    "mistral": Family("llama", pairs=True),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "gemma": Family("gemma", shift=1.0),
    "gemma2": Family("gemma2", shift=1.0, period=2),
    "gemma3_text": Family("gemma3", shift=1.0, period=6),
}
"""{transformers' `model_type`: family}."""

# layers of the models of 27 B, in which llama.cpp divides by another root than that of head_dim
_LARGE = {"gemma2": 46, "gemma3_text": 62}


def refuse_family(config: Meta) -> None:
    """Raise ModelError for a model that llama.cpp can't compute. config: of config.json, or what is known of it."""
    kind = str(config.get("model_type"))
    if (family := FAMILIES.get(kind)) is None:
        raise ModelError(
            f"export.target is gguf, which is written for {', '.join(FAMILIES)}; the model's type is {kind}", FIX
        )
    lacks = None
    scaling = _rope(config, "full_attention").get("rope_type") or "default"
    window, positions = config.get("sliding_window"), config.get("max_position_embeddings")
    activation = config.get("hidden_activation") or config.get("hidden_act") or family.activation
    if scaling not in ("default", "linear") and not (scaling == "llama3" and family.architecture == "llama"):
        lacks = f"positions scaled by {scaling}"
    elif window and positions and window < positions and not family.period and config.get("use_sliding_window", True):
        lacks = f"a window of {window} tokens"
    elif activation not in (family.activation, "gelu") or (activation == "gelu" and not family.shift):
        lacks = f"the activation {activation}"
    elif family.shift and config.get("tie_word_embeddings") is False:
        lacks = "an output layer of its own"
    elif family.period and _other_layers(config, family.period):
        lacks = f"windows in other layers than {family.period - 1} of {family.period}"
    elif (scale := config.get("query_pre_attn_scalar")) and scale != _divisor(config, kind):
        lacks = f"query_pre_attn_scalar {scale}"
    if lacks is not None:
        raise ModelError(f"export.target is gguf, and llama.cpp's {family.architecture} has not {lacks}", FIX)


def _divisor(config: Meta, kind: str) -> Any:
    if config.get("num_hidden_layers") == _LARGE.get(kind):
        return config["hidden_size"] // config["num_attention_heads"]
    return config.get("head_dim")


def _other_layers(config: Meta, period: int) -> bool:
    layers = config.get("layer_types") or []
    return any((layer == "full_attention") != (number % period == 0) for number, layer in enumerate(layers, 1))


def _rope(config: Meta, layers: str) -> Meta:
    """Return the parameters of positions in layers of a type."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found: Meta = rope.get(layers, {}) if {"full_attention", "sliding_attention"} & rope.keys() else rope
    return found


def refuse_task(task: str) -> None:
    """Raise ModelError for a task whose models give no next token."""
    if kind_of(task).per_row:
        raise ModelError(f"export.target is gguf, which is for language models, and the task is {task}", FIX)


def write_gguf(folder: Path, model: PreTrainedModel, weights: Path, kind: str) -> list[str]:
    """Write the model, and the tokenizer of the folder `weights`; return remarks. kind: f32, f16 or q8_0.

    Raises ModelError for what llama.cpp can't compute, a tokenizer that GGUF can't hold, weights beyond float16.
    """
    import torch

    # by name: an import statement would put its version into the keys of all exports; `GgufTarget` has it
    gguf, config = import_module("gguf"), model.config.get_text_config()
    refuse_family(config.to_dict())
    family = FAMILIES[config.model_type]
    writer = gguf.GGUFWriter(folder / FILE, family.architecture)
    _write_sizes(gguf, writer, config)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    stops = _listed(model.generation_config.eos_token_id)
    left = token_texts(weights, write_tokenizer(gguf, writer, weights, config.vocab_size, stops))
    if (template := chat_templates(weights).get("default")) is not None:
        writer.add_chat_template(template)
    sampling = sampling_of(model.generation_config)
    write_sampling(writer, sampling)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.architecture.upper()], config.num_hidden_layers)
    tensors = {
        names.get_name(name, (".weight", ".bias")): (name, value)
        for name, value in model.state_dict().items()
        if name != "lm_head.weight" or not config.tie_word_embeddings
    }
    if (factors := _position_factors(model)) is not None:
        tensors["rope_freqs.weight"] = ("", factors)
    types = {name: _stored_type(gguf, value, kind) for name, (_, value) in tensors.items()}
    for name, (_, value) in tensors.items():
        numbers, size = gguf.GGML_QUANT_SIZES[types[name]]
        writer.add_tensor_info(name, value.shape, torch.float32, value.numel() // numbers * size, types[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, (source, value) in tensors.items():
        array, stored = _as_computed(source, value, family, config).numpy(), types[name]
        if stored.name != "F32" and not abs(array).max() <= torch.finfo(torch.float16).max:
            raise ModelError(f"{source} has numbers beyond float16's range", "set export.gguf_type=f32")
        writer.write_tensor_data(gguf.quants.quantize(array, stored))
    writer.close()
    write_json(folder / "export.json", {"format": FORMAT, "version": VERSION, "file": FILE, "type": kind})
    remarks = [f"GGUF has places for three tokens that end a text, and none for {', '.join(left)}"] if left else []
    return [*remarks, *write_modelfile(folder, FILE, weights, token_texts(weights, stops), sampling)]


def _listed(value: int | list[int] | None) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _write_sizes(gguf: Any, writer: Any, config: PretrainedConfig) -> None:
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    document = config.to_dict()
    rope = _rope(document, "full_attention")
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if FAMILIES[config.model_type].period:
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_freq_base_swa(_rope(document, "sliding_attention")["rope_theta"])
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if cap := getattr(config, name, None):
                getattr(writer, f"add_{name}")(cap)


def _position_factors(model: PreTrainedModel) -> Tensor | None:
    """Return by what llama.cpp divides the frequencies of positions, None where it computes them itself."""
    import torch

    rope = _rope(model.config.to_dict(), "full_attention")
    if rope.get("rope_type") != "llama3":
        return None
    scaled: Tensor = model.get_decoder().rotary_emb.inv_freq.float()
    plain: Tensor = rope["rope_theta"] ** (-torch.arange(len(scaled), dtype=torch.float32) / len(scaled))
    return plain / scaled


def _stored_type(gguf: Any, value: Tensor, kind: str) -> Any:
    """Return the type of a tensor in the file: vectors stay float32, and rows that q8_0 can't divide become float16."""
    if value.dim() == 1:
        return gguf.GGMLQuantizationType.F32
    wanted = gguf.GGMLQuantizationType[kind.upper()]
    numbers, _ = gguf.GGML_QUANT_SIZES[wanted]
    return wanted if value.shape[-1] % numbers == 0 else gguf.GGMLQuantizationType.F16


def _as_computed(name: str, value: Tensor, family: Family, config: PretrainedConfig) -> Tensor:
    """Return a parameter as llama.cpp reads it, in float32. name: transformers'."""
    value = value.detach().float()
    if name.endswith("norm.weight"):
        return value + family.shift
    if family.pairs and ".self_attn.q_proj." in name:
        return _paired(value, config.num_attention_heads)
    if family.pairs and ".self_attn.k_proj." in name:
        return _paired(value, config.num_key_value_heads)
    return value


def _paired(value: Tensor, heads: int) -> Tensor:
    """Return the rows of each head in the order 0, n/2, 1, n/2 + 1, ..."""
    halves = value.reshape(heads, 2, -1, *value.shape[1:])
    return halves.swapaxes(1, 2).reshape(value.shape).contiguous()
