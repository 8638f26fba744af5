"""What is hidden by shape and by value, in settings, texts, errors and logs."""

from __future__ import annotations

import base64
import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trnflow.flows.recipes.files import recipe_names
from trnflow.flows.recipes.recipe import load
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.system import redaction as redact
from trnflow.tasks.system.redaction import (
    add_secret,
    add_secrets_of,
    fill_variables,
    hide_override,
    hide_secrets,
    scrub,
    scrubbed,
)

SECRET = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=redact.SHORTEST_SECRET, max_size=24
)
CREDENTIAL = st.sampled_from(
    ["token", "X-Amz-Signature", "sig", "api_key", "Access-Token", "client_secret", "password"]
)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_known", {})


def forms(secret: str) -> Iterator[str]:
    yield from (secret, quote(secret, safe=""), quote(secret), quote_plus(secret))
    yield from (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1])
    yield re.sub("%..", lambda found: found[0].lower(), quote(secret, safe=""))


def test_a_secret_that_holds_another_is_hidden_whole() -> None:
    add_secret("hunter42")
    add_secret("hunter42-of-the-staging-server")
    assert scrub("token hunter42-of-the-staging-server, not hunter42") == "token ***, not ***"


def test_a_user_is_a_secret_where_a_url_has_no_password() -> None:
    add_secrets_of({"a": "https://ghp_0123456@host/x", "b": "https://reader:p4ssw0rd@host/x"})
    assert scrub("401 for ghp_0123456; reader may not use p4ssw0rd") == "401 for ***; reader may not use ***"


@given(SECRET, SECRET, CREDENTIAL)
@example("p@ss/w0rd?#", "a&b=c%20d", "token")
def test_no_credential_of_a_url_is_left(password: str, token: str, name: str) -> None:
    redact._known.clear()
    url = f"https://me:{quote(password, safe='')}@host.example:8080/a@b/x.csv?version=2&{name}={quote(token, safe='')}&last=1"
    shown = hide_secrets({"data": {"source": url}})["data"]["source"]
    assert shown == f"https://***@host.example:8080/a@b/x.csv?version=2&{name}=***&last=1"
    add_secrets_of({"data": {"source": url}})
    header = base64.b64encode(f"me:{password}".encode()).decode()
    for said in (f"401 for {url}", f"Authorization: Basic {header}", *forms(password), *forms(token)):
        left = scrub(f"<{said}>")
        assert not [form for form in (*forms(password), *forms(token), header) if form in left and len(form) > 5], left


@given(st.dictionaries(st.sampled_from(["A", "HF_TOKEN"]), SECRET, min_size=1), SECRET)
def test_no_value_of_an_environment_is_left(environment: dict[str, str], other: str) -> None:
    redact._known.clear()
    tree = {"launch": {"environment": environment}, "name": other}
    shown = hide_secrets(tree)
    assert shown == {"launch": {"environment": dict.fromkeys(environment, "***")}, "name": hide_secrets(other)}
    add_secrets_of(tree)
    for value in environment.values():
        assert value not in scrub(f"died with {value!r} ({quote(value)})")


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:5000/#/experiments/1/runs?workflowType=x&viewStateShareKey=trnflow",
        "http://localhost:5000/a@b", "hf://datasets/x@main/train.csv?version=1", "s3://bucket/key=1/token.csv", "mail me@x.org",
        "postgresql://host:5432/db", "a?b=c", "http://${USER}:${PASSWORD}@host/x?token=${TOKEN}&v=1", "https://${AUTH}@h/",
        "http://[::1]:8080/x@y",
    ],
)  # fmt: skip
def test_what_is_no_credential_stays(text: str) -> None:
    assert hide_secrets(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:${PASSWORD}@host/x", "https://***:${PASSWORD}@host/x"),
        ("https://ghp_abc@host/x", "https://***@host/x"),
        ("http://u:p@ss@host/x", "http://***@host/x"),
        ("http://u:p/w@host/x@y", "http://***@host/x@y"),
        ("see http://u:p@h1 and ftp://a:b@h2/?SIG=x&a=b", "see http://***@h1 and ftp://***@h2/?SIG=***&a=b"),
        ("x.csv?token=${T}more", "x.csv?token=***"),
        ("at h?token=${T}: 401 (h?sig=***), 'h?key=***'.", "at h?token=${T}: 401 (h?sig=***), 'h?key=***'."),
    ],
)
def test_parts_that_are_references_stay(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown
    assert hide_secrets(shown) == shown


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_without_secrets_are_shown_as_they_are(name: str) -> None:
    """But for `launch.environment`, of which the names are shown."""
    recipe = load(name)
    written = json.loads(recipe.model_dump_json())
    written["launch"]["environment"] = dict.fromkeys(recipe.launch.environment, "***")
    assert recipe.to_json() == written


def test_overrides_are_shown_without_their_secrets() -> None:
    assert hide_override("launch.environment={A: x}") == "launch.environment=***"
    assert hide_override("launch.environment.A=x") == "launch.environment.A=***"
    assert hide_override("launch.environment.A=${TOKEN}") == "launch.environment.A=${TOKEN}"
    assert hide_override("tracking.uri=http://u:p@h") == "tracking.uri=http://***@h"
    assert hide_override("train.epochs=3") == "train.epochs=3"


def test_variables_are_filled_in_and_hidden_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "pl&ce/of mine")
    assert fill_variables("http://h/${PLACE}/$PLACE", "data.source") == "http://h/pl&ce/of mine/$PLACE"
    assert scrub("no http://h/pl%26ce/of%20mine/x") == "no http://h/${PLACE}/x"
    with pytest.raises(ConfigError, match=r"data\.source: the environment variable NOWHERE is not set"):
        fill_variables("${NOWHERE}", "data.source")


