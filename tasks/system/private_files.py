"""Keep the home private: file mode 0700, and names of cached answers that reveal no credentials.

An answer about a URL is cached under the URL's HMAC with the home's random secret (`<home>/secret`, mode 0600).
"""

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
"""The bits of a file mode that give other users access."""

_NAME = re.compile(r"[0-9a-f]{64}")


def make_home(home: Path) -> None:
    """Create the home with mode 0700 if there is none. An existing home keeps its mode, which `trnflow doctor` reports."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)


def is_private(home: Path) -> bool:
    """Return whether other users can neither read nor write the home."""
    return not stat.S_IMODE(home.stat().st_mode) & OTHERS


def lookup_name(home: Path, text: str) -> str:
    """Return the HMAC-SHA256 of `text` under the home's secret, in 64 hexadecimal digits. The first call creates the
    secret."""
    return hmac.new(_secret(home), text.encode(), hashlib.sha256).hexdigest()


def is_lookup_name(text: str) -> bool:
    """Return whether a text has the form of a `lookup_name`."""
    return _NAME.fullmatch(text) is not None


def _secret(home: Path) -> bytes:
    """Return the home's secret, created if missing; processes that create it at once get the same."""
    file = home / "secret"
    with contextlib.suppress(FileNotFoundError):
        return file.read_bytes()
    make_home(home)
    aside = home / f"secret.{os.getpid()}.{secrets.token_hex(4)}"
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(secrets.token_bytes(32))
    with contextlib.suppress(FileExistsError):
        os.link(aside, file)
    aside.unlink()
    return file.read_bytes()
