"""Replace in facts what differs from run to run of one commit: times, ids, hosts, paths, measured figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

MEASURED = re.compile(
    r"(^|[._/])(seconds|dollars|began|created|ended|started|eta|mfu)$|_seconds$|_dollars$|_per_second$|_per_step$|memory_bytes$|"
    r"^runtime$|^total$|^device_bytes$|^latency|_ms$|compiled_graphs$|^checkpoint"
)
"""Names of values that are measured: they keep their type alone. `runtime` and `total` are of the memory estimate, which
counts what the process itself holds."""
STEP = re.compile(r" \d+$")
"""The step after the name of a point of MLflow's curves."""
DROPPED = {"host", "link_files", "git.commit", "git.dirty", "pid", "mlflow.parentRunId", "trnflow.champion_series"}
KEY = r"(?<!sha256:)\b[0-9a-f]{64}\b"
PATTERNS = (
    (r"\d{8}T\d{6}Z-[0-9a-f]{6}", "<run>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "<time>"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>"),
    (r"\bm-[0-9a-f]{32}\b|(?<!:)\b[0-9a-f]{32}\b", "<id>"),
    (r"\b[0-9a-f]{40}\b", "<commit>"),
    (r"127\.0\.0\.1:\d+", "<server>"),
    (r"\bpid \d+|process \d+", "<process>"),
    (r"\b\d+:\d\d(:\d\d)?\b|\b\d+(\.\d+)? ?(s|ms|min)\b|\$\d+(\.\d+)?", "<figure>"),
)


def normal(value: Any, folders: dict[Path, str], *, keys: bool, name: str = "") -> Any:
    """Return a JSON value without what varies.

    Args:
        value: The value.
        folders: What stands for each folder of this run in texts.
        keys: Whether keys of stages are kept.
        name: The name under which the value stands.
    """
    if isinstance(value, dict):
        named = {plain(str(key), folders, keys=keys): (key, one) for key, one in value.items() if key not in DROPPED}
        figures = name == "figures"
        return {
            text: type(one).__name__ if figures else normal(one, folders, keys=keys, name=str(key))
            for text, (key, one) in sorted(named.items())
        }
    if isinstance(value, list):
        return [normal(one, folders, keys=keys, name=name) for one in value]
    is_measured = MEASURED.search(STEP.sub("", name)) is not None
    if isinstance(value, int | float) and not isinstance(value, bool) and is_measured:
        return "number"
    if isinstance(value, str):
        return "text" if is_measured else plain(value, folders, keys=keys)
    return value


def plain(text: str, folders: dict[Path, str], *, keys: bool) -> str:
    for folder, stands_for in folders.items():
        text = text.replace(str(folder), stands_for)
    for pattern, stands_for in PATTERNS if keys else ((KEY, "<key>"), *PATTERNS):
        text = re.sub(pattern, stands_for, text)
    return text


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Return a line for each place at which two JSON values differ: its path and both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = [f"{path}.{key}: only in base" for key in sorted(before.keys() - after.keys())]
        found += [f"{path}.{key}: only in head" for key in sorted(after.keys() - before.keys())]
        both = sorted(before.keys() & after.keys())
        return found + [line for key in both for line in differences(before[key], after[key], f"{path}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [line for n, (old, new) in pairs for line in differences(old, new, f"{path}[{n}]")]
    return [] if before == after else [f"{path}: {short(before)} -> {short(after)}"]


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"
