"""The config class of the stage export_neuron."""

from __future__ import annotations

from typing import Annotated, Literal

from trnflow.tasks.config import NOT_KEYED, RUNS_CODE, BatchRows, Parallel, Positive, StageConfig, Tokens


class ExportConfig(StageConfig):
    """Settings of `export_neuron`, which compiles or exports the trained model for inference."""

    target: Literal["stablehlo", "onnx", "gguf", "neuron", "none"] = "stablehlo"
    """The result: `stablehlo` (a portable graph for each length), `onnx` (one graph for any number of rows and tokens;
    needs the extra `onnx`), `gguf` (a language model as one file for llama.cpp; needs the extra `gguf`),
    `neuron` (compiled for NeuronCores; needs optimum-neuron), or `none`: the stage is left out, and the evaluation
    judges the weights alone."""
    gguf_type: Literal["f32", "f16", "q8_0"] = "f16"
    """The type of the matrices in a GGUF file: `q8_0` takes 8.5 bits a number."""
    batch: BatchRows = 1
    """The rows of each call of the exported model (of an ONNX model: of the calls that are compared)."""
    length: Tokens | None = None
    """The only sequence length to export. Default: every length that the data was packed to."""
    tolerance: Positive | None = None
    """The largest accepted difference between the exported model's logits and PyTorch's, relative to the largest
    logit where that is above 1. Default: 1e-3 for float32 weights and ONNX, 2e-2 for float16, 1e-1 for bfloat16."""
    cores: Parallel = 2
    """The NeuronCores that share a language model (target `neuron`)."""
    auto_cast: Literal["none", "matmul", "all"] = "matmul"
    """Which operations the Neuron compiler casts to `auto_cast_type` (target `neuron`)."""
    auto_cast_type: Literal["bf16", "fp16"] = "bf16"
    """The type that the Neuron compiler casts to (target `neuron`)."""
    instance_type: Literal["inf2", "trn1", "trn1n", "trn2"] | None = None
    """The instance family to compile for (target `neuron`). Default: the compiler's choice."""
    neuron_python: Annotated[str | None, NOT_KEYED, RUNS_CODE] = None
    """The Python interpreter of an environment with optimum-neuron (target `neuron`). Default: this one."""
