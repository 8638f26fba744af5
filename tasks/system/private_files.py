"""Keep the home (the folder of a project's local state, TRNFLOW_HOME or `.trnflow`) private: give the folder a file
mode that shuts out other users, and give cached answers names that reveal no credentials.

An answer about a URL, such as the digests of its files, is cached under a name. The name is not the URL, which may hold
credentials, but the URL's HMAC under a random secret of the home (`<home>/secret`, mode 0600).
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
    """Create the home folder, and missing folders above it, if there is none yet. The home gets mode 0700, so that only
    its owner can read it. An existing home keeps its mode, which `trnflow doctor` reports."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)


def is_private(home: Path) -> bool:
    """Return whether other users of the machine can neither read nor write trnflow's home folder, by its file mode."""
    return not stat.S_IMODE(home.stat().st_mode) & OTHERS


def lookup_name(home: Path, text: str) -> str:
    """Return the name under which the result of looking up `text`, such as a URL, is cached: the HMAC-SHA256 of `text`
    under the secret of the home (the folder of local state), 64 hexadecimal digits. The first call creates the home and
    its secret."""
    return hmac.new(_secret(home), text.encode(), hashlib.sha256).hexdigest()


def is_lookup_name(text: str) -> bool:
    """Return whether a text has the form of a result of `lookup_name`: 64 hexadecimal digits. Earlier versions stored
    the looked-up text itself."""
    return _NAME.fullmatch(text) is not None


def _secret(home: Path) -> bytes:
    """Return the home's secret; create it if it is missing. Two processes that create it at the same time get the same
    secret."""
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
