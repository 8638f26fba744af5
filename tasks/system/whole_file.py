"""Write a text file so that readers find either its old or its new content, never a part."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Write `text` to a file as UTF-8, replacing its content, and create the file's folder if it is missing. A reader,
    also after a kill, finds the old text or the new one, never a part.

    Raises:
        OSError: The file can't be written; it then keeps its old content, and no other file is left.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
