"""Write a text file at once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Replace the content of a text file, and make its folder: a reader, or a kill, finds the old text or the new one.

    Raises:
        OSError: The file can't be written; nothing is left of the attempt.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
