"""Write a text file whole: readers find its old or its new content, never a part."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Replace a file's content, creating its folder. After an OSError, or a kill, the old content stands and no other
    file is left."""
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
