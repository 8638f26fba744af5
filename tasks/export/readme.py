"""Write the README.md of an export, for those who use it without trnflow. No date or path: it repeats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.model_folder.model_card import table
from trnflow.tasks.stage import read_json
from trnflow.tasks.training.model.pretrained import TOKEN_TYPES

if TYPE_CHECKING:
    from trnflow.tasks.metadata import ExportedMeta

SCRIPT = """\
import numpy as np
{imports}

tokens = [{tokens}]  # of one text, by `tokenizer.json`, at most {longest}
input_ids = np.full(({batch}, {length}), {padding}, dtype=np.int64)  # {padding}: the token that fills up a row
attention_mask = np.zeros(({batch}, {length}), dtype=np.int64)  # 1: a token of the text, 0: padding
input_ids[:, : len(tokens)] = tokens
attention_mask[:, : len(tokens)] = 1
{types}{run}
print(logits.shape)
"""
TYPES = """\
token_type_ids = np.zeros(({batch}, {length}), dtype=np.int64)  # of two texts, 1 from the second one's first token on
"""
MEANING = {
    "single_label_classification": "Their softmax is the probability of each label.",
    "multi_label_classification": "The sigmoid of each is the score of its label.",
    "regression": "They are the numbers that the model predicts.",
}
"""{`Kind.problem_type`: what a program makes of the logits}."""
IN_A_DICT = '"{name}": {name}'


def write_readme(folder: Path, meta: ExportedMeta) -> None:
    """Write `README.md` from `export.json`, `config.json` and the artifact's metadata."""
    document, config = read_json(folder / "export.json"), read_json(folder / "config.json")
    architecture = (config.get("architectures") or [config["model_type"]])[0]
    padding, labels = int(config.get("pad_token_id") or 0), document.get("labels")
    parts = _onnx(document, meta, architecture, padding) if "file" in document else []
    parts = parts or _stablehlo(document, meta, architecture, padding)
    if meaning := _meaning(folder, meta):
        parts.append(f"## Logits\n\n{meaning}")
    if labels and not kind_of(meta["task"]).apart:  # whose target is no output
        parts.append(f"## Labels\n\n{table(('index', 'label'), enumerate(labels))}")
    parts.append(
        f"## Check\n\nOn {meta['rows_compared']} rows of random tokens with padding, the logits differ from those of PyTorch by "
        f"{meta['max_difference']:g} at most ({'onnxruntime' if 'file' in document else 'torch_xla or jax'}, on a CPU)."
    )
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _meaning(folder: Path, meta: ExportedMeta) -> str:
    kind, file = kind_of(meta["task"]), folder / ROW_FORMAT_FILE
    decision = (read_json(file) if file.exists() else {}).get("decision") or {}
    meaning = "They are a text's vector." if kind.apart else MEANING.get(kind.problem_type or "", "")
    return f"{meaning} {kind.said_of(decision)}".strip()


def _onnx(document: Meta, meta: ExportedMeta, architecture: str, padding: int) -> list[str]:
    script = _script(
        document, padding, min(document["lengths"]), max(document["lengths"]), "import onnxruntime",
        f"session = onnxruntime.InferenceSession(\"{document['file']}\")\n"
        f'logits = session.run(["logits"], {{{_given(document, IN_A_DICT)}}})[0]',
    )  # fmt: skip
    return [
        f"# {architecture} as ONNX",
        f"The graph of this model with its weights, opset {document['opset']}. It runs by onnxruntime and other programs that "
        "read ONNX, without PyTorch and without trnflow, which made it.",
        f"`{document['file']}` takes {_names(document)}, int64 of shape [rows, tokens], any number of both up to "
        f"{max(document['lengths'])} tokens, and gives `logits` of {_what(meta)}, in float32. Of a row with fewer tokens than "
        "the longest, fill up the end, with 0 in `attention_mask`. `trnflow.json` says how texts were shaped in training.",
        f"## Run\n\nIn this folder, after `pip install onnxruntime`:\n\n```python\n{script}```",
    ]


def _stablehlo(document: Meta, meta: ExportedMeta, architecture: str, padding: int) -> list[str]:
    return [
        f"# {architecture} as StableHLO",
        "The graphs of this model for static shapes, in MLIR bytecode, with its weights. They run on the CPU by jax or by IREE, "
        "without PyTorch and without trnflow, which made them.",
        f"## Graphs\n\n{_graphs(document)}",
        _inputs(document, meta),
        _how_to_run(document, padding),
    ]


def _names(document: Meta) -> str:
    return " and ".join(f"`{name}`" for name in document["inputs"]).replace(" and ", ", ", len(document["inputs"]) - 2)


def _given(document: Meta, form: str) -> str:
    """Return the arguments of a call. form: of each, by its name."""
    return ", ".join(form.format(name=name) for name in document["inputs"])


def _what(meta: ExportedMeta) -> str:
    return "each position" if kind_of(meta["task"]).per_position else "each row"


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
    return (
        f"Each graph takes {_names(document)}, int64 of shape [{document['batch']}, length], and gives `logits` of "
        f"{_what(meta)}, in {meta['dtype']}. A call has exactly "
        f"{document['batch']} rows: fill up a smaller batch, and ignore the logits of those rows. Of a row with fewer tokens "
        "than `length`, fill up the end, with 0 in `attention_mask`. `trnflow.json` says how texts were shaped in training, and "
        "`export.json` lists the arguments of each graph in order."
    )


def _how_to_run(document: Meta, padding: int) -> str:
    length = min(map(int, document["functions"]))
    script = _script(
        document, padding, length, length, "from load_jax import load",
        f'run = load(".", {length})  # compiles the graph; `run` can be called often\n'
        f"logits = np.asarray(run({_given(document, '{name}={name}')}))",
    )  # fmt: skip
    return (
        "## Run\n\nIn this folder, after `pip install jax safetensors`:\n\n"
        f"```python\n{script}```\n\n"
        "By IREE the same with `from load_iree import load`, after `pip install iree-base-compiler iree-base-runtime safetensors "
        "ml-dtypes`."
    )


def _script(document: Meta, padding: int, length: int, longest: int, imports: str, run: str) -> str:
    tokens = ", ".join([str(token) for token in range(1, 5) if token != padding][:length])
    shape = {"batch": document["batch"], "length": length}
    return SCRIPT.format(
        types=TYPES.format(**shape) if TOKEN_TYPES in document["inputs"] else "",
        imports=imports,
        tokens=tokens,
        longest=longest,
        padding=padding,
        **shape,
        run=run,
    )
