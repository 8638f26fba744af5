"""Interpret paths in recipes: relative ones belong to the recipe's folder, a `file://` URL is a path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SCHEMA = 1

Folders = Mapping[str, Path]
"""{setting: folder to which a relative path in its value is joined}"""
SERVERS = ("databricks", "databricks-uc", "uc")
"""Tracking URIs of MLflow that are no paths."""


def local_path(text: str) -> str | None:
    """Return a path without `file://`; None for any other URL."""
    path = text.removeprefix("file://")
    return None if "://" in path else path


def located(text: str, folder: Path) -> str:
    """Return `text` as an absolute path; a URL unchanged."""
    return text if "://" in text else str(folder / Path(text).expanduser())


def in_folder(text: str, folder: Path) -> str:
    """Return ` in <folder>` for an error about a relative path, else ""."""
    return "" if Path(text).expanduser().is_absolute() else f" in {folder.absolute()}"


def located_database(uri: str, folder: Path) -> str:
    """Return an MLflow URI whose path (`sqlite:///file`, `file:folder` or bare) is absolute."""
    scheme, separator, path = uri.partition(":///")
    if scheme == "sqlite" and separator and path:
        return f"sqlite:///{folder / path}"
    if uri.startswith("file:") and not uri.startswith("file:/"):
        return (folder / uri.removeprefix("file:")).absolute().as_uri()
    return uri if ":" in uri or uri in SERVERS else located(uri, folder)
