"""What stands between a browser and a model's page, without gradio; `tests/clients/test_serve.py` has the page itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from trnflow.flows.cli.model import serve
from trnflow.flows.cli.model.serve import _OwnPageAlone, _said, _WithoutLarge, _WithPolicy

HERE = b"127.0.0.1:7860"


class App:
    """Reads whole requests, and answers them with a header of its own."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.cut = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.cut += 1
                return
            body += message["body"]
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-mine", b"1")]})
        await send({"type": "http.response.body", "body": b"ok"})


def sent(guard: Any, path: str = "/", parts: tuple[bytes, ...] = (b"text",), **headers: bytes) -> Any:
    """The start of a guard's answer to a request; None if it has none. parts: of its body."""
    given = [(name.replace("_", "-").encode(), value) for name, value in {"host": HERE, **headers}.items()]
    left, answers = list(parts), list[Any]()

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        answers.append(message)

    asyncio.run(guard({"type": "http", "path": path, "headers": given}, receive, send))
    return answers[0] if answers else None


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200), (b"http://" + HERE, 200), (b"http://127.0.0.1:8000", 403), (b"https://" + HERE, 403),
        (b"http://evil.example", 403), (b"null", 403),
    ],
)  # fmt: skip
def test_the_model_answers_its_own_page_alone(origin: bytes | None, status: int) -> None:
    app = App()
    named: dict[str, Any] = {} if origin is None else {"origin": origin}
    assert sent(_OwnPageAlone(app), **named)["status"] == status
    assert len(app.bodies) == (status == 200)


@pytest.mark.parametrize("path", ["/upload", "/gradio_api/upload/", "/process_recording"])
def test_nothing_can_be_uploaded(path: str) -> None:
    app = App()
    assert sent(_OwnPageAlone(app), path)["status"] == 403 and not app.bodies
    assert sent(_OwnPageAlone(app), "/upload_progress")["status"] == 200


def test_the_page_may_reach_no_other_host() -> None:
    found = dict(sent(_WithPolicy(App()))["headers"])
    assert found.keys() == {b"x-mine", b"content-security-policy", b"referrer-policy"}
    assert found[b"content-security-policy"].startswith(b"default-src 'self' ")
    assert b"frame-ancestors 'none'" in found[b"content-security-policy"]


@pytest.mark.parametrize(
    ("declared", "status"),
    [(b"1048576", 200), (b"1048577", 413), (b"-1", 413), (b"many", 413), (b"9" * 5000, 413), (b"", 413)],
)
def test_a_request_that_says_it_is_large_is_not_read(declared: bytes, status: int) -> None:
    app = App()
    assert sent(_WithoutLarge(app), content_length=declared)["status"] == status
    assert len(app.bodies) == (status == 200)


def test_a_request_that_does_not_say_how_large_it_is_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()
    guard = _WithoutLarge(app)
    assert sent(guard, parts=(b"x" * (1 << 19),) * 2)["status"] == 200
    assert sent(guard, parts=(b"x" * (1 << 19),) * 3) is None and app.cut == 1
    assert guard.held == 0, "what was read is given back"
    monkeypatch.setattr(serve, "MOST_HELD", 1 << 18)
    assert sent(guard, parts=(b"x" * (1 << 19),)) is None and app.cut == 2, "of all that are open"


def test_what_a_model_generated_comes_back_as_it_was() -> None:
    """It is shown escaped: a user who types the same has typed it so."""
    assert _said({"role": "assistant", "content": "1 &lt; 2"}) == "1 < 2"
    assert _said({"role": "user", "content": "1 &lt; 2"}) == "1 &lt; 2"
    assert _said({"role": "assistant", "content": [{"text": "a &amp;"}, {"type": "image"}, {"text": " b"}]}) == "a & b"
