"""Debian's chromium, driven over its debugging protocol: open a page, type, click, read, and list what the page asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0")
PATIENCE = 120.0
"""Seconds after which waiting fails."""


class Page:
    """A page that is open in the browser. requests: the addresses that it has asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self.requests: list[str] = []
        self._socket, self._number = socket, 0
        for domain in ("Network", "Page", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """The result of a command of the protocol; events that come meanwhile are noted."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        end = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < end, f"the browser does not answer {method}"
            message = json.loads(self._socket.recv(timeout=PATIENCE))
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("id") == self._number:
                assert "result" in message, message
                return message["result"]

    def value(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, script: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < end, f"never true: {script}; the page: {self.value('document.body.innerText')}"
            time.sleep(0.1)

    def type_into(self, selector: str, text: str) -> None:
        """Type a text into the field that a CSS selector names, in place of what it holds, until the field holds the text: a
        page that is not ready for it loses it."""
        field, end = f"document.querySelector({json.dumps(selector)})", time.monotonic() + PATIENCE
        self.wait_for(field)
        while self.value(f"{field}.value") != text:
            assert time.monotonic() < end, f"{selector} does not take {text!r}"
            self.value(f"({field}.focus(), {field}.select())")
            self.call("Input.insertText", text=text)
            time.sleep(0.1)


@contextmanager
def browser_at(url: str, folder: Path, *options: str) -> Iterator[Page]:
    """Open a page in a browser of its own. folder: for its profile; options: further ones of the browser. Skips the test where
    there is no chromium."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no browser: apt-get install chromium")
    profile = folder / "profile"
    command = [program, *OPTIONS, *options, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            with connect(_debugger(profile / "DevToolsActivePort"), max_size=None) as socket:
                page = Page(socket)
                page.call("Page.navigate", url=url)
                yield page
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:  # a page that computes keeps it from ending
        process.kill()


def _debugger(file: Path) -> str:
    """The address of the first page's debugger. file: where the browser writes its port."""
    end = time.monotonic() + PATIENCE
    while not (file.exists() and file.read_text().strip()):
        assert time.monotonic() < end, "the browser did not start"
        time.sleep(0.1)
    port = file.read_text().split()[0]
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE) as answer:
            pages = [one for one in json.loads(answer.read()) if one["type"] == "page"]
        if pages:
            return str(pages[0]["webSocketDebuggerUrl"])
        assert time.monotonic() < end, "the browser opened no page"
        time.sleep(0.1)
