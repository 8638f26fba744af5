"""The folders that `consolidate` writes compute the trained model's logits under this environment's transformers and 4.57."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients import figures
from tests.clients.conftest import RunClient
from tests.helpers.checkpoints import NOTHING, checkpoint
from tests.helpers.small_models import workdir
from tests.model_folder.test_older_config import LLAMA3
from tests.training.toys import BERT, DISTILBERT, LLAMA, packed_classes, packed_lm
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate

GROUPED = {**LLAMA, "num_key_value_heads": 2}
PARTIAL = {"rope_type": "default", "rope_theta": 20000.0, "partial_rotary_factor": 0.5}
MODERNBERT = {
    **BERT,
    "model_type": "modernbert",
    "num_hidden_layers": 4,
    "local_attention": 8,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 300.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    },
    **{f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")},
}
VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
GEMMA3 = {
    **GROUPED,
    "model_type": "gemma3_text",
    "head_dim": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
    },
}
GEMMA3N = {
    **GEMMA3,
    "model_type": "gemma3n_text",
    "vocab_size_per_layer_input": 64,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "laurel_rank": 4,
    "altup_num_inputs": 2,
    "activation_sparsity_pattern": [0.0, 0.0],
}
OLMO3 = {
    **GROUPED,
    "model_type": "olmo3",
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    },
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**GROUPED, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    "llama-yarn": {
        **GROUPED,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 16,
        },
    },
    "qwen2": {**GROUPED, "model_type": "qwen2", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen3": {
        **GROUPED,
        "model_type": "qwen3",
        "head_dim": 8,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
    },
    "mistral": {**GROUPED, "model_type": "mistral", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "gpt_neox": {**BERT, "model_type": "gpt_neox", "rope_parameters": PARTIAL},
    "mixtral": {**GROUPED, "model_type": "mixtral", "num_local_experts": 4},
    "gemma3_text": GEMMA3,
    "gemma3": {"model_type": "gemma3", "text_config": GEMMA3, "vision_config": VISION},
    "gemma3n_text": GEMMA3N,
    "olmo3": OLMO3,
    "modernbert": MODERNBERT,
    "bert": BERT,
    "roberta": {**BERT, "model_type": "roberta", "pad_token_id": 1},
    "distilbert": DISTILBERT,
}  # fmt: skip
ENCODERS = ("modernbert", "bert", "roberta", "distilbert")

LOGITS = """
import json, sys, torch, transformers
def logits(folder, kind):
    ids = torch.arange(64).remainder(57).add(5).reshape(2, 32)
    model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.tolist()
folders = json.loads(sys.argv[1])
print(json.dumps([transformers.__version__, {folder: logits(folder, kind) for folder, kind in folders.items()}]))
"""

Logits = tuple[str, dict[str, Any]]


def auto_class(family: str) -> str:
    return "AutoModelForSequenceClassification" if family in ENCODERS else "AutoModelForCausalLM"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """{family: (the folder that consolidate wrote, a folder of the same weights written by transformers itself)}"""
    import transformers

    def both(family: str) -> tuple[Path, Path]:
        place = tmp_path_factory.mktemp(family)
        packed = (packed_classes if family in ENCODERS else packed_lm)(place / "packed")
        shards, parameters = checkpoint(place, packed, scale=8.0, **FAMILIES[family])
        consolidate(ConsolidateConfig(), shards, NOTHING, out=workdir(place / "made"))
        config = transformers.AutoConfig.from_pretrained(shards.path)
        model = getattr(transformers, auto_class(family)).from_config(config)
        named = dict(model.named_parameters())
        assert named.keys() == parameters.keys()
        for name, value in parameters.items():
            named[name].data.copy_(value)
        model.save_pretrained(place / "trained")
        return place / "made", place / "trained"

    return {family: both(family) for family in FAMILIES}


@pytest.fixture(scope="module")
def trained(folders: dict[str, tuple[Path, Path]], run_client: RunClient) -> Logits:
    """(version, {family: logits}) of the trained weights, by this environment's transformers"""
    return logits_of({family: both[1] for family, both in folders.items()}, "", run_client)


@pytest.fixture(scope="module", params=["", "transformers-4.57"])
def opened(request: pytest.FixtureRequest, folders: dict[str, tuple[Path, Path]], run_client: RunClient) -> Logits:
    """(version, {family: logits}) of what consolidate wrote, by one of the versions"""
    return logits_of({family: both[0] for family, both in folders.items()}, request.param, run_client)


def logits_of(folders: dict[str, Path], client: str, run_client: RunClient) -> Logits:
    kinds = {str(folder): auto_class(family) for family, folder in folders.items()}
    version, logits = run_client(client, LOGITS, json.dumps(kinds))
    return version, {family: logits[str(folder)] for family, folder in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_each_version_computes_the_trained_logits(family: str, trained: Logits, opened: Logits) -> None:
    import torch

    wanted, found = torch.tensor(trained[1][family]), torch.tensor(opened[1][family])
    assert trained[0].startswith("5.") and wanted.std() > 0.1
    client = "" if opened[0].startswith("5.") else "transformers-4.57"
    difference = float((found - wanted).abs().max())
    figures.note("transformers", f"the model's folder, {len(FAMILIES)} families", "logits", difference, client)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5, msg=lambda text: f"transformers {opened[0]}: {text}")
