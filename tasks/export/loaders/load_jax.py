"""Run this export on the CPU by jax. Needs: pip install jax safetensors"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jaxlib.xla_client import CompileOptions, DeviceList
from safetensors.flax import load_file

jax.config.update("jax_enable_x64", True)  # token ids are int64


def load(folder: str, length: int) -> Callable[..., Any]:
    """Return a function from input_ids and attention_mask, int64 arrays [batch, length], to logits."""
    graph = json.loads((Path(folder) / "export.json").read_text())["functions"][str(length)]
    stored = {name: array for file in Path(folder).glob("*.safetensors") for name, array in load_file(file).items()}
    cpu = jax.local_devices(backend="cpu")[0]
    bytecode = (Path(folder) / graph["bytecode"]).read_bytes()
    program = cpu.client.compile_and_load(bytecode, DeviceList((cpu,)), CompileOptions())

    def run(**inputs: Any) -> Any:
        given = [{**stored, **inputs}[item["name"]] for item in graph["arguments"]]
        results = program.execute_sharded([jax.device_put(array, cpu) for array in given])
        return results.disassemble_into_single_device_arrays()[0][0]

    return run
