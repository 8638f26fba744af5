"""Stages of the user's own (`stages`): by the command line, from a file beside the recipe to the page and the lineage."""

from __future__ import annotations

import inspect
import json
import re
import resource
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import PROJECT
from tests.flows.champions.conftest import RECIPE, write_rows
from tests.helpers.command_line import InProcessShell
from trnflow.flows.finetune import STAGES
from trnflow.flows.runner.own_code import ELSEWHERE
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import CodeError, DataError
from trnflow.tasks.own_stage import OwnStage, _checked, made, own_stage
from trnflow.tasks.stage import Workdir

STAGES_PY = '''"""What to look at."""

import json

import numpy as np
import pyarrow.parquet as pq

from mine_of_stages.low import FIELD
from trnflow.tasks.stage import stage


@stage(kind="worst_rows")
def worst(config, evaluation, out):
    """Write the numbers of the rows of the highest loss."""
    rows = pq.read_table(evaluation.path / "predictions.parquet").to_pylist()
    rows = sorted(rows, key=lambda row: (-row["loss"], row["row"]))[: config["rows"]]
    (out.path / "worst.json").write_text(json.dumps({FIELD: [row["row"] for row in rows]}))
    out.warn(f"{len(rows)} rows to look at")
    return {"metrics": {"worst_rows": len(rows)}}


@stage(kind="lengths")
def lengths(config, texts, out):
    assert len(np.empty(5 << 30, "u1")), "as much as a model may need"
    texts = pq.read_table(texts.path / "test.parquet")["text"].to_pylist()
    (out.path / "lengths.json").write_text(json.dumps([*map(len, texts)]))


@stage(kind="longest")
def longest(config, lengths, out):
    return {"metrics": {"longest": max(json.loads((lengths.path / "lengths.json").read_text()))}}
'''
ENTRIES = """stages:
  longest: {function: 'mine_of_stages.stages:longest', after: lengths}
  worst: {function: 'mine_of_stages.stages:worst', after: evaluate_model, arguments: {rows: 5}}
  lengths: {function: 'mine_of_stages.stages:lengths', after: format_prompts}
"""
UNTIL = ("--direct", "--until")


def write(folder: Path, entries: str = ENTRIES, code: str = STAGES_PY) -> None:
    (folder / "mine_of_stages").mkdir(exist_ok=True)
    (folder / "mine_of_stages/low.py").write_text('FIELD = "rows"\n')
    (folder / "mine_of_stages/stages.py").write_text(code)
    (folder / "own.yaml").write_text(RECIPE.replace("stablehlo", "none") + entries)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    folder = tmp_path_factory.mktemp("stages")
    write_rows(folder / "rows", {"pos": "pos", "neg": "neg"})
    return InProcessShell(folder)


@pytest.mark.slow
def test_own_stages_are_leaves_with_artifacts_of_their_own(shell: InProcessShell, tmp_path: Path) -> None:
    write(shell.folder)
    ran = shell.json("run", "own.yaml", "--direct")
    order = [stage["stage"] for stage in ran["stages"]]
    assert order[1:4] == ["format_prompts", "lengths", "longest"] and order[-2:] == ["evaluate_model", "worst"]
    made = {stage["stage"]: stage for stage in ran["stages"]}
    texts = [json.loads(line)["text"] for line in (shell.folder / "rows/test.jsonl").read_text().splitlines()]
    assert made["longest"]["metrics"] == {"longest": max(map(len, texts))}

    shell.json("get", "own.yaml", "evaluate_model", str(tmp_path / "evaluation"))
    found = pq.read_table(tmp_path / "evaluation/predictions.parquet").to_pylist()
    rows = sorted(found, key=lambda row: (-row["loss"], row["row"]))[:5]
    for name, model in (("recipe", "own.yaml"), ("digest", made["worst"]["artifact"]), ("run", ran["run"])):
        shell.json("get", model, "worst", str(tmp_path / name))
        assert json.loads((tmp_path / name / "worst.json").read_text()) == {"rows": [row["row"] for row in rows]}
    assert "<td>worst</td><td>worst_rows</td>" in Path(shell.json("report")["path"]).read_text()
    above = shell("lineage", made["worst"]["artifact"]).stdout
    assert "made by worst" in above and re.search(r"given: \S+ made by evaluate_model", above)
    assert "worst sha256:" in shell("lineage", made["consolidate"]["artifact"]).stdout, "made of it"
    assert shell.json("verify")["problems"] == []
    assert "did you mean worst?" in shell.error("get", "own.yaml", "wurst", str(tmp_path / "none"), code=2)

    (shell.folder / "mine_of_stages/low.py").write_text('# the name\nFIELD = "rows"\n')
    assert {stage["action"] for stage in shell.json("plan", "own.yaml")["stages"]} == {"hit"}
    (shell.folder / "mine_of_stages/low.py").write_text('FIELD = "numbers"\n')
    plan = {stage["stage"]: (stage["action"], stage["why"]) for stage in shell.json("plan", "own.yaml")["stages"]}
    assert plan.pop("worst") == plan.pop("lengths") == ("run", "FIELD in low.py: rows -> numbers")
    assert plan.pop("longest") == ("maybe", "waits for lengths")
    assert {action for action, _ in plan.values()} == {"hit"}
    again = shell("run", "own.yaml", "--direct")
    assert again.returncode == 0 and "worst: 5 rows to look at" in again.stderr
    assert "longest         ran" in again.stdout and made["longest"]["artifact"][7:19] in again.stdout


