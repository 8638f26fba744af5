"""The login of a home's local Prefect server: a text that its API asks of all who call it, but for its health.

Else a web page could call the server of its viewer's machine, and run commands through it.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from pathlib import Path

from trnflow.flows.services.prefect_address import CLIENT
from trnflow.tasks.system.private_files import made_once, write_private
from trnflow.tasks.system.redaction import add_secret

SERVER = "PREFECT_SERVER_API_AUTH_STRING"
"""The variable from which Prefect's server reads the login that it asks for."""
FILES = ("login", "login.sh", "login.html")
"""The text, what a shell reads, and what opens the page; in `<home>/prefect`."""
_LOGIN = re.compile(r"trnflow:[\w-]{43}")

PAGE_PATH = "/trnflow-login"
"""Where the local server serves LOGIN_PAGE."""

OPEN = "whoever reaches it can run commands through a worker, since it asks for no login (docs/services.md#logins)"
"""Said of a Prefect server."""

LOGIN_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Prefect</title></head><body><p id="said">Opening Prefect's page</p><script>
const login = location.hash.slice(1);
fetch("/api/admin/version", {headers: {Authorization: "Basic " + login}}).then(answer => {
  if (!answer.ok) throw answer.status;
  localStorage.setItem("prefect-password", login);
  location.replace("/");
}).catch(() => {
  history.replaceState(null, "", location.pathname);
  document.getElementById("said").textContent = "This login is of another server: `trnflow ui` names the page to open.";
});
</script></body></html>
"""
"""Keeps the login that follows `#` where Prefect's page looks for it, if the server takes it, and opens that page."""

OPENS = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Prefect</title></head><body><script>
location.replace("{address}");
</script></body></html>
"""


def make_login(home: Path) -> str:
    """Return the home's login, made when it is first needed; a secret from now on."""
    file = home / "prefect" / "login"
    login = made_once(file, f"trnflow:{secrets.token_urlsafe(32)}".encode()).decode(errors="replace")
    if not _LOGIN.fullmatch(login):  # cut off, as on a full disk
        file.unlink()
        return make_login(home)
    add_secret(login)
    add_secret(encoded(login))
    return login


def read_login(home: Path) -> str | None:
    """Return the home's login, None if none was made."""
    try:
        return (home / "prefect" / "login").read_text(encoding="utf-8")
    except OSError:
        return None


def encoded(login: str) -> str:
    """Return a login as the header `Authorization: Basic` carries it."""
    return b64encode(login.encode()).decode()


def write_helpers(home: Path, page: str) -> None:
    """Write `login.sh` and `login.html`. page: the address of Prefect's page."""
    login = make_login(home)
    write_private(sourced(home), f"export PREFECT_API_URL='{page}/api' {CLIENT}='{login}'\n")
    write_private(opened(home), OPENS.format(address=f"{page}{PAGE_PATH}#{encoded(login)}"))


def forget_login(folder: Path) -> None:
    """Remove the login in `<home>/prefect` of a server that has ended: another user's program may take its port, and get the
    login from a client that still runs."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def sourced(home: Path) -> Path:
    """Return the file that a shell reads for Prefect's own commands."""
    return home / "prefect" / "login.sh"


def opened(home: Path) -> Path:
    """Return the file that opens Prefect's page in a browser."""
    return home / "prefect" / "login.html"
