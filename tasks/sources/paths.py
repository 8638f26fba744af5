"""Interpret paths in recipes: join a relative path to the folder of the recipe file in which it was written, and read a
`file://` URL as a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SCHEMA = 1

Folders = Mapping[str, Path]
"""{dotted setting: the folder to which a relative path in its value is joined}."""
SERVERS = ("databricks", "databricks-uc", "uc")
"""Words that MLflow accepts as a tracking URI and that are not paths."""


def local_path(text: str) -> str | None:
    """Return the path that a text stands for: a path unchanged, or a `file://` URL without `file://`; None for any
    other URL."""
    path = text.removeprefix("file://")
    return None if "://" in path else path


def located(text: str, folder: Path) -> str:
    """Make a path absolute: join a relative path to `folder`, and replace `~` by the user's home. URLs are returned
    unchanged."""
    return text if "://" in text else str(folder / Path(text).expanduser())


def in_folder(text: str, folder: Path) -> str:
    """Return the words ` in <folder>`, for the end of an error message about the path `text`, which was joined to
    `folder`; "" if `text` is an absolute path."""
    return "" if Path(text).expanduser().is_absolute() else f" in {folder.absolute()}"


def located_database(uri: str, folder: Path) -> str:
    """Make the path in an MLflow URI (`sqlite:///file`, `file:folder` or a bare path) absolute. A relative path is
    joined to `folder`; URIs of servers are returned unchanged."""
    scheme, separator, path = uri.partition(":///")
    if scheme == "sqlite" and separator and path:
        return f"sqlite:///{folder / path}"
    if uri.startswith("file:") and not uri.startswith("file:/"):
        return (folder / uri.removeprefix("file:")).absolute().as_uri()
    return uri if ":" in uri or uri in SERVERS else located(uri, folder)
