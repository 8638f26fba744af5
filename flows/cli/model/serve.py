"""Show a model on a page in the browser, made by gradio, until the process is interrupted.

The server listens on 127.0.0.1 and answers its own page alone, by a name of this machine (against DNS rebinding). Neither asks
another host, whatever a model generates: telemetry and sharing are off, the Content-Security-Policy forbids it. What is typed is
not stored.
"""

from __future__ import annotations

import html
import importlib.util
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.conversation import Row
from trnflow.tasks.errors import ConfigError, DataError, MissingDependency, TrnflowError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.prediction.carried import CUT, REMARK
from trnflow.tasks.prediction.predict import Model, Predict
from trnflow.tasks.prediction.prompts import Named
from trnflow.tasks.prediction.separate_process import PredictingProcess

HOST = "127.0.0.1"
NAMES = [HOST, "localhost"]
"""The values of the header `Host` that are answered, without the port."""

POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'none'"
"""The Content-Security-Policy. gradio's page has inline scripts and compiles templates by `eval`."""

MOST_BYTES = 1 << 20
"""Of a request: more than the longest text that a model reads, and a conversation with it."""

MOST_HELD = 64 << 20
"""Of all requests together that are not answered yet: thousands may send a body slowly, a megabyte each."""

SECONDS = 120.0
"""After which a generated answer ends where it is, and any other is an error."""

WAITING = 32
"""Requests that may wait for their turn."""

SESSIONS = 64
"""Browsers whose answers are kept until they fetch them: gradio keeps those of 2,000, a megabyte each."""

PROXIES = ("http_proxy", "https_proxy", "all_proxy")
"""Variables that name a proxy. With a SOCKS proxy httpx raises ImportError where socksio is missing."""

LONGEST_ANSWER = 20
"""Lines of a generated text that are shown without scrolling."""


def check_installed() -> None:
    """Raise MissingDependency if gradio is not installed."""
    if importlib.util.find_spec("gradio") is None:
        raise MissingDependency("--serve needs gradio, which is not installed", "pip install 'trnflow[serve]'")


def serve(model: Model, predict: Predict, title: str, port: int | None, show: Callable[[str], None]) -> None:
    """Serve a page to try a model on 127.0.0.1, until KeyboardInterrupt.

    Args:
        predict: Called with pairs (name for errors, row); yields a prediction for each.
        port: None for the first free one from 7860 to 7959.
        show: Called with the page's address when the server answers.

    Raises:
        ConfigError: The port can't be bound, or the model reads columns of lists or objects.
    """
    with tempfile.TemporaryDirectory() as folder:
        # proxies, and gradio's variables, could open the server
        for name in [name for name in os.environ if name.startswith("GRADIO_") or name.lower() in PROXIES]:
            del os.environ[name]
        os.environ.update({"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": folder})
        page = _page(model, predict, html.escape(title)).queue(max_size=WAITING)
        page._queue.pending_messages_per_session.max_size = SESSIONS
        try:
            _, url, _ = page.launch(**_settings(port))
        except OSError as error:
            where = f"port {port} is" if port else "the ports from 7860 to 7959 are"
            raise ConfigError(f"--serve: {where} taken or not allowed", "give a free one: --port 8000") from error
        try:
            show(url)
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
        finally:
            page.close(verbose=False)


def in_time(load: Callable[[float], PredictingProcess], seconds: float) -> Predict:
    """Load a model in a process of its own, and return a function that predicts with it, and that loads it again after a text
    that took longer than `seconds`.

    The function raises DataError for such a text, whose process has ended: a forward pass can't be interrupted.
    """
    process = load(seconds)

    def predict(named: Iterable[Named]) -> Iterator[Meta]:
        nonlocal process
        for where, row in named:
            if process.ended:
                process = load(seconds)
            try:
                yield from process.predict([row])
            except TrnflowError as error:
                # the time is over, or memory was; all other errors leave the process as it is
                if not process.ended:
                    raise
                what = (
                    f"{where} took longer than {seconds:g} seconds" if isinstance(error, DataError) else error.message
                )
                raise DataError(what, "give a shorter one: the model is loaded anew for it") from error

    return predict


