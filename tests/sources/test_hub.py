"""A hub that does not answer: one line that names the setting, whatever the client library raises."""

from __future__ import annotations

import gzip
import importlib
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.hub_server import Handler, hub_of, run_program
from tests.helpers.serving import address_of
from trnflow.tasks.sources import hub_client
from trnflow.tasks.sources.hub_client import bounded_answers, expect_files, is_name
from trnflow.tasks.sources.hub_errors import asked

PROGRAM = """
import json, sys, time
from pathlib import Path
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.load_data import DataConfig, data_source
from trnflow.tasks.sources.model_source import ModelConfig, model_folder, model_source
from trnflow.tasks.sources.resolver import Resolver
from tests.training.toys import scratch
home, answers = Path(sys.argv[1]), []
time.sleep = lambda seconds: None  # between two tries of the client
weights = scratch()
weights.location["model"] = {"repo": "me/set", "commit": "a" * 40}
for ask in (
    lambda: data_source(DataConfig(source="me/set"), Resolver(home)),
    lambda: model_source(ModelConfig(source="me/set"), Resolver(home)),
    lambda: model_folder(weights),
):
    try:
        answers.append(str(ask()))
    except TrnflowError as error:
        answers.append(error.to_json())
print(json.dumps(answers))
"""


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as nobody:  # bound, never listening: refused at once
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        data, model, weights = run_program(PROGRAM, endpoint, tmp_path / "hf", str(tmp_path))
    assert (data["type"], model["type"], weights["type"]) == ("DataError", "ModelError", "ModelError")
    for found, section in ((data, "data"), (model, "model"), (weights, "model")):
        assert found["message"].startswith(
            f"{section}.source: me/set is no file or folder here, and the hub could not be"
        )
        assert f"{section}.source" in found["fix"]


@pytest.mark.parametrize(("kind", "tries"), [("ReadTimeout", 3), ("ConnectTimeout", 3), ("ConnectError", 1)])
def test_a_hub_that_is_slow_is_asked_again_and_one_that_refuses_is_not(kind: str, tries: int) -> None:
    library = importlib.import_module(HfHubHTTPError.__mro__[1].__module__)  # httpx, or what took its place
    error, asked_for = getattr(library, kind)("no answer"), list[float]()

    def ask(seconds: float, fails: int) -> int:
        asked_for.append(seconds)
        if len(asked_for) <= fails:
            raise RuntimeError("the client's own") from error
        return len(asked_for)

    with pytest.raises(RuntimeError):
        asked(lambda seconds: ask(seconds, fails=10))
    assert len(asked_for) == tries
    asked_for.clear()
    if tries > 1:
        assert asked(lambda seconds: ask(seconds, fails=tries - 1)) == tries and min(asked_for) > 0


LOOK = """
import json, sys
from pathlib import Path
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.sources.model_source import ModelConfig, model_folder, model_source, tokenizer_folder
from trnflow.tasks.sources.resolver import Resolver
answers = []
try:
    source = model_source(ModelConfig(source="me/set"), Resolver(Path(sys.argv[1]), offline=len(sys.argv) > 2))
    for folder in (tokenizer_folder, model_folder):
        answers.append(str(folder(source)))
except TrnflowError as error:
    answers.append(error.to_json())
print(json.dumps(answers))
"""


@pytest.mark.parametrize(
    ("sizes", "asked_for", "says"),
    [
        ({}, {"config.json", "tokenizer.json", "model.safetensors"}, None),
        ({"model.safetensors": 5 * 10**14}, {"config.json", "tokenizer.json"},
         "model.source: 500,000.0 GB of me/set are to be downloaded, and the disk of "),
        ({"tokenizer.json": 10**10}, {"config.json"}, "model.source: tokenizer.json of me/set has more than 64 MiB"),
        ({"config.json": 10**10}, set(), "model.source: config.json of me/set has more than 16 MiB"),
        ({"more.bin": 5 * 10**14}, {"config.json", "tokenizer.json", "model.safetensors"}, None),
    ],
)  # fmt: skip
def test_of_a_model_s_files_the_sizes_are_looked_at_before_they_are_downloaded(
    sizes: dict[str, int], asked_for: set[str], says: str | None, tmp_path: Path, shared: Path
) -> None:
    held = shared / "assets/stories260K-hf"
    names = ("config.json", "tokenizer.json", "model.safetensors")
    files = {name: (held / name).read_bytes() for name in names} | {"more.bin": b""}
    with hub_of(files, "models", sizes) as hub:
        *folders, last = run_program(LOOK, address_of(hub), tmp_path / "hf", str(tmp_path))
        assert {*hub.asked} == asked_for
    if says is not None:
        assert says in last["message"]
        return
    # what the cache has is opened while nobody answers
    again = run_program(LOOK, address_of(hub), tmp_path / "hf", str(tmp_path), "offline")
    assert again == [*folders, last] and again[0].startswith(str(tmp_path))


