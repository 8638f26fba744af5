"""The file of results that every program of `gpu` adds to: a JSON object a line, written as each way ends."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CPU = "cpu"
QUIET = {"USE_TORCH_XLA": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Environment variables of all that is measured."""


class Results:
    """Adds lines to a file, and prints them.

    Keys of a line: item, case, way; device, torch, transformers; rate and unit, or failed: why; perhaps mfu, memory (bytes at
    most), loss, seconds (of an update), reference_seconds (of an update's pairs), rows, wall (seconds of all).
    """

    def __init__(self, file: Path, item: str, device: str) -> None:
        self._file, self._same = file, {"item": item, "device": device_name(device)}
        self._same |= {name: _version(name) for name in ("torch", "transformers")}

    def add(self, case: str, way: str, **figures: Any) -> None:
        with self._file.open("a") as lines:
            lines.write(json.dumps({**self._same, "case": case, "way": way, **figures}) + "\n")
        print(f"{case:<12} {way:<30} {described(figures)}", flush=True)


def described(figures: dict[str, Any]) -> str:
    """Return a line's figures as a text."""
    if "failed" in figures:
        return f"failed: {figures['failed']}"
    texts = []
    if "rate" in figures:
        texts.append(f"{figures['rate']:{',.0f' if figures['rate'] >= 1000 else '.4g'}} {figures['unit']}")
    if "reference_seconds" in figures:
        whole = figures["rate"] * figures["seconds"] / (figures["seconds"] + figures["reference_seconds"])
        texts.append(f"{whole:.4g} with its reference")
    texts += [f"MFU {figures['mfu']:.3f}"] if "mfu" in figures else []
    texts += [f"{figures['memory'] / 2**30:.1f} GiB"] if figures.get("memory") else []
    texts += [f"loss {figures['loss']:.4f}"] if "loss" in figures else []
    return ", ".join(texts)


def device_name(device: str) -> str:
    """Return the name of the GPU as its driver says it, or "cpu"."""
    from trnflow.tasks.system.gpus import by_nvml, by_smi

    driver = (by_nvml() or by_smi()) if device != CPU else None
    return driver.gpus[0].name if driver and driver.gpus else device


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def add_options(parser: argparse.ArgumentParser, cases: list[str], ways: list[str] | None) -> None:
    """Add the options that `gpu` gives to every program. cases, ways: the default."""
    parser.add_argument("--cases", type=lambda text: text.split(","), default=cases)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=ways)
    parser.add_argument("--item", default="", help="as which the results are written down")
    parser.add_argument("--results", type=Path, help="the file that results are added to")
    parser.add_argument("--work", type=Path, help="the folder where models are kept")
    parser.add_argument("--data", type=Path, default=Path(".whl"), help="the folder of emotion.npz")
    parser.add_argument("--toy", action="store_true", help="small models, on the processor")


@contextmanager
def results_of(arguments: argparse.Namespace) -> Iterator[Results]:
    """Give the results that the options name; where they name no folder, one that is removed afterwards."""
    with tempfile.TemporaryDirectory() as name:
        arguments.work = arguments.work or Path(name)
        file = arguments.results or Path(name) / "results.jsonl"
        yield Results(file, arguments.item, CPU if arguments.toy else "cuda")
