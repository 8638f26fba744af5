"""Processor seconds of evaluate_model for a small classifier whose export has several lengths.

    python -m tests.bench.bench_evaluation [--rows 48] [--lengths 4]

As a run's stage: a process that was forked after its imports. Without jax, torch_xla compiles the export at each call.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from tests.helpers import small_models
from tests.helpers.data_stages import new_bench
from trnflow.tasks.artifact import Input
from trnflow.tasks.launch.warm_parents import modules_for
from trnflow.tasks.stage import Workdir, read_json
from trnflow.tasks.system.model_process import model_environ

LONGEST = 32
LIBRARIES = ("numpy", "torch", "torch-xla", "transformers", "scikit-learn", "matplotlib")


def main() -> None:
    """Make rows, a model and its export, and print what evaluating them takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("rows", 48), ("lengths", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    os.environ.update(model_environ())
    for module in modules_for(LIBRARIES, os.environ):
        import_module(module)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _in_fork(lambda: _make(folder, options.rows, options.lengths))
        for what, export_rows in (("compared by default", None), ("not compared", 0)):
            out = folder / what
            seconds = _in_fork(lambda out=out, rows=export_rows: _evaluate(folder, out, rows))  # type: ignore[misc]
            export = read_json(out / "report.json")["export"]
            calls = f"{export.get('calls', 0)} calls of the lengths {export.get('lengths', [])}"
            print(f"export {what}, {calls}: {seconds:.2f} s of processor time")


def _in_fork(work: Callable[[], None]) -> float:
    """Call `work` in a forked process, and return its seconds of processor time."""
    begun = os.times()
    if not os.fork():
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.wait()[1] == 0
    ended = os.times()
    return ended.children_user + ended.children_system - begun.children_user - begun.children_system


def _make(folder: Path, count: int, lengths: int) -> None:
    from trnflow.tasks.export.config import ExportConfig
    from trnflow.tasks.export_neuron import export_neuron

    (folder / "rows").mkdir()
    words = small_models.WORDS
    for split in ("train", "test"):
        texts = [
            " ".join(words[(n + m) % len(words)] for m in range(1 + n * (LONGEST - 3) // count)) for n in range(count)
        ]
        lines = (json.dumps({"text": text, "label": small_models.LABELS[n % 3]}) for n, text in enumerate(texts))
        (folder / f"rows/{split}.jsonl").write_text("\n".join(lines))
    bench, weights = new_bench(folder), small_models.bert(folder / "bert")
    sizes = [LONGEST * (n + 1) // lengths for n in range(lengths)]
    weights = replace(weights, meta={**weights.meta, "lengths": sizes})
    rows = bench.texts(bench.rows(source=str(folder / "rows"), text="text", label="label"), task="classification")
    tokenizer = {"tokenizer": str(weights.path), "config": {"model_type": "bert"}}
    packed = bench.packed(
        bench.tokens(rows, tokenizer, max_length=LONGEST), strategy="bucket", lengths=sizes, chunk_length=LONGEST
    )
    exported = bench.made(export_neuron, ExportConfig(batch=8), weights=weights)
    made = {"texts": rows, "packed": packed, "weights": weights, "exported": exported}
    about = {name: [str(one.path), one.kind, one.meta, one.digest] for name, one in made.items()}
    (folder / "inputs.json").write_text(json.dumps(about))


def _evaluate(folder: Path, out: Path, export_rows: int | None) -> None:
    from trnflow.tasks.evaluate_model import EvaluateConfig, evaluate_model

    stored = read_json(folder / "inputs.json")
    inputs: dict[str, Input] = {name: Input(Path(path), *more) for name, (path, *more) in stored.items()}
    out.mkdir()
    evaluate_model(
        EvaluateConfig(export_rows=export_rows), **inputs, out=Workdir(out, out / "scratch", lambda event: None)
    )


if __name__ == "__main__":
    main()
