"""`evaluate.harness`: by a user's commands, from task files beside the recipe to gates, and beside lm-eval's own command line.

The tables of lm-eval's command on the folder of `trnflow get` must be ours: once with the chat template, once without.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import CLIENTS
from tests.helpers.command_line import Shell
from tests.helpers.waiting import wait_for

pytestmark = pytest.mark.slow  # one costly fixture for the whole file

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}</s>{% endif %}\\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
RECIPE = """
extends: base/hardware/cpu
data: {source: rows}
format: {task: chat, chat_template: "%s"}
model: {config: {model_type: llama, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64,
  max_position_embeddings: 128}}
tokenize: {max_length: 64, train: {kind: bpe, vocab_size: 300}}
pack: {strategy: bfd, chunk_length: 64}
train: {global_batch: 8, max_steps: 3, learning_rate: 1.0e-2}
export: {target: none}
evaluate:
  generation: {prompts: 1, max_new_tokens: 4}
  harness: {include_path: tasks, tasks: [sums], batch_size: 4, apply_chat_template: %s}
tracking: {enabled: false}
promote: {at_least: {choose.acc: %s}}
"""
CHOOSE = """
task: choose
dataset_path: json
dataset_kwargs: {data_files: {test: data/*.jsonl}}
test_split: test
fewshot_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: ["one", "two", "three"]
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""
WRITE = """
task: write
include: choose.yaml
output_type: generate_until
doc_to_choice: null
doc_to_target: "{{['one', 'two', 'three'][answer]}}"
generation_kwargs: {max_gen_toks: 4, until: ["."]}
metric_list: [{metric: exact_match}, {metric: !function lengths.length, aggregation: mean, higher_is_better: true}]
"""
SAY = """
task: say
include: choose.yaml
output_type: loglikelihood
doc_to_choice: null
doc_to_target: "{{answer}} is one"
target_delimiter: ""
metric_list: [{metric: perplexity}]
"""
GROUP = "group: sums\ntask: [choose, write, say]\naggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
LENGTHS = "def length(references, predictions, **kwargs):\n    return float(len(predictions[0]))\n"
"""lm-eval calls a metric of this form with lists of one."""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A folder with the recipe, its rows and task files, and the client as packages that are installed."""
    if not (CLIENTS / "lm-eval/installed").exists():
        pytest.skip("no client lm-eval: run `make clients`")
    folder = tmp_path_factory.mktemp("harness")
    (folder / "site-packages").symlink_to(CLIENTS / "lm-eval")
    (folder / "rows").mkdir()
    for split, count in {"train": 24, "validation": 4, "test": 4}.items():
        turns = ((f"what is {n} plus {n % 3}", f"it is {n + n % 3}") for n in range(count))
        rows = ({"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]} for a, b in turns)
        (folder / f"rows/{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_tasks(folder / "tasks")
    write_recipe(folder)
    shell = Shell(folder)
    shell.environ |= {"PYTHONPATH": str(folder / "site-packages"), "HF_TOKEN": "secret"}
    return shell


def write_tasks(folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    files = {"choose": CHOOSE, "write": WRITE, "say": SAY, "sums": GROUP}
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "lengths.py").write_text(LENGTHS)
    documents = ({"question": f"what is {n} plus one", "answer": n % 3} for n in range(11))
    (folder / "data/test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in documents))


def write_recipe(folder: Path, *, templated: bool = True, least: float = 0.0, extra: str = "") -> None:
    text = RECIPE % (TEMPLATE, str(templated).lower(), least)
    (folder / "tiny.yaml").write_text(text + extra)


def of_command(shell: Shell, model: Path, *arguments: str) -> dict[str, float]:
    """What lm-eval's own command prints of the tasks, by the names of our metrics."""
    made = shell.folder / f"command-{'-'.join(arguments)}"
    command = [sys.executable, "-P", "-m", "lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={model}"]
    command += ["--tasks", "sums", "--include_path", ".", "--batch_size", "4", "--device", "cpu", *arguments]
    environ = {**shell.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(shell.folder / "hub"), "USE_TORCH_XLA": "0"}
    done = subprocess.run(
        [*command, "--output_path", str(made)], cwd=shell.folder / "tasks", env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(next(made.rglob("results_*.json")).read_text())
    found = {**document["results"], **document.get("groups", {})}
    return {
        f"{task}.{key.partition(',')[0]}": value
        for task, values in found.items()
        for key, value in values.items()
        if "," in key and "_stderr" not in key
    }


def evaluated(shell: Shell, *arguments: str) -> dict[str, Any]:
    return next(
        stage
        for stage in shell.json("run", "tiny.yaml", "--direct", *arguments)["stages"]
        if stage["stage"] == "evaluate_model"
    )


def attempts(shell: Shell) -> int:
    """How often predictions and the harness's results were made."""
    return len([*(shell.folder / ".trnflow/store/attempts").glob("*/*evaluate_model.shard*")])


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["templated", "both"])
def test_numbers_are_those_of_lm_eval_s_command_and_are_kept(both: bool, shell: Shell, tmp_path: Path) -> None:
    """both: lm-eval's command is run without the template, too."""
    # first without the template, so that the later tests find the model that the recipe asks for
    write_recipe(shell.folder, templated=False)
    without = evaluated(shell)["metrics"]
    write_recipe(shell.folder)
    templated = evaluated(shell)["metrics"]
    shell.json("get", "tiny.yaml", "consolidate", str(tmp_path / "model"))
    ours = [{name: found[name] for name in found if "." in name} for found in (without, templated)]
    for numbers, given in [*zip(ours, ([], ["--apply_chat_template"]), strict=True)][not both :]:
        assert numbers == of_command(shell, tmp_path / "model", *given)
    assert abs(ours[0]["say.perplexity"] / ours[1]["say.perplexity"] - 1) > 1e-3  # the wrong template shows
    assert {*ours[0]} == {"choose.acc", "sums.acc", "write.exact_match", "write.length", "say.perplexity"}
    # the template's prompt ends in a blank, which is a token with the answer's first letters
    logs = "".join(file.read_text() for file in (shell.folder / ".trnflow").rglob("events.jsonl"))
    assert logs.count("in 11 requests lm-eval reads prompt and answer as one text") == 1


def test_a_changed_report_runs_lm_eval_no_more_and_a_changed_file_of_a_task_does(shell: Shell) -> None:
    evaluated(shell)
    made = attempts(shell)
    evaluated(shell, "evaluate.generation.prompts=2")
    assert attempts(shell) == made + 1  # rows are predicted anew
    data = shell.folder / "tasks/data/test.jsonl"
    before = data.read_text()
    data.write_text(before + before.splitlines()[0] + "\n")
    why = next(
        stage["why"] for stage in shell.json("plan", "tiny.yaml")["stages"] if stage["stage"] == "evaluate_model"
    )
    assert "data/test.jsonl" in why and why.endswith("; its predictions are kept")
    evaluated(shell)
    assert attempts(shell) == made + 2
    data.write_text(before)
    assert evaluated(shell)["action"] == "hit"


def test_report_and_page_have_a_table_of_tasks(shell: Shell, tmp_path: Path) -> None:
    shell.json("get", "tiny.yaml", "evaluate_model", str(tmp_path / "got"))
    report, page = json.loads((tmp_path / "got/report.json").read_text()), (tmp_path / "got/report.html").read_text()
    row = next(row for row in report["harness"]["rows"] if (row["task"], row["metric"]) == ("choose", "acc"))
    assert row["value"] == report["metrics"]["choose.acc"] and row["documents"] == 11 and row["stderr"] > 0
    assert f"lm-evaluation-harness {report['harness']['version']}" in page and "perplexity" in page


DATA = "data_files: {test: data/*.jsonl}"
READ = {
    "no file of": ("sums.yaml", GROUP.replace("sums", "totals")),
    "choose.yaml: ParserError: while parsing a flow node": ("choose.yaml", "task: [\n"),
    "choose reads allenai/ai2_arc from the hub (dataset_path)": (
        "choose.yaml",
        CHOOSE.replace("json", "allenai/ai2_arc", 1),
    ),
    "choose names no file": ("choose.yaml", CHOOSE.replace(DATA, "split: test")),
}
LOADED = {
    "choose reads https://a.b/c.jsonl": ("choose.yaml", CHOOSE.replace("data/*.jsonl", "https://a.b/c.jsonl")),
    "and TASKS has no such file": ("choose.yaml", CHOOSE.replace("*", "other")),
    "which is not in TASKS": ("choose.yaml", CHOOSE.replace("data/*", "../rows/test")),
    "choose can't be loaded: UndefinedError": ("choose.yaml", CHOOSE.replace("{{question}}", "{{question.a.b}}")),
    "sums can't be loaded: AttributeError": ("lengths.py", ""),
}
"""What is said, and the file that is broken, with its content: by `plan`, which reads the files, and by `run`, which loads the
tasks. TASKS: the folder."""


@pytest.mark.nightly
@pytest.mark.parametrize("said", [*READ, *LOADED])
def test_a_broken_task_is_said_in_a_line_before_anything_runs(said: str, shell: Shell) -> None:
    file, text = (READ | LOADED)[said]
    command = ["plan"] if said in READ else ["run", "--direct"]
    tasks, made = shell.folder / "tasks", attempts(shell)
    before = (tasks / file).read_text()
    (tasks / file).write_text(text)
    try:
        printed = shell.error(*command, "tiny.yaml", code=2 if said == "no file of" else 1)
    finally:
        (tasks / file).write_text(before)
    assert said.replace("TASKS", str(tasks)) in printed and "evaluate.harness" in printed
    assert attempts(shell) == made


MARKS = "from pathlib import Path\n\nPath({!r}).touch()\n\ndef docs(dataset):\n    return dataset\n"


def test_plan_show_explain_and_config_run_neither_functions_nor_templates_of_tasks_and_run_does(shell: Shell) -> None:
    tasks = shell.folder / "tasks"
    function, template = shell.folder / "function-ran", shell.folder / "template-ran"
    (tasks / "marks.py").write_text(MARKS.format(str(function)))
    touch = "{{ cycler.__init__.__globals__.os.mknod('MARK') }}".replace("MARK", str(template))
    canary = CHOOSE.replace("choose", "canary", 1).replace("{{question}}", touch)
    (tasks / "canary.yaml").write_text(canary + "process_docs: !function marks.docs\n")
    named = "evaluate.harness.tasks=[canary]"
    try:
        for command in (["plan"], ["show"], ["config"], ["explain", "tiny.yaml", "evaluate_model"]):
            shell.json(*command, *["tiny.yaml"] * (len(command) == 1), named)
        assert not function.exists() and not template.exists()
        shell("run", "tiny.yaml", "--direct", named)
        assert function.exists() and template.exists()
    finally:
        for file in ("marks.py", "canary.yaml"):
            (tasks / file).unlink()


def test_a_task_of_the_hub_is_refused_before_training_and_a_challenger_below_a_bound_before_promotion(
    shell: Shell,
) -> None:
    write_recipe(shell.folder)
    made = attempts(shell)
    (shell.folder / "tasks/choose.yaml").write_text(CHOOSE.replace("json", "allenai/ai2_arc", 1))
    printed = shell.error("run", "tiny.yaml", "--direct", "train.max_steps=4", code=1)
    assert "the task choose reads allenai/ai2_arc from the hub (dataset_path), and there is no network here" in printed
    assert attempts(shell) == made
    (shell.folder / "tasks/choose.yaml").write_text(CHOOSE)
    evaluated(shell)
    decided = shell.json("promote", "tiny.yaml", "promote.at_least={choose.acc: 0.99}")
    assert not decided["promoted"] and "choose.acc is 0." in decided["why"] and "below 0.99" in decided["why"]
    assert "promote bounds choose.f1" in shell.error("promote", "tiny.yaml", "promote.at_most={choose.f1: 1}", code=2)
    assert shell.json("promote", "tiny.yaml")["promoted"]


SLEEPS = """
import os, time

def docs(dataset):
    if os.getcwd() != "TASKS":
        assert not {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN"} & {*os.environ}
        open("SLEEPING", "w").close()
        time.sleep(600)
    return dataset
"""


@pytest.mark.parametrize("copied", [False, True])
def test_a_killed_run_leaves_no_process(copied: bool, shell: Shell) -> None:
    """copied: killed while it evaluates, in a copy of the task files; else while it checks the tasks."""
    tasks = shell.folder / "tasks"
    (tasks / "sleeps.py").write_text(
        SLEEPS.replace("TASKS", str(tasks)).replace("SLEEPING", str(shell.folder / "sleeping"))
    )
    (tasks / "sleeps.yaml").write_text(CHOOSE.replace("choose", "sleeps", 1) + "process_docs: !function sleeps.docs\n")
    run = shell.start("run", "tiny.yaml", "--direct", "evaluate.harness.tasks=[sleeps]", f"evaluate.batch={2 + copied}")
    try:
        wait_for(lambda: harness_processes(tasks, copied), 120)
        if copied:  # it imports lm_eval, loads the model, and calls the function
            wait_for(lambda: (shell.folder / "sleeping").exists(), 120)
            assert harness_processes(tasks, copied)
    finally:
        run.kill()
        run.wait()
    wait_for(lambda: not harness_processes(tasks, copied), 30)


def harness_processes(tasks: Path, copied: bool) -> list[int]:
    """Those that work in the folder of tasks, or in a copy."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            place = (folder / "cwd").readlink()
            here = place.name == "tasks" and tasks not in (place, place.parent) if copied else place == tasks
            if here and b"harness_process" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
