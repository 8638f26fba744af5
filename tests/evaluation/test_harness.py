"""`evaluate.harness` where lm-eval is not installed: what is refused before anything runs. tests/clients has the rest."""

from __future__ import annotations

import inspect
import json
from copy import deepcopy
from pathlib import Path

import pytest
from jinja2 import TemplateError

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.data import limited_process
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.evaluation.harness import HarnessConfig, harness_source, harness_version
from trnflow.tasks.evaluation.harness_files import harness_files
from trnflow.tasks.evaluation.harness_process import _rows, limit_templates
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.run_harness import needs, run_harness
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import Known, Workdir

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


DATA = "dataset_path: json\ndataset_kwargs: {data_files: {test: '*.jsonl'}}\n"
FILES = {
    "base.yml": DATA, "sums.yaml": "task: sums\ninclude: base.yml\ntag: [numbers]\nprocess_docs: !function nothing.docs\n",
    "hub.yaml": "task: hub\ndataset_path: org/rows\ntag: numbers\n", "none.yaml": "task: none\ntag: bare\n",
    "class.yaml": "task: class\nclass: !function nothing.Task\n",
    "made.yaml": f"task: made\n{DATA}custom_dataset: !function nothing.made\n",
    "group.yaml": "group: mine\ntask: [sums, {group: in, task: [{task: hub, dataset_path: json}]}]\n" + DATA.partition("\n")[2],
    "mixed.yaml": "group: mixed\ntask: [numbers]\n", "circle.yaml": "include: circle.yaml\n",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sums", ""), ("mine", ""), ("mixed", "the task hub reads org/rows from the hub"), ("numbers", "reads org/rows"),
        ("bare", "the task none names no data"), ("class", "is a class"), ("made", "by a function (custom_dataset)"),
        ("gone", "circle.yaml: ValueError: circle.yaml includes itself"),
    ],
)  # fmt: skip
def test_a_plan_reads_task_files_and_runs_no_function_of_theirs(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for file, text in FILES.items():
        (tasks / file).write_text(text)
    config, resolver = HarnessConfig(tasks=(name,), include_path=str(tasks)), Resolver(tmp_path, offline=True)
    assert harness_files(config, resolver) == harness_source(config, resolver)  # which checks nothing without lm-eval
    monkeypatch.setattr("trnflow.tasks.evaluation.harness_files.harness_version", lambda: "0.4.9")
    if name != "gone":
        (tasks / "circle.yaml").unlink()
    if not said:
        assert {*harness_files(config, resolver).identity["files"]} == {*FILES} - {"circle.yaml"}
        return
    with pytest.raises(DataError) as caught:
        harness_files(config, resolver)
    assert said in caught.value.message
    if name == "gone":
        (tasks / "circle.yaml").unlink()
        with pytest.raises(
            ConfigError, match=r"defines gone \(it has: bare, class, hub, made, mine, mixed, none, numbers, sums"
        ):
            harness_files(config, resolver)


def row(task: str, metric: str, value: float, stderr: float | None = None, filter: str = "none") -> Meta:
    return {"task": task, "metric": metric, "value": value, "stderr": stderr, "filter": filter}


def harnessed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: Meta, edited: bool = False
) -> tuple[Meta, Meta, list[Meta]]:
    """What run_harness returns, writes and reports of these rows of lm-eval, which is not installed here."""
    (folder / "tasks").mkdir()
    (folder / "tasks/sums.yaml").write_text("task: sums\n")
    digest = sha256_file(folder / "tasks/sums.yaml")
    harness = Source("harness", {"files": {"sums.yaml": digest}}, {"folder": str(folder / "tasks")})
    answer = {"rows": [*rows], "version": "0.4.9", "joined": 0}
    monkeypatch.setattr("trnflow.tasks.run_harness.call_harness", lambda asked, tasks, cache: deepcopy(answer))
    events: list[Meta] = []
    out = Workdir(folder / "out", folder / "scratch", events.append)
    out.path.mkdir()
    weights: Input[Meta] = Input(folder, "model", {}, "sha256:1")
    config = HarnessConfig(tasks=("sums",), include_path="tasks")
    if edited:
        (folder / "tasks/sums.yaml").write_text("task: differences\n")
    meta = inspect.unwrap(run_harness)(config, weights, harness, out=out)
    return meta, json.loads((out.path / "harness.json").read_text()), events


def test_a_result_that_is_no_number_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nan = float("nan")
    meta, written, events = harnessed(
        tmp_path,
        monkeypatch,
        row("sums", "acc", 0.5, nan),
        row("sums", "f1", nan),
        row("part", "acc", 0.25, 0.1, "strict"),
    )
    assert meta == {"metrics": {"sums.acc": 0.5, "part.acc.strict": 0.25}, "own": ["sums.acc"]}
    assert written["rows"] == [row("sums", "acc", 0.5, None), row("part", "acc", 0.25, 0.1, "strict")]
    assert events == [{"warn": "evaluate.harness: sums.f1 is nan, and is left out"}]


def test_a_task_file_that_changed_since_the_run_began_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"tasks/sums\.yaml changed since this run began"):
        harnessed(tmp_path, monkeypatch, edited=True)


CHAT = "{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}{{ eos_token }}"
HOSTILE = [
    ("{{ (7 ** (10 ** (messages | length + 8))) % 2 }}", "more than 5 s of processor time"),
    ("{% set held = 'x'.ljust(10 ** 9 * (messages | length)) %}{{ held | length }}", "takes too much memory"),
]


@pytest.mark.parametrize(("template", "error"), HOSTILE)
def test_a_model_s_chat_template_is_rendered_with_limits(
    template: str, error: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval renders by the tokenizer's method, in its own process."""
    from transformers import AutoTokenizer, tokenization_utils_base

    tokenizer = AutoTokenizer.from_pretrained(shared / "assets/stories260K-hf")
    asked = [{"role": "user", "content": "good"}, {"role": "assistant", "content": "it is"}]
    plain: Meta = {
        "chat_template": CHAT,
        "tokenize": False,
        "continue_final_message": True,
        "tools": None,
        "today": "no",
    }
    expected = tokenizer.apply_chat_template(asked, **plain)
    for module, name in ((tokenization_utils_base, "render_jinja_template"), (limited_process, "_waits")):
        monkeypatch.setattr(module, name, getattr(module, name))
    limit_templates()
    assert tokenizer.apply_chat_template(asked, **plain) == expected == "[user] good[assistant] it is"
    with pytest.raises(TemplateError, match="no system"):
        tokenizer.apply_chat_template(asked, tokenize=False, chat_template="{{ raise_exception('no system') }}")
    with pytest.raises(ConfigError, match=f"the model's chat template: .*{error}"):
        tokenizer.apply_chat_template(asked, tokenize=False, chat_template=template)


def test_the_error_beside_a_value_is_that_of_its_own_filter() -> None:
    values = {"alias": "mine", "em,strict": 0.5, "em_stderr,strict": 0.1, "em,none": 0.75, "em_stderr,none": "N/A"}
    found = {
        "results": {"mine": values}, "higher_is_better": {"mine": {"em": True}}, "versions": {"mine": 1},
        "n-shot": {"mine": 0}, "n-samples": {"mine": {"effective": 8}},
    }  # fmt: skip
    assert [(each["filter"], each["value"], each["stderr"], each["documents"]) for each in _rows(found)] == [
        ("strict", 0.5, 0.1, 8), ("none", 0.75, None, 8),
    ]  # fmt: skip