def test_what_the_cache_has_of_an_older_commit_is_not_counted(tmp_path: Path, shared: Path) -> None:
    names = ("config.json", "tokenizer.json", "model.safetensors")
    with hub_of({name: (shared / "assets/stories260K-hf" / name).read_bytes() for name in names}, "models") as hub:
        first = run_program(LOOK, address_of(hub), tmp_path / "hf", str(tmp_path))
        hub.head, hub.sizes = "b" * 40, {"model.safetensors": 5 * 10**14}
        assert run_program(LOOK, address_of(hub), tmp_path / "hf", str(tmp_path)) != first
        hub.head, hub.files = "c" * 40, hub.files | {"model.safetensors": b"another"}
        (refused,) = run_program(LOOK, address_of(hub), tmp_path / "hf", str(tmp_path))[1:]
    assert "500,000.0 GB of me/set are to be downloaded" in refused["message"]


class Liar(Handler):
    """A hub whose files never end, are packed though nobody asked, or are to be written outside the cache."""

    lie: str

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        wanted = self.path.rpartition("/")[2] == "config.json"
        if wanted and self.lie in ("etag", "x-linked-etag", "x-repo-commit"):
            headers = {**(headers or {}), self.lie: '"../../../../../outside"'}
        if wanted and self.lie == "packed" and self.command == "GET":
            body, headers = gzip.compress(body), {**(headers or {}), "Content-Encoding": "gzip"}
        if self.command == "GET" and (
            (wanted and self.lie == "endless") or (self.lie == "endless list" and "/api/" in self.path)
        ):
            self._send_for_ever(headers or {})
        else:
            super().answer(status, body, headers)

    def _json(self, document: object) -> None:
        if isinstance(document, dict) and self.lie == "commit":
            document |= {"sha": "../../../../../outside"}
        if isinstance(document, dict) and self.lie == "size":
            document["siblings"][0]["size"] = "large"
        super()._json([] if self.lie == "list" else document)

    def _send_for_ever(self, headers: Mapping[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):
            for _ in range(256):
                self.wfile.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        ("endless", "it sends more than the 16 MiB that it may"),
        ("endless list", "it sends more than the 64 MiB that it may"),
        ("packed", "its answer is compressed, and was not asked to be"),
        *((name, f"its header {name} is no name of a file") for name in ("etag", "x-linked-etag", "x-repo-commit")),
        ("commit", "its answer has a commit or sizes that can't be"),
        ("size", "its answer has a commit or sizes that can't be"),
        ("list", "its answer has another shape"),
    ],
)
def test_what_a_hub_that_lies_sends_is_bounded_and_stays_in_the_cache(
    lie: str, says: str, tmp_path: Path, shared: Path
) -> None:
    held, cache = shared / "assets/stories260K-hf", tmp_path / "a/b/c/d/hf"
    files = {name: (held / name).read_bytes() for name in ("config.json", "tokenizer.json", "model.safetensors")}
    with hub_of(files, "models", handler=type("Told", (Liar,), {"lie": lie})) as hub:
        (error,) = run_program(LOOK, address_of(hub), cache, str(tmp_path / "home"))
    assert error["type"] == "ModelError"
    assert f"me/set is no file or folder here, and the hub could not be asked: {says}" in error["message"]
    assert not [*tmp_path.rglob("outside*")]
    assert sum(file.stat().st_size for file in cache.rglob("*") if file.is_file()) < 1 << 20


@given(st.text(alphabet=st.sampled_from("a.-{}/\\\0\n"), max_size=6))
@example("..")
def test_a_name_that_is_taken_is_that_of_a_file_in_the_folder(text: str) -> None:
    """An ETag may have braces: whatever stays in the folder is taken."""
    assert is_name("{SHA1{adc83b19e793491b1c6ea0fd8b46cd9f32e592fc}}") and is_name("a" * 64) and not is_name("a" * 256)
    if is_name(text):
        assert Path("/cache", text).resolve().parent == Path("/cache") and "\0" not in text


def test_clients_of_a_program_that_imports_trnflow_stay_as_they_are(tmp_path: Path, shared: Path) -> None:
    """Its own factory makes them, and outside a lookup nothing is bounded."""
    own = """
import huggingface_hub
from huggingface_hub.utils import get_session
from huggingface_hub.utils._http import default_client_factory
made = []
huggingface_hub.set_client_factory(lambda: made.append(1) or default_client_factory())
"""
    later = """
answers.append([bool(made), get_session().get(sys.argv[2]).headers["content-encoding"]])
print(json.dumps(answers))
"""
    held = shared / "assets/stories260K-hf"
    files = {name: (held / name).read_bytes() for name in ("config.json", "tokenizer.json", "model.safetensors")}
    with hub_of(files, "models", handler=type("Told", (Liar,), {"lie": "packed"})) as hub:
        url = f"{address_of(hub)}/me/set/resolve/main/config.json"
        program = own + LOOK.replace("print(json.dumps(answers))\n", "") + later
        program = program.replace("offline=len(sys.argv) > 2", "offline=False")
        answers = run_program(program, address_of(hub), tmp_path / "hf", str(tmp_path), url)
    assert answers[0]["type"] == "ModelError" and answers[1] == [True, "gzip"]


def test_the_largest_file_that_is_due_bounds_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is asked for last: several come at once."""
    monkeypatch.setattr(hub_client, "SLACK", 0)
    with bounded_answers():
        expect_files(10)
        expect_files(3)
        stream = hub_client._bounded_stream()
        assert b"".join(stream(iter([b"a" * 6, b"a" * 4]), is_file=True)) == b"a" * 10
        with pytest.raises(OSError, match="it sends more than"):
            b"".join(stream(iter([b"a" * 6, b"a" * 5]), is_file=True))
