from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.helpers.hub_server import COMMIT, run_program, serve
from trnflow.tasks.artifact import Source
from trnflow.tasks.errors import ConfigError, ModelError
from trnflow.tasks.sources.model_source import ModelConfig, model_folder, model_source, tokenizer_folder
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.sentence_files import MODULES, sentence_files
from trnflow.tasks.training.checkpoint.shards import safetensors_header
from trnflow.tasks.training.config import TrainConfig, check_model


def resolve(tmp_path: Path, **config: Any) -> Source:
    return model_source(ModelConfig(**config), Resolver(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert", "hidden_dropout_prob": 0.1}')
    (folder / "model.safetensors").write_bytes(safetensors_header([]))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("words")
    return folder


def test_a_local_model_is_known_by_its_bytes_not_its_path(folder: Path, tmp_path: Path) -> None:
    source = resolve(tmp_path, source=str(folder))
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    (moved / "README.md").write_text("other words")
    assert resolve(tmp_path, source=str(moved)).identity == source.identity
    assert model_folder(source) == folder
    assert tokenizer_folder(source) == folder
    assert str(tmp_path) not in json.dumps(source.identity)


def test_each_part_changes_alone(folder: Path, tmp_path: Path) -> None:
    before = resolve(tmp_path, source=str(folder)).identity
    weights, changed = safetensors_header([("added", "F32", [0], 0)]), b'{"changed": 1}'
    for part, file, content in (
        ("weights", "model.safetensors", weights),
        ("tokenizer", "tokenizer.json", changed),
        ("config", "config.json", changed),
    ):
        original = (folder / file).read_bytes()
        (folder / file).write_bytes(content)
        after = resolve(tmp_path, source=str(folder)).identity
        assert [name for name in before if before[name] != after[name]] == [part]
        (folder / file).write_bytes(original)


def test_from_scratch_needs_an_architecture_and_overrides_apply_to_both(folder: Path, tmp_path: Path) -> None:
    scratch = resolve(tmp_path, config={"model_type": "bert", "hidden_size": 8}, overrides={"hidden_size": 16})
    assert scratch.identity["config"] == {"pretrained": None, "overrides": {"model_type": "bert", "hidden_size": 16}}
    assert model_folder(scratch) is None
    both = resolve(tmp_path, source=str(folder), config={"model_type": "llama"}, overrides={"hidden_dropout_prob": 0.0})
    assert both.identity["config"]["overrides"] == {"hidden_dropout_prob": 0.0}
    with pytest.raises(ValueError, match="model_type"):
        ModelConfig()


def test_a_tokenizer_may_live_elsewhere(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "tokenizer"
    other.mkdir()
    (other / "tokenizer.json").write_text('{"other": 1}')
    source = resolve(tmp_path, source=str(folder), tokenizer=str(other))
    assert tokenizer_folder(source) == other
    assert model_folder(source) == folder


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8"),
        ({"text_config": {"quantization_config": {"quant_method": "gptq", "bits": 4}}}, "gptq"),
        ({"compression_config": {"format": "int-quantized"}}, "int-quantized"),
    ],
)
def test_quantised_weights_are_refused(folder: Path, tmp_path: Path, config: dict[str, Any], kind: str) -> None:
    """`plan` checks the model, so that nothing runs before."""
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    with pytest.raises(
        ModelError, match=rf"{folder} are quantised \(quantization_config: .*{kind}.*Fix: set model\.source"
    ):
        check_model(TrainConfig(), resolve(tmp_path, source=str(folder)))
    with pytest.raises(ModelError, match="quantised"):
        check_model(TrainConfig(), resolve(tmp_path, config={"model_type": "llama", **config}))
    (folder / "config.json").write_text('{"model_type": "llama", "quantization_config": null}')
    check_model(TrainConfig(), resolve(tmp_path, source=str(folder)))


def test_pickled_weights_are_refused_and_a_missing_folder_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled"):
        resolve(tmp_path, source=str(folder))
    with pytest.raises(ConfigError, match=r"\./nowhere"):
        resolve(tmp_path, source="./nowhere")


def test_an_adapter_of_peft_is_no_model(folder: Path, tmp_path: Path) -> None:
    """A folder of peft's save_pretrained holds what LoRA trained alone; beside whole weights it would be left out."""
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in ("adapter_config.json", "tokenizer.json"):
        (adapter / name).write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(safetensors_header([]))
    said = "holds an adapter (adapter_config.json), which training here does not read. Fix: "
    with pytest.raises(ModelError, match=re.escape(f"{said}merge it with its base model once")):
        resolve(tmp_path, source=str(adapter))
    assert tokenizer_folder(resolve(tmp_path, source=str(folder), tokenizer=str(adapter))) == adapter
    shutil.copytree(adapter, folder / "adapter")
    with pytest.raises(ModelError, match=re.escape(f"{said}give {folder}, whose weights have it, or merge")):
        resolve(tmp_path, source=str(folder / "adapter"))
    assert model_folder(resolve(tmp_path, source=str(folder))) == folder, "as `trnflow get` writes a model of LoRA"
    shutil.copy(adapter / "adapter_config.json", folder)
    with pytest.raises(ModelError, match=re.escape(f"{folder} {said}")):
        resolve(tmp_path, source=str(folder))


def test_a_folder_without_weights_is_remarked(folder: Path, tmp_path: Path) -> None:
    assert resolve(tmp_path, source=str(folder)).note == ""
    (folder / "model.safetensors").unlink()
    told = f"{folder} holds no weights (*.safetensors): the model begins from nothing"
    assert resolve(tmp_path, source=str(folder)).note == told
    assert resolve(tmp_path, config={"model_type": "bert"}).note == ""


PROGRAM = """
import json, sys
from pathlib import Path
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.sources.model_source import ModelConfig, model_folder, model_source
from trnflow.tasks.sources.resolver import Resolver
home, answers = Path(sys.argv[1]), []
for name, offline in (("me/set", False), ("me/set", True), ("secret/set", False), ("me/none", False), ("me/never", True)):
    try:
        source = model_source(ModelConfig(source=name), Resolver(home, offline=offline))
        answers.append({"identity": source.identity, "note": source.note})
    except TrnflowError as error:
        answers.append(error.to_json())
answers.append(sorted(path.name for path in model_folder(model_source(ModelConfig(source="me/set"), Resolver(home))).iterdir()))
print(json.dumps(answers))
"""


def test_hub_names_through_the_real_client(folder: Path, tmp_path: Path) -> None:
    """Pinned to a commit; offline the last resolution serves and says so; gated and unknown names say what to do."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with serve(files, "models") as address:
        answers = run_program(PROGRAM, address, tmp_path / "hf", str(tmp_path / "home"))
    online, offline, gated, unknown, never, fetched = answers
    assert online["identity"]["weights"] == {"repo": "me/set", "commit": COMMIT}
    assert online["identity"]["config"]["pretrained"]["model_type"] == "bert"
    assert offline["identity"] == online["identity"]
    assert (online["note"], offline["note"]) == ("", "last resolution")
    assert gated["type"] == "ModelError"
    assert "HF_TOKEN" in gated["fix"]
    assert "gated" in gated["message"]
    assert "me/none" in unknown["message"]
    assert never["type"] == "ConfigError"
    assert fetched == ["config.json", "model.safetensors"]


PICKLED = """
import json, sys
from pathlib import Path
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_source import ModelConfig, model_source
from trnflow.tasks.sources.resolver import Resolver
try:
    model_source(ModelConfig(source="me/set"), Resolver(Path(sys.argv[1])))
except ModelError as error:
    print(json.dumps(error.to_json()))
"""


def test_an_adapter_on_the_hub_is_refused(tmp_path: Path) -> None:
    with serve({"adapter_config.json": b"{}", "adapter_model.safetensors": b""}, "models") as address:
        refused = run_program(PICKLED, address, tmp_path / "hf", str(tmp_path / "home"))
    assert "me/set holds an adapter (adapter_config.json)" in refused["message"]


def test_pickled_weights_on_the_hub_are_refused_before_they_are_downloaded(folder: Path, tmp_path: Path) -> None:
    files = {"config.json": (folder / "config.json").read_bytes(), "pytorch_model.bin": b""}
    with serve(files, "models") as address:
        refused = run_program(PICKLED, address, tmp_path / "hf", str(tmp_path / "home"))
    assert "me/set holds only pickled weights" in refused["message"]


@pytest.mark.parametrize("name", ["a b", "org/model/more", "../up", "org/"])
def test_a_name_that_no_hub_could_have_is_refused(name: str) -> None:
    assert ModelConfig(source="here", name="org/model-1.0").name == "org/model-1.0"
    with pytest.raises(ValidationError, match="is no hub name: write org/model"):
        ModelConfig(source="here", name=name)


@pytest.mark.parametrize(
    ("pooling", "said"),
    [
        ({"pooling_mode": "cls"}, "cls"), ({"pooling_mode": ["cls", "mean"]}, "cls+mean"), (None, None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls+mean"),
    ],
)  # fmt: skip
def test_the_pooling_is_that_of_either_form_of_its_file(pooling: dict[str, Any] | None, said: str | None) -> None:
    modules = [
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "x.Normalize", "path": "2"},
    ]
    files: dict[str, Any] = {MODULES: modules, **({"1_Pooling/config.json": pooling} if pooling else {})}
    found = sentence_files(files, files.__getitem__)
    assert found is not None and (found["modules"], found["pooling"]) == (["Pooling", "Normalize"], said)
    assert sentence_files(files.keys() - {MODULES}, files.__getitem__) is None


@pytest.mark.parametrize(
    ("vocab", "said"),
    [
        ({"[PAD]": 0, "sun": 1, "moon": 2}, ""),
        (
            {"[PAD]": 0, "moon": 1, "sun": 2, "more": 3},
            "2 of 3 ids are other tokens.*such as 1, 'sun' there and 'moon' here",
        ),
        ([["[PAD]", 0.0], ["\u2581sun", -1.0], ["\u2581moon", -2.0]], "2 of 3 ids are other tokens"),
        ({"[PAD]": 0, "more": 3}, ""),
        (None, ""),
    ],
)
def test_a_tokenizer_of_another_model_is_remarked(folder: Path, tmp_path: Path, vocab: Any, said: str) -> None:
    """Ids within the vocabulary fit any model: training went on with words exchanged, and nothing said so."""
    own = {"model": {"vocab": {"[PAD]": 0, "sun": 1}}, "added_tokens": [{"id": 2, "content": "moon"}]}
    (folder / "tokenizer.json").write_text(json.dumps(own))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}} if vocab else []))
    note = resolve(tmp_path, source=str(folder), tokenizer=str(tmp_path / "other")).note
    assert bool(note) == bool(said) and re.search(said, note)
    assert not resolve(tmp_path, source=str(folder), tokenizer=str(folder)).note


def test_a_few_ids_that_were_unused_may_have_words(folder: Path, tmp_path: Path) -> None:
    for place, word in ((folder, "[unused0]"), (tmp_path / "other", "team")):
        place.mkdir(exist_ok=True)
        vocab = {**{f"word{number}": number for number in range(9)}, word: 9}
        (place / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}}))
    assert not resolve(tmp_path, source=str(folder), tokenizer=str(tmp_path / "other")).note
