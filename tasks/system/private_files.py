"""Keep the home private: its mode, and names of cached answers that reveal no credentials."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

SCHEMA = 1

OTHERS = 0o077
"""Mode bits that give other users access."""

_NAME = re.compile(r"[0-9a-f]{64}")


def make_home(home: Path) -> None:
    """Create the home, or a store, with mode 0700; an existing one keeps its mode."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)


def is_private(home: Path) -> bool:
    """Return whether other users can neither read nor write the home."""
    return not stat.S_IMODE(home.stat().st_mode) & OTHERS


def lookup_name(home: Path, text: str) -> str:
    """Return the HMAC-SHA256 of `text` under the home's secret: 64 hexadecimal digits."""
    return hmac.new(_secret(home), text.encode(), hashlib.sha256).hexdigest()


def is_lookup_name(text: str) -> bool:
    """Return whether a text has the form of a `lookup_name`."""
    return _NAME.fullmatch(text) is not None


def made_once(file: Path, content: bytes) -> bytes:
    """Return a file's content; without the file, make it with `content` and mode 0600. Of two processes that do at once, both
    get the first one's. Its folder is made private unless it exists."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_bytes()
    make_home(file.parent)
    aside = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(content)
    with contextlib.suppress(FileExistsError):
        os.link(aside, file)
    aside.unlink()
    return file.read_bytes()


def _secret(home: Path) -> bytes:
    """Return the home's secret (`<home>/secret`, mode 0600), created if missing."""
    return made_once(home / "secret", secrets.token_bytes(32))
