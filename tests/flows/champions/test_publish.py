"""Publish a small model to a folder and to a real S3 server; read what arrived with transformers and boto3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.s3_server import s3_endpoint, s3_root  # noqa: F401 - fixtures
from tests.helpers.small_disk import fill, small_disk
from tests.helpers.small_models import bert
from trnflow.flows.champions.publish import publish, with_results
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import ConfigError, StoreError
from trnflow.tasks.store import Store

EVALUATION = {
    "task": "classification",
    "split": "test",
    "metrics": {"accuracy": 0.75, "f1_weighted": 0.7, "f1_ci": [0, 1]},
}
CARD = "---\nlibrary_name: transformers\ndatasets:\n- me/set\n---\n# A model\n"


def model(store: Store, folder: Path, *, weights: bytes = b"weights" * 10_000) -> Artifact:
    """A model with a card and an adapter, and no bytes that load."""
    folder.mkdir()
    for name, data in {"config.json": b'{"model_type": "bert"}', "model.safetensors": weights}.items():
        (folder / name).write_bytes(data)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text(CARD)
    (folder / "adapter").mkdir()
    (folder / "adapter/adapter_config.json").write_text("{}")
    (folder / "adapter/adapter_model.safetensors").write_bytes(b"adapter")
    return store.ingest(folder, "model", {"task": "classification"})


def sent(store: Store, artifact: Artifact, to: str, what: str = "model") -> tuple[Any, list[str]]:
    said: list[str] = []
    return publish(store, artifact, what, to, EVALUATION, said.append), said


def interrupt(text: str) -> None:
    if text == "copying model.safetensors":
        raise KeyboardInterrupt


@pytest.mark.slow  # imports torch and transformers
def test_a_folder_is_a_model_that_transformers_loads(store: Store, tmp_path: Path) -> None:
    from transformers.models.auto import AutoModelForSequenceClassification

    bert(tmp_path / "made")
    sent(store, store.ingest(tmp_path / "made", "model", {}), str(tmp_path / "out"))
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", local_files_only=True).num_labels == 3


def test_a_published_card_has_the_results_and_the_artifact_never_changes(store: Store, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    artifact, to = model(store, tmp_path / "made"), tmp_path / "out/tiny"
    done, said = sent(store, artifact, str(to))
    assert done.copied == done.files == len(said)
    assert said[-1] == "copying config.json"
    assert not (to / "adapter").exists()
    results: Any = ModelCard.load(to / "README.md").data
    assert results.model_name == "tiny"
    assert [(one.metric_name, one.metric_value) for one in results.eval_results] == [
        ("accuracy", 0.75),
        ("f1_weighted", 0.7),
    ]
    assert results.eval_results[0].dataset_type == "me/set"
    digest = next(file.digest for file in artifact.files if file.path == "README.md")
    assert (
        Path(store.root) / "blobs/sha256" / digest[7:9] / digest[7:]
    ).read_text() == CARD  # the artifact never changes
    assert sent(store, artifact, str(to))[0].copied == 0
    sent(store, artifact, str(tmp_path / "adapter"), "adapter")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_an_interrupted_copy_does_not_load_and_goes_on(store: Store, tmp_path: Path) -> None:
    artifact, to = model(store, tmp_path / "made"), tmp_path / "out/tiny"

    with pytest.raises(KeyboardInterrupt):
        publish(store, artifact, "model", str(to), EVALUATION, interrupt)
    assert not to.exists()
    assert not (to.with_name(".tiny.partial") / "config.json").exists()
    done, said = sent(store, artifact, str(to))
    assert "copying model.safetensors" in said
    assert 0 < done.copied < done.files
    assert [path.name for path in to.parent.iterdir()] == ["tiny"]


def test_another_model_in_the_way_is_left_untouched(store: Store, tmp_path: Path) -> None:
    first, second = model(store, tmp_path / "a"), model(store, tmp_path / "b", weights=b"others" * 10_000)
    sent(store, first, str(tmp_path / "out"))
    before = (tmp_path / "out/model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="exists and is not an empty folder"):
        sent(store, second, str(tmp_path / "out"))
    assert (tmp_path / "out/model.safetensors").read_bytes() == before
    with pytest.raises(ConfigError, match=r"--what export needs exported"):
        sent(store, first, str(tmp_path / "x"), "export")


def test_an_existing_empty_folder_is_filled_with_the_config_last(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import ModelCard

    artifact, to = model(store, tmp_path / "made"), tmp_path / "here"
    to.mkdir()
    monkeypatch.chdir(to)

    def interrupt(text: str) -> None:
        if text == "copying tokenizer.json":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(store, artifact, "model", ".", EVALUATION, interrupt)
    assert {path.name for path in to.iterdir()} == {"README.md", "model.safetensors"}
    done, said = sent(store, artifact, ".")
    assert done.copied == 2 and said == ["copying tokenizer.json", "copying config.json"]
    card: Any = ModelCard.load(to / "README.md").data
    assert card.model_name == "here"
    (to / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"here exists and is not an empty folder: it holds notes.txt"):
        sent(store, artifact, ".")
    with pytest.raises(ConfigError, match="notes.txt is a file"):
        sent(store, artifact, "notes.txt")
    with pytest.raises(ConfigError, match="the destination is an empty text"):
        sent(store, artifact, "")


def test_a_full_destination_is_named_and_the_copy_goes_on(store: Store, tmp_path: Path) -> None:
    artifact = model(store, tmp_path / "made")
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        ballast = fill(disk, leave=20_000)
        with pytest.raises(StoreError) as refused:
            sent(store, artifact, str(disk / "out"))
        assert f"there is no room for {disk / 'out'}: No space left" in refused.value.message
        assert (
            refused.value.fix
            == "free some space there, or name another disk; the same command goes on with what is copied"
        )
        assert {path.name for path in disk.iterdir()} == {"ballast", ".out.partial"}
        assert {path.name for path in (disk / ".out.partial").iterdir()} == {"README.md"}
        ballast.unlink()
        assert sent(store, artifact, str(disk / "out"))[1][0] == "copying model.safetensors"
        assert (disk / "out/config.json").exists()


def test_a_prefix_never_holds_the_files_of_two_models(store: Store, tmp_path: Path, s3_root: str) -> None:  # noqa: F811
    import os

    import boto3

    first, to = model(store, tmp_path / "a"), s3_root.replace("/store", "/mixed")
    (tmp_path / "b").mkdir()
    for name in ("config.json", "model-00001-of-00002.safetensors"):
        (tmp_path / "b" / name).write_text("{}")
    second = store.ingest(tmp_path / "b", "model", {})

    def interrupt(text: str) -> None:
        if text == "copying config.json":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(store, second, "model", to, None, interrupt)
    with pytest.raises(ConfigError, match="holds model-00001-of-00002.safetensors, which is not of this model"):
        sent(store, first, to)
    client, bucket = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]), to.split("/")[2]
    listed = client.list_objects_v2(Bucket=bucket, Prefix="mixed/")["Contents"]
    assert [one["Key"] for one in listed] == ["mixed/model-00001-of-00002.safetensors"]
    client.delete_object(Bucket=bucket, Key="mixed/model-00001-of-00002.safetensors")
    assert sent(store, first, to)[0].copied == 4
    with pytest.raises(ConfigError, match=r"^nosuch://x is no folder and no known kind of URL\. Fix: "):
        sent(store, first, "nosuch://x")


def test_an_object_store_gets_the_config_last_and_is_resumed(store: Store, tmp_path: Path, s3_root: str) -> None:  # noqa: F811
    import os

    import boto3

    artifact, to = model(store, tmp_path / "made"), s3_root.replace("/store", "/tiny")
    bucket, client = to.split("/")[2], boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])

    def there() -> set[str]:
        return {one["Key"] for one in client.list_objects_v2(Bucket=bucket, Prefix="tiny/").get("Contents", [])}

    with pytest.raises(KeyboardInterrupt):
        publish(store, artifact, "model", to, EVALUATION, interrupt)
    assert there() and "tiny/config.json" not in there()
    said = sent(store, artifact, to)[1]
    assert said == ["copying model.safetensors", "copying tokenizer.json", "copying config.json"]
    assert there() == {f"tiny/{file.path}" for file in artifact.files if not file.path.startswith("adapter/")}
    config = client.get_object(Bucket=bucket, Key="tiny/config.json")["Body"].read()
    assert json.loads(config)["model_type"] == "bert"
    assert sent(store, artifact, to)[0].copied == 0
    with pytest.raises(ConfigError, match="holds another model"):
        sent(store, model(store, tmp_path / "b", weights=b"others" * 10_000), to)
    assert client.get_object(Bucket=bucket, Key="tiny/config.json")["Body"].read() == config
    with pytest.raises(StoreError, match="there is no bucket"):
        sent(store, artifact, "s3://no-such-bucket-here/tiny")


def test_a_card_without_metadata_gets_results_too() -> None:
    text = with_results("# A model\n", "tiny", EVALUATION)
    assert "model-index" in text and text.endswith("# A model\n")
