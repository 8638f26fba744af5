"""The model's folder opens by `pipeline`, the adapter by peft's auto class, each with no other argument than the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import figures
from tests.clients.conftest import RunClient
from tests.helpers.checkpoints import NOTHING, checkpoint
from tests.helpers.hub_server import serve
from tests.helpers.small_models import llama, tokenizer, workdir
from tests.training.run_stage import run_stage, traced_and_trained
from tests.training.toys import BERT, packed_classes, packed_lm
from trnflow.tasks.artifact import Input
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from trnflow.tasks.sources.model_source import ModelConfig, model_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.train import TrainConfig

CLASSIFY = """
import json, sys, transformers
found = transformers.pipeline("text-classification", model=sys.argv[1])("cat dog " * 200, truncation=True)
limit = transformers.AutoTokenizer.from_pretrained(sys.argv[1]).model_max_length
print(json.dumps([found, limit]))
"""
GENERATE = """
import json, sys, torch, peft, transformers
folder, ids = sys.argv[1], torch.arange(4, 20)[None]
config = transformers.AutoModelForCausalLM.from_pretrained(folder).generation_config
text = transformers.pipeline("text-generation", model=folder)("the cat", max_new_tokens=4)[0]["generated_text"]
with torch.no_grad():
    merged = transformers.AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    adapted = peft.AutoPeftModelForCausalLM.from_pretrained(f"{folder}/adapter")(ids).logits
size = len(transformers.AutoTokenizer.from_pretrained(f"{folder}/adapter"))
print(json.dumps([config.eos_token_id, config.temperature, text, (merged - adapted).abs().max().item(), size]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("client", ["", "transformers-4.57"])
def test_a_classifier_from_scratch_cuts_long_texts(client: str, tmp_path: Path, run_client: RunClient) -> None:
    shards, _ = checkpoint(tmp_path, packed_classes(tmp_path / "packed"), **BERT)
    _with_tokenizer(shards)
    consolidate(ConsolidateConfig(), shards, NOTHING, out=workdir(tmp_path / "made"))
    found, limit = run_client(client, CLASSIFY, tmp_path / "made")
    assert found[0]["label"] in ("red", "green", "blue") and limit == 64


@pytest.mark.slow
def test_an_adapter_finds_its_base_on_the_hub(tmp_path: Path, run_client: RunClient) -> None:
    llama(tmp_path / "base")
    (tmp_path / "base" / "generation_config.json").write_text(
        '{"eos_token_id": [2, 7], "do_sample": true, "temperature": 0.6}'
    )
    files = {file.name: file.read_bytes() for file in (tmp_path / "base").iterdir()}
    source = model_source(ModelConfig(source=str(tmp_path / "base"), name="me/set"), Resolver(tmp_path / "home"))
    packed = packed_lm(tmp_path / "packed")
    _with_tokenizer(packed)
    lora = {"rank": 4, "targets": "all-linear"}
    config = TrainConfig(engine="native", method="lora", lora=lora, max_steps=3, learning_rate=1e-2, global_batch=8)
    shards = run_stage(traced_and_trained, config, tmp_path / "train", model=source, packed=packed).artifact
    made = run_stage(consolidate, ConsolidateConfig(), tmp_path / "made", shards=shards, model=source).artifact.path
    with serve(files, "models") as address:
        environ = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "client"), "HF_HUB_OFFLINE": "0"}
        ends, temperature, text, difference, size = run_client("", GENERATE, made, **environ)
    figures.note("peft", "adapter/, its base from a hub", "logits of adapter and merged model", difference)
    assert (ends, temperature, size) == ([2, 7], 0.6, 18) and text.startswith("the cat") and difference < 1e-5
    card = (made / "adapter" / "README.md").read_text()
    assert "base_model: me/set" in card and str(tmp_path) not in card
    assert "learning\\_rate | 0.01" in card and "eval\\_loss" in card and f"| data | {packed.digest} |" in card


def _with_tokenizer(artifact: Input) -> None:
    tokenizer(artifact.path / "tokenizer")
    (artifact.path / "tokenizer" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