def test_an_error_keeps_what_caused_it_without_secrets() -> None:
    add_secret("hunter2hunter2")
    try:
        try:
            raise OSError("refused hunter2hunter2")
        except OSError as cause:
            raise DataError("can't read it: hunter2hunter2", "not hunter2hunter2") from cause
    except DataError as error:
        found = scrubbed(error)
    assert (found.message, found.fix, str(found)) == (
        "can't read it: ***",
        "not ***",
        "can't read it: ***. Fix: not ***",
    )
    assert found.__cause__ is None
    assert "OSError: refused ***" in found.details


def test_what_libraries_log_is_scrubbed(caplog: pytest.LogCaptureFixture) -> None:
    add_secret("hunter2hunter2")
    before = logging.getLogRecordFactory()
    redact.scrub_logs()
    redact.scrub_logs()
    try:
        try:
            raise ValueError("hunter2hunter2")
        except ValueError:
            logging.getLogger("library").exception("at %s: %d", urlsplit("http://u:p4ssw0rd@h/").geturl(), 401)
        logging.getLogger("library").warning("again with hunter2hunter2")
        logging.getLogger("library").error("outside of any error: hunter2hunter2", exc_info=True)
    finally:
        logging.setLogRecordFactory(before)
    assert "at http://***@h/: 401" in caplog.text
    assert "ValueError: ***" in caplog.text
    assert "again with ***" in caplog.text and "outside of any error: ***" in caplog.text
    assert "hunter2" not in caplog.text


PLANTED = r"""
import logging, sys, warnings
from trnflow.flows.cli.main import main
assert main(["recipes"]) == 0
sys.stdout.flush()
planted = "a file\x1b[2J\x9b2J\rof theirs"
warnings.warn(f"{planted} is warned of")
logging.getLogger("library").warning("%s is logged", planted)
try:
    raise ValueError(planted)
except ValueError:
    logging.getLogger("library").exception("not read")
"""


def test_warnings_and_log_records_reach_the_terminal_with_escapes() -> None:
    done = subprocess.run([sys.executable, "-c", PLANTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = r"a file\x1b[2J\x9b2J\rof theirs"
    for line in (f"UserWarning: {shown} is warned of", f"{shown} is logged", f"ValueError: {shown}"):
        assert line in done.stderr
    assert not set("\x1b\x9b\r") & set(done.stderr)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("learning_rate", True), ("tokenizer", True), ("max_length", True), ("pad_token", True), ("max_tokens", True),
        ("hf_token", False), ("token", False), ("AWS_SECRET_ACCESS_KEY", False), ("api-key", False), ("password", False),
        ("environment", False), ("github_pat", False),
    ],
)  # fmt: skip
def test_names_that_speak_of_secrets_are_dropped(name: str, kept: bool) -> None:
    assert (name in redact.without_secrets({name: "x"})) is kept


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.tuples(inner)))
def test_redaction_keeps_what_is_no_secret(value: object) -> None:
    assert json.dumps(redact.without_secrets({"a": value})) == json.dumps({"a": value})


@pytest.mark.parametrize("name", [f"{'a' * 300}token", f"token{'a' * 300}"])
def test_a_secret_with_a_long_name_is_hidden(name: str) -> None:
    text = f"http://host/x?{name}=hunter42"
    assert hide_secrets(text) == f"http://host/x?{name}=***"
    add_secrets_of(text)
    assert scrub("hunter42") == "***"


def test_an_error_that_quotes_a_value_of_any_length_is_cut() -> None:
    """A field of a forged document filled the terminal with megabytes."""
    error = redact.scrubbed(DataError("x" * 2_000_000, "y" * 2_000_000))
    assert error.message == error.args[0] == "x" * redact.LONGEST + "..." and len(error.fix) == redact.LONGEST + 3


@pytest.mark.parametrize("text", ["a" * 200_000, "http://x?" + "token" * 40_000, "http://x?" + "token" * 40_000 + "="])
def test_a_long_text_takes_no_time_with_the_square_of_its_length(text: str) -> None:
    """Prefect may send a parameter of a megabyte, for which a command computed for hours."""
    began = time.process_time()
    add_secrets_of(text)
    assert scrub(text) == text
    assert time.process_time() - began < 3