@pytest.mark.slow
def test_what_a_stage_must_not_do_ends_the_run_with_its_line(shell: InProcessShell) -> None:
    entry = "stages:\n  one: {function: 'mine_of_stages.stages:one', after: load_data}\n"
    secret = shell.folder / "secret.csv"
    secret.write_text("7")
    bodies = {
        "    return 7": "stages.py:11 in one: it returned int, no dict",
        "    import random\n    (out.path / 'a.txt').write_text(str(random.random()))": "mine_of_stages.stages:one makes another "
        "a.txt the second time",
        "    return rows.meta['nothing']": "error in one: mine_of_stages/stages.py:13 in one: KeyError 'nothing' on the rows: ",
        f"    return open({str(secret)!r}).read()": "secret.csv, and its key does not know that file",
        "    next(rows.path.iterdir()).chmod(0o644)\n    next(rows.path.iterdir()).write_text('')": "one changed its input given",
    }
    head = STAGES_PY.partition("@stage")[0].replace("from mine_of_stages.low import FIELD\n", "")
    for body, told in bodies.items():
        write(shell.folder, entry, f"{head}@stage(kind='one')\ndef one(config, rows, out):\n{body}\n")
        assert told in shell.error("run", "own.yaml", *UNTIL, "one", code=1), body


REFUSED = {
    "worst: {function: lengths, after: evalute_model}": "did you mean evaluate_model?",
    "worst: {function: lengths, after: precompile}": "precompile is no stage that makes an artifact in each run",
    "worst: {function: lengths, after: export_neuron}": "export_neuron is no stage that makes an artifact in each run",
    "train: {function: lengths, after: load_data}": "stages.train is the name of a built-in stage",
    "score_rows: {function: lengths, after: load_data}": "stages.score_rows is the name of a built-in stage",
    "a-b: {function: lengths, after: load_data}": "stages.a-b is no name of a stage",
    "a: {function: lengths, after: b}\n  b: {function: longest, after: a}": "stages.a.after: a is after b is after a",
    "worst: {function: RATE, after: load_data}": "RATE is a value, no function",
    "worst: {function: nothing, after: load_data}": "stages.py has no function nothing",
    "worst: {function: short, after: load_data}": "short(config) can't be called as short(config: dict, given: Input",
    "worst: {function: plain, after: load_data}": "plain is not marked by @stage with a kind alone",
    "worst: {function: split, after: load_data}": "split is not marked by @stage with a kind alone",
    "worst: {function: theirs, after: load_data}": "is of the kind model, which consolidate makes",
}
MORE = """
RATE = 0.5
def short(config): ...
def plain(config, given, out): ...
@stage(kind="parts", resumable=True)
def split(config, given, out): ...
@stage(kind="model")
def theirs(config, given, out): ...
"""


