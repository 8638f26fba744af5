"""Write and run a model as ONNX: one graph for any number of rows and tokens; equal models give equal bytes.

model.onnx       the graph, in float32, with its weights (in model.onnx.data where they take more than 1 GiB)
export.json      the inputs, and the lengths that were compared with PyTorch
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.export.examples import example
from trnflow.tasks.export.lowering import experts_of_one_shape, logits_of
from trnflow.tasks.stage import write_json
from trnflow.tasks.system.devices import cores

if TYPE_CHECKING:
    from onnx_ir import Model
    from transformers import PreTrainedModel

FORMAT = "trnflow-onnx"
VERSION = 1
FILE = "model.onnx"
WITHIN = 1 << 30
"""Most bytes of weights within the graph's file; protobuf takes less than 2 GiB."""
DIMENSIONS = ("batch", "length")


def write_onnx(folder: Path, model: PreTrainedModel, about: Meta) -> None:
    """Write the model, which becomes float32 in place: few of onnxruntime's CPU kernels take half precision.

    about: Further entries of export.json, with `inputs` and `lengths`. Raises ModelError when the model can't be written.
    """
    model.float()
    dynamic = dict.fromkeys(range(len(DIMENSIONS)), torch.export.Dim.DYNAMIC)
    # of one row or token, a dimension would be fixed
    inputs = example(model, 2, max(about["lengths"][-1], 2))
    try:
        with torch.no_grad(), experts_of_one_shape(model):
            written = torch.onnx.export(
                logits_of(model), inputs, dynamo=True, dynamic_shapes=(dynamic,) * len(inputs), verbose=False,
                input_names=about["inputs"], output_names=["logits"],
            )  # fmt: skip
    except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        why = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ModelError(
            f"{type(model).__name__} can't be written as ONNX: {why}",
            "set export.target to stablehlo or none, or report the model type",
        ) from error
    assert written is not None
    _clean(written.model)
    size = sum(value.const_value.nbytes for value in written.model.graph.initializers.values())
    written.save(folder / FILE, external_data=size > WITHIN)
    opset = written.model.opset_imports[""]
    document = {"format": FORMAT, "version": VERSION, "file": FILE, "opset": opset, **about}
    write_json(folder / "export.json", document)


def _clean(model: Model) -> None:
    """Name the free dimensions, and drop what torch says of itself: stack traces with this machine's paths."""
    # imported by name: an import statement would put versions into the keys of all exports; `OnnxTarget` has them
    new_shape = import_module("onnx_ir").Shape
    import_module("onnx_ir.passes.common").ClearMetadataAndDocStringPass()(model)
    (logits,) = model.graph.outputs
    shape = [*logits.shape]
    for graph in (model.graph, *model.functions.values()):
        for node in graph:
            for value in node.outputs:
                value.shape = None  # of free dimensions that the trace numbers
                value.metadata_props.clear()
    for value in (*model.graph.inputs, logits, *model.graph.initializers.values()):
        value.metadata_props.clear()
    for value in model.graph.inputs:
        value.shape = new_shape(DIMENSIONS)
    logits.shape = new_shape((*DIMENSIONS[: len(shape) - 1], shape[-1]))


class OnnxProgram:
    """An ONNX export, run by onnxruntime on the CPU. See `ExportedProgram`."""

    fixed = False
    compiles_once = True

    def __init__(self, folder: Path, document: Meta) -> None:
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            raise ModelError(
                f"{folder} holds no ONNX export that this version reads (format {FORMAT} {VERSION})",
                "export again with export.target=onnx",
            )
        self.batch = int(document["batch"])
        self.lengths = sorted(document["lengths"])
        self._file, self.inputs = folder / document["file"], document["inputs"]
        self._session: Any = None

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        if self._session is None:
            onnxruntime = import_module("onnxruntime")
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = cores()
            options.log_severity_level = 3  # errors
            self._session = onnxruntime.InferenceSession(self._file, options, providers=["CPUExecutionProvider"])
        given = {name: column.numpy() for name, column in zip(self.inputs, inputs, strict=True)}
        return torch.from_numpy(self._session.run(["logits"], given)[0])
