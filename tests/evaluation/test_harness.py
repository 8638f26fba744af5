"""`evaluate.harness` where lm-eval is not installed: what is refused before anything runs. tests/clients has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell
from trnflow.tasks.artifact import Source
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.evaluation.harness import HarnessConfig, harness_version
from trnflow.tasks.run_harness import needs
from trnflow.tasks.stage import Known

LANGUAGE = """
extends: base/hardware/cpu
data: {source: rows, text: text}
format: {task: text}
model: {config: {model_type: llama, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}}
tokenize: {train: {kind: bpe, vocab_size: 300}}
pack: {chunk_length: 64}
train: {max_steps: 1}
export: {target: none}
evaluate: {harness: {include_path: tasks, tasks: [sums]}}
tracking: {enabled: false}
"""


@pytest.fixture
def shell(tmp_path: Path) -> InProcessShell:
    write_tiny(tmp_path)
    (tmp_path / "language.yaml").write_text(LANGUAGE)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/sums.yaml").write_text("task: sums\n")
    return InProcessShell(tmp_path)


def test_a_classifier_a_missing_folder_and_an_unknown_bound_are_refused(shell: InProcessShell) -> None:
    harness = "evaluate.harness={include_path: tasks, tasks: [sums]}"
    assert "evaluate.harness` is for language models" in shell.error("plan", "tiny.yaml", harness, code=2)
    said = shell.error("plan", "language.yaml", "evaluate.harness.include_path=other", code=2)
    assert f"evaluate.harness.include_path: there is no folder other in {shell.folder}" in said
    said = shell.error("plan", "tiny.yaml", "promote.at_least={acuracy: 0.5}", code=2)
    assert "promote.at_least: acuracy is no metric: did you mean accuracy?" in said


@pytest.mark.skipif(harness_version() is not None, reason="lm-eval is installed")
def test_without_lm_eval_a_run_says_what_to_install_and_makes_nothing(shell: InProcessShell) -> None:
    shell.json("plan", "language.yaml")
    said = shell.error("run", "language.yaml", "--direct", code=1)
    assert "lm-eval is not installed" in said and "pip install 'trnflow[harness]'" in said
    assert not [*(shell.folder / ".trnflow/store").glob("records/*/*")]


@pytest.mark.parametrize("template", [None, "{{ messages }}"])
def test_a_chat_template_that_the_model_lacks_is_refused_once_the_texts_are_known(
    template: str | None, tmp_path: Path
) -> None:
    config = HarnessConfig(tasks=("sums",), include_path="tasks", apply_chat_template=True)
    if template:
        (tmp_path / "chat_template.jinja").write_text(template)
    sources = {"model": Source("model", {}, {"tokenizer": {"folder": str(tmp_path)}})}
    for framed, refused in ((True, False), (False, template is None)):
        known = Known(sources, {"texts": {"framed": framed}})
        if refused:
            with pytest.raises(ConfigError, match="the model has no chat template"):
                [*needs(config, known)]
        else:
            assert [*needs(config, known)] == []
    assert [*needs(config, Known(sources))] == []
