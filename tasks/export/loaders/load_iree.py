"""Run this export on the CPU by IREE. Needs: pip install iree-base-compiler iree-base-runtime safetensors ml-dtypes"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from iree import compiler, runtime
from safetensors.numpy import load_file


def load(folder: str, length: int) -> Callable[..., Any]:
    """Return a function from input_ids and attention_mask, int64 arrays [batch, length], to logits."""
    graph = json.loads((Path(folder) / "export.json").read_text())["functions"][str(length)]
    config, bytecode = runtime.Config("local-task"), str(Path(folder) / graph["bytecode"])
    options = {"target_backends": ["llvm-cpu"], "extra_args": ["--iree-llvmcpu-target-cpu=host"]}
    program = compiler.compile_file(bytecode, input_type="stablehlo", **options)
    main = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, program), config)["main"]
    files = [load_file(file) for file in Path(folder).glob("*.safetensors")]
    stored = {name: runtime.asdevicearray(config.device, item) for file in files for name, item in file.items()}

    def run(**inputs: Any) -> Any:
        return main(*[{**stored, **inputs}[item["name"]] for item in graph["arguments"]]).to_host()

    return run
