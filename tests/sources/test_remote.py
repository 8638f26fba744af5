from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.helpers.data_stages import table
from tests.helpers.s3_proxy import proxy_of
from tests.helpers.s3_server import new_bucket, start_server
from tests.helpers.serving import QuietHandler, serving
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


def test_offline_the_same_files_of_a_url_are_recalled(bench):
    import fsspec

    for name in ("train", "other"):
        fsspec.filesystem("memory").pipe(f"/set-c/{name}.jsonl", b'{"text": "' + name.encode() + b'"}\n')
    bench.source(DataConfig(source="memory://set-c"))
    with pytest.raises(ConfigError, match="never resolved"):
        bench.source(DataConfig(source="memory://set-c", splits={"train": "other"}), offline=True)


def test_a_hub_dataset_is_that_of_its_revision_and_splits(bench, monkeypatch):
    import huggingface_hub

    asked = []

    def info(self, repo, *, revision=None, timeout=None):
        asked.append((repo, revision))
        return huggingface_hub.DatasetInfo(id=repo, sha="a" * 40, siblings=[])

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", info)
    config = DataConfig(source="me/set", revision="v1")
    identity = bench.source(config).identity
    assert asked == [("me/set", "v1")] and identity["commit"] == "a" * 40
    assert identity != bench.source(config.model_copy(update={"splits": {"train": "more"}})).identity


class Server(ThreadingHTTPServer):
    body = b"text,label\ngood,1\nbad,0\n"
    tag = '"one"'
    size: str | None = None  # what HEAD says, if not the body's
    packed = False
    elsewhere = ""
    downloads = 0
    logins: list[str | None]


class Handler(QuietHandler):
    server: Server

    def do_HEAD(self) -> None:
        known = self.path.startswith("/set.csv")
        self.server.logins.append(self.headers.get("Authorization"))
        self.send_response(302 if self.server.elsewhere else 200 if known else 404)
        length = str(len(self.server.body) if known else 0)
        self.send_header("Content-Length", self.server.size or length if self.command == "HEAD" else length)
        self.send_header("ETag", self.server.tag)
        if self.server.packed:
            self.send_header("Content-Encoding", "gzip")
        if self.server.elsewhere:
            self.send_header("Location", self.server.elsewhere)
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        if self.path.startswith("/set.csv"):
            self.server.downloads += 1
            self.wfile.write(self.server.body)


@contextmanager
def running() -> Iterator[Server]:
    with serving(Server(("127.0.0.1", 0), Handler)) as server:
        server.logins = []
        yield server


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def test_http_url_is_downloaded_again_only_when_its_etag_changes(bench, server):
    config = DataConfig(source=f"http://127.0.0.1:{server.server_port}/set.csv?download=true", label="label", split={})
    first = bench.source(config)
    after_first = server.downloads
    assert bench.source(config) == first
    assert server.downloads == after_first
    server.body, server.tag = b"text,label\ngood,1\nworse,0\n", '"two"'
    second = bench.source(config)
    assert second.identity != first.identity
    server.body, server.tag = b"text,label\ngood,1\nweak!,0\n", 'W/"weak"'
    weak = bench.source(config).identity
    server.body = b"text,label\ngood,1\nworse,0\n"
    assert weak != bench.source(config).identity == second.identity, "a weak ETag may stay the same"
    assert table(bench.rows(source=config.source, label="label"), "train")["text"] == ["good", "worse"]
    Path(first.location["files"][0]["path"]).unlink()
    missing = DataConfig(source=f"http://127.0.0.1:{server.server_port}/none.csv")
    with pytest.raises(DataError, match=r"none\.csv"):
        bench.source(missing)


@pytest.mark.parametrize("size", ["10", "0", "9" * 18, "-1", "many"])
def test_what_a_server_says_of_the_size_beforehand_cuts_no_file(bench, server, size):
    """The first rows alone were read, without a word; or the download never ended."""
    server.size = size
    source = f"http://127.0.0.1:{server.server_port}/set.csv"
    assert table(bench.rows(source=source, text="text"), "train") == {"text": ["good", "bad"]}


@pytest.mark.slow
@pytest.mark.parametrize("size", ["10", "0", "9" * 15])
def test_what_an_endpoint_of_s3_says_of_the_size_beforehand_cuts_no_file(bench, tmp_path, monkeypatch, size):
    """As above; of 10^15 bytes the download took a minute."""
    import boto3
    from s3fs import S3FileSystem

    endpoint = start_server()
    bucket = new_bucket(endpoint)
    boto3.client("s3", endpoint_url=endpoint).put_object(Bucket=bucket, Key="set.csv", Body=Server.body)
    S3FileSystem.clear_instance_cache()  # they keep the endpoint
    (tmp_path / "troubles").write_text(json.dumps([{"methods": "HEAD", "part": "set.csv", "size": size}]))
    with proxy_of(endpoint, tmp_path / "troubles") as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        rows = table(bench.rows(source=f"s3://{bucket}/set.csv", text="text"), "train")
    S3FileSystem.clear_instance_cache()
    assert rows == {"text": ["good", "bad"]}


def test_a_body_that_was_compressed_unasked_is_unpacked_to_a_bound(bench, server):
    """600 kB took 600 MB of the disk, and could take all."""
    source = f"http://127.0.0.1:{server.server_port}/set.csv"
    server.body, server.packed = gzip.compress(server.body), True
    assert table(bench.rows(source=source, text="text"), "train") == {"text": ["good", "bad"]}
    server.body, server.tag = gzip.compress(bytes(100 << 20)), '"two"'
    with pytest.raises(DataError, match=r"set\.csv grows from .* bytes to more than"):
        bench.source(DataConfig(source=source))


def test_a_password_is_not_sent_on_to_another_host(bench, server):
    with running() as other:
        server.elsewhere = f"http://localhost:{other.server_port}/set.csv"
        bench.source(DataConfig(source=f"http://me:sesame@127.0.0.1:{server.server_port}/set.csv"))
        assert all(login and login.startswith("Basic") for login in server.logins)
        assert other.downloads == 1 and not any(other.logins)


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
