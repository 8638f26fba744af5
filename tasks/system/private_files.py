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
    """Return the HMAC-SHA256 of `text` under the home's secret, which is created if missing: 64 hexadecimal digits."""
    return hmac.new(made_once(home / "secret", secrets.token_bytes(32)), text.encode(), hashlib.sha256).hexdigest()


def is_lookup_name(text: str) -> bool:
    """Return whether a text has the form of a `lookup_name`."""
    return _NAME.fullmatch(text) is not None


def made_once(file: Path, content: bytes) -> bytes:
    """Return a file's content; without a private file of this user, make it with `content` and mode 0600. Of two processes that
    do at once, both get the first one's. Its folder is made private unless it exists."""
    if (kept := _read_private(file)) is not None:
        return kept
    make_home(file.parent)
    aside = _aside(file, content)
    try:
        os.link(aside, file)
    except FileExistsError:
        # one that a folder from elsewhere brought, or that others may read, is no secret
        if (kept := _read_private(file)) is not None:
            return kept
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
    return content


def write_private(file: Path, text: str) -> None:
    """Put a file with mode 0600 in place of what is there, also of a link. Raises OSError."""
    _aside(file, text.encode()).replace(file)


def _aside(file: Path, content: bytes) -> Path:
    aside = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(content)
    return aside


def _read_private(file: Path) -> bytes | None:
    """Return the content of a plain file that this user alone may read, else None."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(handle, "rb") as opened:
        there = os.fstat(handle)
        mine = there.st_uid == os.geteuid() and not stat.S_IMODE(there.st_mode) & OTHERS
        return opened.read() if stat.S_ISREG(there.st_mode) and mine else None