def _settings(port: int | None) -> Mapping[str, Any]:
    """The arguments of gradio's `launch`."""
    import gradio
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    guards = [
        Middleware(TrustedHostMiddleware, allowed_hosts=NAMES),
        Middleware(_WithPolicy),
        Middleware(_OwnPageAlone),
        Middleware(_WithoutLarge),
    ]
    return {
        "server_name": HOST,
        "server_port": port,
        "share": False,
        "inline": False,
        "inbrowser": False,
        "quiet": True,
        "prevent_thread_lock": True,
        "theme": gradio.themes.Base(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        "app_kwargs": {"middleware": guards},
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "mcp_server": False,
        "ssr_mode": False,
        "pwa": False,
        "strict_cors": True,
        "max_file_size": 1,
        "state_session_capacity": SESSIONS,
    }


class _WithPolicy:
    """ASGI middleware that adds the Content-Security-Policy to each response."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(b"content-security-policy", POLICY.encode()), (b"referrer-policy", b"no-referrer")]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        await self.app(scope, receive, send_with_policy)


class _OwnPageAlone:
    """ASGI middleware that answers 403 to pages of other origins, also of other ports of this machine, and to uploads."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        # a browser names the page's origin in each request that writes or whose answer a script reads
        origin, own = headers.get(b"origin"), b"http://" + headers.get(b"host", b"")
        if scope["type"] == "http" and origin not in (None, own):
            await _refuse(send, 403, "another page asks")
        elif scope["type"] == "http" and scope["path"].rstrip("/").endswith(("/upload", "/process_recording")):
            await _refuse(send, 403, "nothing can be uploaded")
        else:
            await self.app(scope, receive, send)


class _WithoutLarge:
    """ASGI middleware that answers 413 to a request that says it has more than MOST_BYTES, and reads no more of any other,
    nor more than MOST_HELD of all that are open."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.held = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > MOST_BYTES:
            await _refuse(send, 413, f"a request may have {MOST_BYTES:,} bytes at most; shorten the text")
            return
        read = 0

        async def receive_some() -> Any:
            nonlocal read
            message = await receive()
            size = len(message.get("body", b""))
            read += size
            self.held += size
            # a request need not say how long it is
            fits = read <= MOST_BYTES and self.held <= MOST_HELD
            return message if fits else {"type": "http.disconnect"}

        try:
            await self.app(scope, receive_some, send)
        finally:
            self.held -= read


async def _refuse(send: Any, status: int, why: str) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": why.encode()})


def _page(model: Model, predict: Predict, title: str) -> Any:
    import gradio

    alone = threading.Lock()  # the page and its API have a queue each

    def answer(row: Row) -> Meta:
        try:
            with alone:
                return next(iter(predict([("the text", row)])))
        except DataError as error:
            raise gradio.Error(str(error), print_exception=False) from error

    if model.shape.is_chat:
        return _chat_page(model, answer, title)
    return _form(model, answer, title)


def _form(model: Model, answer: Callable[[Row], Meta], title: str) -> Any:
    """A page with a field for each column that the model reads, and the prediction."""
    import gradio

    columns = [*model.shape.columns, *model.shape.optional]
    # words are given as their text
    if nested := [name for name in columns if name in model.rows.nested and name != model.rows.settings.get("words")]:
        raise ConfigError(
            f"the model reads lists or objects in the column {nested[0]}, which the page can't ask for",
            "give rows by --file",
        )
    kind = kind_of(model.rows.task)
    has_bars = "probabilities" in kind.answers

    def fill(*texts: str) -> tuple[Any, str]:
        found = answer(dict(zip(columns, texts, strict=True)))
        if REMARK in found:
            return None if has_bars else "", found[REMARK]
        note = f"{found[CUT]} tokens were too many for the model and were left out" if CUT in found else ""
        shown = found["probabilities"] if has_bars else kind.line(found) if kind.per_row else found["generated"]
        return shown, note

    return gradio.Interface(
        fill,
        [gradio.Textbox(label=column, lines=3) for column in columns],
        [
            gradio.Label(label="label") if has_bars else gradio.Textbox(label="answer", max_lines=LONGEST_ANSWER),
            gradio.Textbox(label="note"),
        ],
        title=title,
        flagging_mode="never",
        analytics_enabled=False,
        concurrency_limit=1,
        api_name="predict",
    )


def _chat_page(model: Model, answer: Callable[[Row], Meta], title: str) -> Any:
    """A conversation: each answer is made from all turns before it."""
    import gradio
    from gradio.components.chatbot import TextMessage

    def reply(message: str, history: list[Row]) -> str:
        turns = [{"role": turn["role"], "content": _said(turn)} for turn in history]
        found = answer({model.shape.columns[0]: [*turns, {"role": "user", "content": message}]})
        return html.escape(found["generated"], quote=False)

    chatbot = gradio.Chatbot(render_markdown=False, label="conversation")  # it shows HTML all the same
    cleaned = chatbot._postprocess_content  # removes the indentation of texts, which `reply` gets back as the history
    chatbot._postprocess_content = lambda part: TextMessage(text=part) if isinstance(part, str) else cleaned(part)
    return gradio.ChatInterface(
        reply,
        chatbot=chatbot,
        title=title,
        flagging_mode="never",
        analytics_enabled=False,
        save_history=False,
        concurrency_limit=1,
        api_name="chat",
    )


def _said(turn: Row) -> str:
    """Return the text of a turn, which gradio 6 gives as a list of parts."""
    content = turn["content"]
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return html.unescape(text) if turn["role"] == "assistant" else text
