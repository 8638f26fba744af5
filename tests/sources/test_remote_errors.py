"""What a person reads when a store or a source can't be reached: the cause, and a fix that helps."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.helpers.command_line import Shell
from tests.helpers.serving import QuietHandler, address_of, serving
from trnflow.tasks.errors import DataError
from trnflow.tasks.load_data import DataConfig
from trnflow.tasks.sources.remote_errors import explain_error

NO_METADATA = {"AWS_EC2_METADATA_DISABLED": "true"}  # botocore asks the cloud's own server for credentials last


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "demo", "store.root=s3://a-bucket/store"],
        ["run", "demo", "--direct", "--until", "load_data", "data.source=s3://a-bucket/rows.csv"],
    ],
)
def test_s3_without_credentials_names_the_url_and_the_variables(arguments: list[str], tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    shell.environ = {name: value for name, value in shell.environ.items() if not name.startswith("AWS")}
    said = shell.error(*arguments, code=1, HOME=str(tmp_path), **NO_METADATA)
    assert "s3://a-bucket/" in said and "no credentials" in said
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in said
    assert "unexpected" not in said


class Answers(QuietHandler):
    def do_HEAD(self) -> None:
        self.answer(int(self.path[1:4]))

    do_GET = do_HEAD


@pytest.fixture
def url() -> Iterator[str]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Answers)) as server:
        yield address_of(server)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, r"refused access \(401\). Fix: check the credentials"),
        (403, r"refused access \(403\). Fix: check the credentials"),
        (404, r"has no such file \(404\). Fix: check the URL"),
        (503, r"failed \(503\). Fix: try again later"),
    ],
)
def test_a_web_server_that_refuses_is_told_by_what_it_answered(status: int, says: str, url: str, bench) -> None:
    with pytest.raises(DataError, match=f"{url}/{status}.csv: the server {says}"):
        bench.source(DataConfig(source=f"{url}/{status}.csv"))


def test_a_web_server_that_is_not_there_is_told_so(bench) -> None:
    with pytest.raises(
        DataError, match=r"http://127.0.0.1:9/rows.csv: can't be read: .*\. Fix: check the URL, the net"
    ):
        bench.source(DataConfig(source="http://127.0.0.1:9/rows.csv"))


def test_the_first_cause_is_told_in_its_own_words() -> None:
    caused, silent = OSError("request failed"), OSError("request failed")
    caused.__cause__, silent.__cause__ = ValueError("the  host\nhung up"), TimeoutError()
    assert explain_error(caused, "https://h/x.csv")[0] == "can't be read: the host hung up"
    assert explain_error(silent, "https://h/x.csv")[0] == "can't be read: TimeoutError"
