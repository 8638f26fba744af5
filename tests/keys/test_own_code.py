"""Code that lies beside a model's weights is never run: no key would know it, and the result would lack it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.toys import LLAMA, packed_lm, pretrained, saved
from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.model.build import build

PROGRAM = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"


def with_own_code(folder: Path, **config: object) -> None:
    """Let the model in `folder` name a program of its own, as models of the hub do."""
    (folder / "mod.py").write_text(PROGRAM)
    known = json.loads((folder / "config.json").read_text())
    own = {"auto_map": {"AutoConfig": "mod.Config", "AutoModelForCausalLM": "mod.Model"}}
    (folder / "config.json").write_text(json.dumps(known | own | config))


@pytest.mark.parametrize("value", ["true", "false"])
def test_the_setting_is_gone_and_the_error_says_why(tmp_path: Path, value: str) -> None:
    (tmp_path / "old.yaml").write_text(f"extends: demo\nmodel:\n  trust_remote_code: {value}\n")
    command = [sys.executable, "-m", "trnflow", "plan", "old.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        "old.yaml:3: model.trust_remote_code was removed: it ran code beside the weights that is in no stage"
        in done.stderr
    )
    assert "fix: leave model.trust_remote_code out" in done.stderr


def test_a_model_that_transformers_knows_is_built_by_transformers_and_published_without_its_code(
    tmp_path: Path,
) -> None:
    from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

    saved(tmp_path / "model", **LLAMA)
    with_own_code(tmp_path / "model")
    built = build(pretrained(tmp_path / "model"), packed_lm(tmp_path / "packed"), seed=0, weights=True)
    assert isinstance(built.model, LlamaForCausalLM)
    (tmp_path / "published.json").write_text(json.dumps(built.config))
    assert isinstance(AutoConfig.from_pretrained(tmp_path / "published.json", trust_remote_code=True), LlamaConfig)
    assert not (tmp_path / "model/ran").exists()


def test_a_model_that_needs_its_code_is_refused_and_its_code_does_not_run(tmp_path: Path) -> None:
    saved(tmp_path / "model", **LLAMA)
    with_own_code(tmp_path / "model", model_type="own_llama")
    with pytest.raises(ModelError, match="needs its own code for model_type 'own_llama'") as caught:
        build(pretrained(tmp_path / "model"), packed_lm(tmp_path / "packed"), seed=0, weights=True)
    assert "transformers knows" in caught.value.fix
    assert not (tmp_path / "model/ran").exists()