def test_names_that_can_not_be_are_refused_by_reading(shell: InProcessShell) -> None:
    for entry, told in REFUSED.items():
        named = re.sub(r"function: (\w+)", r"function: 'mine_of_stages.stages:\1'", entry)
        write(shell.folder, f"stages:\n  {named}\n", STAGES_PY + MORE)
        assert told in shell.error("plan", "own.yaml", code=2), entry
    write(shell.folder)
    refused = shell.error("plan", "own.yaml", "stages.worst.function=mine_of_stages.stages:longest", code=2)
    assert "stands in recipe files alone" in refused
    assert "stages.worst" in shell.error("plan", "own.yaml", "stages.worst.after=nothing", code=2)


def test_each_stage_of_the_program_keeps_its_name() -> None:
    named = re.compile(r"^@stage\((?:.|\n)*?^def (\w+)\(", re.MULTILINE)
    files = (file.read_text() for file in (PROJECT / "tasks").rglob("*.py"))
    assert {name for text in files for name in named.findall(text)} == {*STAGES, *ELSEWHERE}


def test_a_stage_is_called_twice_until_its_code_and_arguments_are_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a function makes in its process is given; the slow tests call real ones."""
    calls: list[Meta] = []

    def call(function: str, asked: Meta, *elsewhere: object) -> Meta:
        calls.append(asked)
        (out := Path(asked["out"])).mkdir(parents=True, exist_ok=True)
        (out / "seen.txt").write_text(f"{asked['config']['arguments']} {texts == 'differ' and asked['elsewhere']}")
        return {"meta": {}, "events": []}

    monkeypatch.setattr("trnflow.tasks.own_stage.call_own", call)
    code = Source("code", {"code": {"mine": "1"}}, {"functions": {"stages.one.function": "mine:one"}})
    code.location["proofs"] = str(tmp_path / "proofs")

    def calls_of(name: str, text: str) -> int:
        calls.clear()
        config = OwnStage(function="mine:one", after="load_data", arguments={"text": text})
        out = Workdir(tmp_path / name / "out", tmp_path / name / "scratch", lambda event: None)
        out.path.mkdir(parents=True)
        given: Input[Meta] = Input(tmp_path, "rows", {}, "sha256:1")
        assert inspect.unwrap(own_stage)(config, given, code, out) == {}
        return len(calls)

    texts = "same"
    assert [calls_of("first", "a"), calls_of("again", "a"), calls_of("other", "b")] == [2, 1, 2]
    texts = "differ"
    with pytest.raises(CodeError, match=r"mine:one makes another seen\.txt the second time"):
        calls_of("differs", "c")
    texts = "same"
    assert calls_of("once more", "c") == 2, "what differed proved nothing"


@pytest.mark.parametrize("value", [True, "0.5", None, [0.5]])
def test_a_metric_is_a_number(value: object) -> None:
    assert _checked({"metrics": {"share": 0.5, "rows": 3}}, "mine.py:1 in one")["metrics"] == {"share": 0.5, "rows": 3}
    with pytest.raises(DataError, match="mine.py:1 in one: its metric share is .*, no number"):
        _checked({"metrics": {"share": value}}, "mine.py:1 in one")


def test_a_stage_may_take_as_much_memory_as_its_process_and_its_progress_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stage_of_mine.py").write_text(
        "import resource\n"
        "def sizes(config, rows, out):\n"
        "    out.progress(1, 2)\n"
        "    out.info(config['say'])\n"
        "    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)\n"
        "    return {'metrics': {'is_whole': float(soft == hard)}}\n"
    )
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "stage_of_mine", raising=False)
    location = {"functions": {"stages.one": "stage_of_mine:sizes"}, "search": [str(tmp_path)], "files": {}}
    arguments: Meta = {
        "code": {"kind": "code", "identity": {"code": {}}, "location": location}, "hook": "stages.one",
        "elsewhere": False, "out": str(tmp_path / "out"), "scratch": str(tmp_path / "scratch"),
        "given": {"path": str(tmp_path), "kind": "rows", "meta": {}, "digest": "sha256:1"},
        "config": {"arguments": {"say": "hello"}},
    }  # fmt: skip
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    some = 1 << 40 if hard == resource.RLIM_INFINITY else hard // 2
    resource.setrlimit(resource.RLIMIT_DATA, (some, hard))
    try:
        result = made(arguments, lambda name: None)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert result == {"meta": {"metrics": {"is_whole": 1.0}}, "events": [{"info": "hello"}]}
