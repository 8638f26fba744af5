"""Write the README.md of a StableHLO export, for those who use it without trnflow. No date or path: it repeats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.model_folder.model_card import table
from trnflow.tasks.stage import read_json

if TYPE_CHECKING:
    from trnflow.tasks.metadata import ExportedMeta

SCRIPT = """\
import numpy as np
from {loader} import load

tokens = [{tokens}]  # of one text, by `tokenizer.json`, at most {length}
input_ids = np.full(({batch}, {length}), {padding}, dtype=np.int64)  # {padding}: the token that fills up a row
attention_mask = np.zeros(({batch}, {length}), dtype=np.int64)  # 1: a token of the text, 0: padding
input_ids[:, : len(tokens)] = tokens
attention_mask[:, : len(tokens)] = 1
run = load(".", {length})  # compiles the graph; `run` can be called often
logits = np.asarray(run(input_ids=input_ids, attention_mask=attention_mask))
print(logits.shape)
"""


def write_readme(folder: Path, meta: ExportedMeta) -> None:
    """Write `README.md` from `export.json`, `config.json` and the artifact's metadata."""
    document, config = read_json(folder / "export.json"), read_json(folder / "config.json")
    architecture = (config.get("architectures") or [config["model_type"]])[0]
    padding, labels = config.get("pad_token_id"), document.get("labels")
    parts = [
        f"# {architecture} as StableHLO",
        "The graphs of this model for static shapes, in MLIR bytecode, with its weights. They run on the CPU by jax or by IREE, "
        "without PyTorch and without trnflow, which made them.",
        f"## Graphs\n\n{_graphs(document)}",
        _inputs(document, meta),
        _how_to_run(document, 0 if padding is None else int(padding)),
        *([f"## Labels\n\n{table(('index', 'label'), enumerate(labels))}"] if labels else []),
        f"## Check\n\nOn {meta['rows_compared']} rows of random tokens with padding, the logits differ from those of PyTorch by "
        f"{meta['max_difference']:g} at most (torch_xla or jax, on a CPU).",
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _graphs(document: Meta) -> str:
    rows = [
        (
            length,
            function["bytecode"],
            function["stablehlo"],
            *(f"{output['dtype']} {output['shape']}" for output in function["outputs"][:1]),
        )
        for length, function in document["functions"].items()
    ]
    return table(("length", "file", "version", "logits"), rows)


def _inputs(document: Meta, meta: ExportedMeta) -> str:
    inputs = " and ".join(f"`{name}`" for name in document["inputs"])
    return (
        f"Each graph takes {inputs}, int64 of shape [{document['batch']}, length], and gives `logits` of "
        f"{'each row' if kind_of(meta['task']).per_row else 'each position'}, in {meta['dtype']}. A call has exactly "
        f"{document['batch']} rows: fill up a smaller batch, and ignore the logits of those rows. Of a row with fewer tokens "
        "than `length`, fill up the end, with 0 in `attention_mask`. `trnflow.json` says how texts were shaped in training, and "
        "`export.json` lists the arguments of each graph in order."
    )


def _how_to_run(document: Meta, padding: int) -> str:
    length = min(map(int, document["functions"]))
    values: Meta = {"batch": document["batch"], "length": length, "padding": padding}
    values["tokens"] = ", ".join([str(token) for token in range(1, 5) if token != padding][:length])
    script = SCRIPT.format(loader="load_jax", **values)
    return (
        "## Run\n\nIn this folder, after `pip install jax safetensors`:\n\n"
        f"```python\n{script}```\n\n"
        "By IREE the same with `from load_iree import load`, after `pip install iree-base-compiler iree-base-runtime safetensors "
        "ml-dtypes`."
    )
