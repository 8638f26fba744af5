"""Write a text file whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Replace a file's content, creating its folder: readers find the old or the new content. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
