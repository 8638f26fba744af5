"""Publish to a hub on this machine by the hub's real client, and open what arrived with transformers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, constants, utils

from tests.helpers.command_line import InProcessShell
from tests.helpers.hub_uploads import TOKEN, UploadHub, serve_uploads
from tests.helpers.metadata import metadata_of
from tests.helpers.small_models import bert, tokenizer
from trnflow.flows.champions.hub import _client_options
from trnflow.flows.champions.publish import Published, publish
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.store import Store

TO = "hf://me/tiny"
EVALUATION = {"task": "classification", "split": "test", "metrics": {"accuracy": 0.75}}
CARD = "---\nlibrary_name: transformers\n---\n# A model\n"
FILES = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
OPEN = """
import json, sys, transformers
model = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
(found,) = transformers.pipeline("text-classification", sys.argv[1])("the cat sat")
print(json.dumps([model.num_labels, found["label"], model.classifier.weight.tolist()]))
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[UploadHub]:
    """A hub that this process's client asks, with a token that may write."""
    with serve_uploads("me/tiny") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def model(store: Store, folder: Path) -> Artifact:
    """A model with a card and an adapter, and no bytes that load."""
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(name)
    (folder / "README.md").write_text(CARD)
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_text("{}")
    (folder / "adapter/adapter_model.safetensors").write_bytes(b"adapter")
    return store.ingest(folder, "model", metadata_of("consolidate"))


def shards(store: Store, folder: Path, *weights: bytes, config: bytes = b"{}") -> Artifact:
    """A model of which the hub sees only files. weights: the bytes of each shard."""
    folder.mkdir()
    (folder / "config.json").write_bytes(config)
    for number, data in enumerate(weights):
        (folder / f"model-{number}.safetensors").write_bytes(data)
    return store.ingest(folder, "model", metadata_of("consolidate"))


def sent(
    store: Store, artifact: Artifact, what: str = "model", *, replace: bool = False
) -> tuple[Published, list[str]]:
    said: list[str] = []
    return publish(store, artifact, what, TO, EVALUATION, said.append, replace=replace), said


def puts(hub: UploadHub) -> list[str]:
    return [line for line in hub.asked if line.startswith("PUT")]


