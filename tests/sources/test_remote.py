from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.helpers.data_stages import table
from tests.helpers.serving import serving
from trnflow.tasks.errors import ConfigError, DataError, MissingDependency
from trnflow.tasks.load_data import DataConfig


def test_memory_url_is_keyed_by_content(bench):
    import fsspec

    filesystem = fsspec.filesystem("memory")
    for name in ("train", "test"):
        filesystem.pipe(f"/set-a/{name}.jsonl", b'{"text": "' + name.encode() + b'"}\n')
    source = bench.source(DataConfig(source="memory://set-a"))
    assert [file["split"] for file in source.identity["files"]] == ["train", "test"]
    assert table(bench.rows(source="memory://set-a", text="text"), "test") == {"text": ["test"]}
    assert bench.source(DataConfig(source="memory://set-a"), offline=True).note == "last resolution"
    assert "set-a" not in (bench.root / "home/resolved.json").read_text(), "a URL may hold credentials"
    filesystem.pipe("/set-a/test.jsonl", b'{"text": "new"}\n')
    assert bench.source(DataConfig(source="memory://set-a")).identity != source.identity
    for nothing in ("memory://set-b", "memory://set-b/x.csv", "memory://set-b/*.csv"):
        with pytest.raises(DataError, match="there is nothing at memory://set-b"):
            bench.source(DataConfig(source=nothing))
    with pytest.raises(ConfigError, match="never resolved"):
        bench.source(DataConfig(source="memory://set-b/x.csv"), offline=True)


class Server(ThreadingHTTPServer):
    body = b"text,label\ngood,1\nbad,0\n"
    tag = '"one"'
    downloads = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        known = self.path.startswith("/set.csv")
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(self.server.body) if known else 0))
        self.send_header("ETag", self.server.tag)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        if self.path.startswith("/set.csv"):
            self.server.downloads += 1
            self.wfile.write(self.server.body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server(("127.0.0.1", 0), Handler)) as running:
        yield running


def test_http_url_is_downloaded_again_only_when_its_etag_changes(bench, server):
    config = DataConfig(source=f"http://127.0.0.1:{server.server_port}/set.csv?download=true", label="label", split={})
    first = bench.source(config)
    after_first = server.downloads
    assert bench.source(config) == first
    assert server.downloads == after_first
    server.body, server.tag = b"text,label\ngood,1\nworse,0\n", '"two"'
    assert bench.source(config).identity != first.identity
    assert table(bench.rows(source=config.source, label="label"), "train")["text"] == ["good", "worse"]
    Path(first.location["files"][0]["path"]).unlink()
    missing = DataConfig(source=f"http://127.0.0.1:{server.server_port}/none.csv")
    with pytest.raises(DataError, match=r"none\.csv"):
        bench.source(missing)


def test_hub_name_offline_and_unreachable(bench, monkeypatch):
    with pytest.raises(ConfigError, match="hub/datasets/someone/emotion@main was never resolved"):
        bench.source(DataConfig(source="someone/emotion"), offline=True)
    known = {"hub/datasets/someone/emotion@v2": {"commit": "abc"}}
    (bench.root / "home").mkdir(exist_ok=True)
    (bench.root / "home/resolved.json").write_text(json.dumps(known))
    config = DataConfig(source="someone/emotion", name="split", revision="v2", splits={"train": "unsplit"})
    source = bench.source(config, offline=True)
    assert source.identity == {
        "hub": "someone/emotion",
        "name": "split",
        "commit": "abc",
        "splits": {"train": "unsplit"},
    }
    assert source.note == "last resolution"


def test_unknown_file_system_names_the_package(bench):
    with pytest.raises(MissingDependency, match="gs://"):
        bench.source(DataConfig(source="gs://bucket/train.csv"))