def test_the_config_is_the_last_commit_and_the_card_has_the_results(
    hub: UploadHub, store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    artifact = model(store, tmp_path / "made")
    done, said = sent(store, artifact)
    assert hub.names == FILES and done.copied == done.files == len(FILES)
    first, second = hub.commits[1:]
    assert set(second[1]) - set(first[1]) == {"config.json"}
    assert first[0] == second[0] == f"Publish model {artifact.digest[:19]}"
    assert said[-2:] == ["committing 4 files", "committing 1 files"]
    weights = next(file.digest for file in artifact.files if file.path == "model.safetensors")
    assert [*hub.large] == [weights.removeprefix("sha256:")] and len(puts(hub)) == 1
    card: Any = ModelCard(hub.files["README.md"].decode()).data
    assert card.model_name == "tiny" and card.eval_results[0].metric_value == 0.75
    assert not [line for line in hub.asked if "xet" in line]
    again, said = sent(store, artifact)
    assert (again.copied, said, len(hub.commits), len(puts(hub))) == (0, [], 3, 1)
    written = capfd.readouterr()
    assert TOKEN not in written.out + written.err + json.dumps(hub.asked)


def test_an_adapter_and_an_export_have_repositories_of_their_own(hub: UploadHub, store: Store, tmp_path: Path) -> None:
    artifact = model(store, tmp_path / "made")
    assert sent(store, artifact, "adapter")[0].files == 2
    assert hub.names == {"adapter_config.json", "adapter_model.safetensors"}
    assert "adapter_config.json" not in hub.commits[-2][1]
    with pytest.raises(ConfigError, match=r"hf://me/tiny holds adapter_config.json, which is not of this model"):
        sent(store, artifact)
    (tmp_path / "export").mkdir()
    for name in ("export.json", "16.mlir", "weights.npz", "README.md"):
        (tmp_path / "export" / name).write_text(name)
    exported = store.ingest(tmp_path / "export", "exported", metadata_of("export_neuron"))
    before = len(hub.commits)
    assert sent(store, exported, "export", replace=True)[0].copied == 4
    assert hub.names == {"export.json", "16.mlir", "weights.npz", "README.md"}
    assert len(hub.commits) == before + 1  # in between, nothing would load


def test_an_export_does_not_replace_a_model_whose_file_names_it_has(
    hub: UploadHub, store: Store, tmp_path: Path
) -> None:
    sent(store, model(store, tmp_path / "made"))
    (tmp_path / "export").mkdir()
    for name in ("export.json", "config.json", "model.safetensors"):
        (tmp_path / "export" / name).write_text(f"{{}} {name}")
    exported = store.ingest(tmp_path / "export", "exported", metadata_of("export_neuron"))
    before = hub.files
    with pytest.raises(ConfigError, match="which is not of this model"):
        sent(store, exported, "export")
    assert hub.files is before


def test_another_model_is_replaced_in_one_commit_and_only_if_asked(
    hub: UploadHub, store: Store, tmp_path: Path
) -> None:
    first = shards(store, tmp_path / "a", b"one", b"two", config=b'{"a": 1}')
    second = shards(store, tmp_path / "b", b"three", config=b'{"b": 1}')
    sent(store, first)
    before, asked = hub.files, len(hub.asked)
    with pytest.raises(ConfigError, match=r"holds model-1.safetensors, .* Fix: .* by --replace"):
        sent(store, second)
    assert hub.files is before and not [line for line in hub.asked[asked:] if "commit" in line or "PUT" in line]
    assert sent(store, second, replace=True)[0].copied == 2
    assert hub.names == {"config.json", "model-0.safetensors"} and len(hub.commits) == 4
    assert hub.files["model-0.safetensors"] == b"three" and hub.files[".gitattributes"]
    with pytest.raises(ConfigError, match=r"--replace is for hf:// alone"):
        publish(store, first, "model", str(tmp_path / "out"), None, print, replace=True)


def test_the_model_stays_when_somebody_else_commits_meanwhile(hub: UploadHub, store: Store, tmp_path: Path) -> None:
    sent(store, shards(store, tmp_path / "a", b"one"))

    def meddle(method: str, path: str) -> None:
        if "/preupload/" in path:
            hub.commit("by hand", {**hub.files, "notes.txt": b"mine"})

    hub.refuse = meddle  # type: ignore[assignment]
    with pytest.raises(StoreError, match=r"A commit has happened since.* somebody else changed the repository"):
        sent(store, shards(store, tmp_path / "b", b"two"), replace=True)
    assert hub.files["model-0.safetensors"] == b"one" and hub.files["notes.txt"] == b"mine"


def test_a_file_that_the_hub_leaves_out_is_found(hub: UploadHub, store: Store, tmp_path: Path) -> None:
    hub.ignored = ("model-1.safetensors",)
    with pytest.raises(StoreError, match=r"does not hold model-1.safetensors as it was sent"):
        sent(store, shards(store, tmp_path / "a", b"one", b"two"))


@pytest.mark.parametrize(
    ("part", "status", "message", "fix"),
    [
        ("/repos/create", 401, "Invalid username or password.", "does not know the token"),
        ("/repos/create", 403, "You have no rights", "check the name, the quota, and that the token may write to me/tiny"),
        ("/repos/create", 500, "Internal Error", "check the network and HF_ENDPOINT"),
        ("/objects/batch", 403, "Private repository storage limit reached", "check the name, the quota"),
        ("/large/", 400, "broken", "goes on with what is uploaded"),
        ("/commit/", 403, "Forbidden: pass `create_pr=1`", "the token may write"),
    ],
)  # fmt: skip
def test_a_hub_that_refuses_is_one_line(
    part: str, status: int, message: str, fix: str, hub: UploadHub, store: Store, tmp_path: Path
) -> None:
    hub.refuse = lambda method, path: (status, message) if method != "GET" and part in path else None
    artifact = shards(store, tmp_path / "a", b"one", b"two")
    with pytest.raises(StoreError) as refused:
        sent(store, artifact)
    assert refused.value.message.startswith("publishing to hf://me/tiny failed: ") and fix in refused.value.fix
    assert message in refused.value.message and "\n" not in str(refused.value) and TOKEN not in str(refused.value)
    assert "config.json" not in hub.files
    hub.refuse = lambda method, path: None
    sent(store, artifact)
    assert hub.names == {"config.json", "model-0.safetensors", "model-1.safetensors"}


def test_no_token_no_hub_and_bad_names(
    hub: UploadHub, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = shards(store, tmp_path / "a", b"one")
    for name in ("hf://tiny", "hf://datasets/me/tiny", "hf://me/tiny@main", "hf://me/ti ny", "hf://"):
        with pytest.raises(ConfigError, match=f"{name} is no name of a model repository"):
            publish(store, artifact, "model", name, None, print)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(StoreError, match=r"Fix: `hf auth login` or set HF_TOKEN: no token was found"):
        sent(store, artifact)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(StoreError, match=r"failed: .*Connection refused.* Fix: check the network"):
            sent(store, artifact)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(StoreError, match="HF_HUB_OFFLINE"):
        sent(store, artifact)
    assert hub.commits == []


def test_a_card_that_the_hub_does_not_like_is_told_with_its_reason(
    hub: UploadHub, store: Store, tmp_path: Path
) -> None:
    said = '"base_model[0]" is not a valid model id'
    hub.refuse = lambda method, path: (400, said) if path == "/api/validate-yaml" else None
    with pytest.raises(StoreError) as refused:
        sent(store, model(store, tmp_path / "made"))
    assert refused.value.message.endswith(f"failed: Invalid metadata in README.md. - {said}")
    assert refused.value.fix.startswith("change what the hub names") and hub.names == set()


def test_the_command_says_what_it_published_and_a_refusal_is_an_error(
    hub: UploadHub, store: Store, tmp_path: Path
) -> None:
    shell, digest = InProcessShell(tmp_path), model(store, tmp_path / "made").digest[7:19]
    hub.refuse = lambda method, path: (403, "You have no rights") if "/commit/" in path else None
    said = shell.error("publish", digest, TO, "--store", store.root, code=1)
    assert "error: publishing to hf://me/tiny failed: You have no rights\n  fix: check the name" in said
    hub.refuse = lambda method, path: None
    done = shell("publish", digest, TO, "--store", store.root)
    assert done.stdout.startswith(f"published model sha256:{digest} to hf://me/tiny: 5 files, ")
    again = shell("publish", digest, TO, "--store", store.root)
    assert again.stdout.endswith("(all there already)\n") and TOKEN not in said + done.stdout + done.stderr


@pytest.mark.slow
def test_after_a_kill_only_what_is_missing_is_uploaded(store: Store, tmp_path: Path) -> None:
    artifact = shards(store, tmp_path / "made", b"one" * 1000, b"two" * 1000, b"three" * 1000)
    held, release = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> None:
        if method == "PUT" and len(hub.large) == 1 and not release.is_set():
            held.set()
            release.wait(60)

    with serve_uploads("me/tiny") as hub:
        hub.refuse = hold  # type: ignore[assignment]
        environ = os.environ | {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
        command = [
            sys.executable,
            "-m",
            "trnflow",
            "publish",
            artifact.digest[7:19],
            TO,
            "--store",
            store.root,
            "--json",
        ]
        killed = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert held.wait(60)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        (kept,) = hub.large
        release.set()
        assert hub.names == set()
        asked = len(hub.asked)
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["copied"] == 4 and TOKEN not in done.stdout + done.stderr
        assert f"PUT /large/{kept}" not in hub.asked[asked:]
        assert hub.names == {"config.json", *(f"model-{number}.safetensors" for number in range(3))}


@pytest.mark.slow
def test_transformers_opens_what_was_published(hub: UploadHub, store: Store, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    bert(tmp_path / "made")
    tokenizer(tmp_path / "made")
    (tmp_path / "made/tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    sent(store, store.ingest(tmp_path / "made", "model", metadata_of("consolidate")))
    environ = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "client"), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run([sys.executable, "-c", OPEN, "me/tiny"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, label, weight = json.loads(done.stdout.splitlines()[-1])
    assert count == 3 and label in ("anger", "joy", "sad $10")
    published = tmp_path / "published.safetensors"
    published.write_bytes(hub.files["model.safetensors"])
    assert load_file(published)["classifier.weight"].tolist() == weight


def test_progress_bars_are_as_they_were_after_an_upload() -> None:
    try:
        for disabled in (False, True):
            (utils.disable_progress_bars if disabled else utils.enable_progress_bars)()
            with _client_options():
                assert utils.are_progress_bars_disabled() and constants.HF_HUB_DISABLE_XET
            assert utils.are_progress_bars_disabled() == disabled
    finally:
        utils.enable_progress_bars()
