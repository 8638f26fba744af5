"""The command line as a user meets it: its exit code, one JSON document on stdout, one clear line on stderr."""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers.command_line import DATA, InProcessShell, Shell, opened
from trnflow.flows.cli.doctor import _disk
from trnflow.flows.cli.main import GROUPS, _quick_imports, parser


def test_run_plan_explain_show_get_on_the_data_stages(trnflow: Shell) -> None:
    done = Shell(trnflow.folder).json("run", "mine.yaml", "--until", *DATA)
    assert (done["schema"], done["recipe"]) == (1, "mine")
    assert [(stage["stage"], stage["action"]) for stage in done["stages"]] == [
        ("load_data", "ran"), ("format_prompts", "ran"), ("tokenize_text", "ran"), ("pack_chunks", "ran"),
    ]  # fmt: skip
    assert all({"key", "artifact", "seconds", "metrics"} <= stage.keys() for stage in done["stages"])

    again = trnflow.json("run", "mine.yaml", "--until", *DATA)
    assert [stage["action"] for stage in again["stages"]] == ["hit"] * 4
    assert [stage["artifact"] for stage in again["stages"]] == [stage["artifact"] for stage in done["stages"]]
    runs = list((trnflow.folder / ".trnflow/store/runs").glob("*.json"))
    assert len(runs) == 2
    assert json.loads(runs[0].read_text())["resolved"]["data"]["source"] == "rows"

    plan = trnflow.json("plan", "mine.yaml", "tokenize.max_length=32")
    assert [(stage["stage"], stage["action"]) for stage in plan["stages"]][:5] == [
        ("load_data", "hit"), ("format_prompts", "hit"), ("tokenize_text", "run"), ("pack_chunks", "maybe"),
        ("precompile", "maybe"),
    ]  # fmt: skip
    assert plan["stages"][2]["why"] == "params.max_length: 64 -> 32"
    assert plan["stages"][3]["key"] is None
    assert plan["stages"][2]["seconds"] == done["stages"][2]["seconds"]
    assert plan["stages"][2]["bytes"] == trnflow.json("show", "mine.yaml", "tokenize_text")["bytes"]

    priced = trnflow.json("plan", "mine.yaml", "tokenize.max_length=32", "hardware.price_per_hour=3600")
    due = [stage for stage in priced["stages"] if stage["action"] in ("run", "maybe") and stage["seconds"] is not None]
    assert [stage["stage"] for stage in due] == ["tokenize_text", "pack_chunks"]
    assert all(stage["dollars"] == pytest.approx(stage["seconds"]) for stage in due)
    assert priced["expected"] == {
        "seconds": pytest.approx(sum(stage["seconds"] for stage in due)),
        "bytes": sum(stage["bytes"] for stage in due),
        "dollars": pytest.approx(sum(stage["dollars"] for stage in due)),
        "unknown": ["precompile", "train", "consolidate", "export_neuron", "evaluate_model"],
    }
    said = trnflow("plan", "mine.yaml", "tokenize.max_length=32", "hardware.price_per_hour=3600").stdout
    assert "dollars" in said.splitlines()[0] and said.splitlines()[-2].startswith("total")
    assert said.splitlines()[-1].startswith("memory   not traced yet")
    memory = trnflow.json("plan", "mine.yaml", "tokenize.max_length=32", "--trace")["memory"]
    assert memory["fits"] and memory["estimate"]["at"] in ("the backward pass", "the update")
    assert "at least: no past of precompile" in said

    why = trnflow.json("explain", "mine.yaml", "tokenize_text", "tokenize.max_length=32")
    assert [(change["name"], change["before"], change["after"]) for change in why["changes"]] == [
        ("max_length", 64, 32)
    ]
    assert trnflow.json("show", "mine.yaml", "load_data")["meta"]["splits"] == {
        "test": 40,
        "train": 40,
        "validation": 40,
    }

    trnflow.json("get", "mine.yaml", "tokenize_text", "copy")
    assert (trnflow.folder / "copy/tokenizer/tokenizer.json").is_file()
    assert not (trnflow.folder / "copy/tokenizer/tokenizer.json").is_symlink()


def test_moved_and_touched_data_hits_and_changed_data_misses(trnflow: Shell) -> None:
    trnflow.json("run", "mine.yaml", "--until", *DATA)
    shutil.copytree(trnflow.folder / "rows", trnflow.folder / "moved")
    plan = trnflow.json("plan", "mine.yaml", "data.source=moved")
    assert [stage["action"] for stage in plan["stages"][:4]] == ["hit"] * 4
    with (trnflow.folder / "moved/train.jsonl").open("a") as handle:
        handle.write('\n{"text": "one more", "label": "pos"}')
    assert trnflow.json("plan", "mine.yaml", "data.source=moved")["stages"][0]["action"] == "run"


def test_the_resolved_recipe_is_printed(trnflow: Shell) -> None:
    assert trnflow.json("config", "mine.yaml", "train.learning_rate=3e-5")["train"]["learning_rate"] == 3e-5
    assert "learning_rate: 3.0e-05" in trnflow("config", "mine.yaml", "train.learning_rate=3e-5").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run", "dmeo"], 2, "no recipe dmeo"),
        (["run", "demo", "train.learning_rat=1"], 2, "train.learning_rat is not a setting"),
        (["run", "demo", "train.epochs=many"], 2, "train.epochs"),
        (["run", "demo", "--until", "trian"], 2, "no stage trian"),
        (["explain", "demo", "trian"], 2, "did you mean train?"),
        (["run", "mine.yaml", "--direct", "data.source=nowhere.csv"], 2, "nowhere.csv"),
        (["run", "mine.yaml", "--direct", "--until", "load_data", "data.label=lable"], 2, "lable"),
        (
            ["run", "mine.yaml", "--direct", "model.source=./no-model", "--until", "load_data"],
            2,
            "no folder ./no-model",
        ),
        (["plan", "mine.yaml", "model.source=."], 2, "tokenize.train makes a new vocabulary"),
        (["run", "mine.yaml", "--direct", "model.source=.", "--until", "tokenize_text"], 2, "set tokenize.train=null"),
        (["get", "mine.yaml", "load_data", "dest"], 2, "has no artifact"),
        (["run", "mine.yaml", "--direct", "train.devices=3", "train.tensor_parallel_size=2"], 2, "multiple of"),
        (["plan", "mine.yaml", "train.devices=3", "train.tensor_parallel_size=3"], 1, "4 heads (num_attention_heads)"),
        (["plan", "mine.yaml", "train.tensor_parallel_rules={a.b: sideways}"], 2, "'sideways' of a.b is not a style"),
    ],
)
def test_wrong_usage_is_one_clear_error(trnflow: Shell, arguments: list[str], code: int, says: str) -> None:
    assert says in trnflow.error(*arguments, code=code)


def test_a_plan_of_a_run_that_is_bound_to_fail_ends_as_the_run_would(trnflow: Shell) -> None:
    done = trnflow("plan", "mine.yaml", "data.label=lable")
    assert done.returncode == 2 and "load_data" in done.stdout and "no column lable" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("gc", "--yes", "keep_days=30"), ("runs", "recipe=mine"), ("history", "mine", "store.root=x")]
)
def test_a_command_without_settings_refuses_one(trnflow: Shell, arguments: tuple[str, ...]) -> None:
    assert f"{arguments[0]} takes no settings, such as {arguments[-1]}" in trnflow.error(*arguments, code=2)


def test_ctrl_c_while_a_command_is_imported_is_one_line(trnflow: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(command: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trnflow.flows.cli.main.parser", interrupt)
    assert trnflow.error("plan", "mine.yaml", code=130).startswith("error: interrupted\n")


def test_a_terminal_without_utf_8_gets_other_characters_as_escapes(tmp_path: Path) -> None:
    opened(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: demo\ndescription: grüße\n", encoding="utf-8")
    config = Shell(tmp_path)("config", "mine.yaml", PYTHONIOENCODING="ascii")
    assert (config.returncode, yaml.safe_load(config.stdout)["description"]) == (0, "grüße")
    said = Shell(tmp_path)("champions", "grüße", PYTHONIOENCODING="ascii")
    assert (said.returncode, said.stdout.partition(":")[0]) == (0, "gr\\xfc\\xdfe has no champion")


def test_what_follows_two_dashes_is_no_setting(trnflow: Shell) -> None:
    assert "consolidate of mine has no artifact" in trnflow.error(
        "predict", "mine.yaml", "--", "train.epochs=many", code=2
    )


def test_with_json_an_error_is_a_document_too(trnflow: Shell) -> None:
    done = trnflow("plan", "mine.yaml", "train.epochs=many", "--json")
    error = json.loads(done.stdout)["error"]
    assert (
        (done.returncode, error["type"]) == (2, "ConfigError") and "train.epochs" in error["message"] and error["fix"]
    )
    assert error["message"] in done.stderr


def test_a_bad_row_names_file_and_row_and_publishes_nothing(trnflow: Shell) -> None:
    with (trnflow.folder / "rows/train.jsonl").open("a") as handle:
        handle.write('\n{"text": "what?", "label": "neither"}')
    said = trnflow.error("run", "mine.yaml", "--until", *DATA, "data.labels=[pos, neg]", code=1)
    assert "neither" in said
    assert "train" in said
    assert not list((trnflow.folder / ".trnflow/store").glob("records/**/*.json"))
    document = json.loads(trnflow("run", "mine.yaml", "--until", *DATA, "data.labels=[pos, neg]", "--json").stdout)
    assert document["error"]["stage"] == "load_data"
    assert document["error"]["type"] == "DataError"
    assert document["error"]["fix"]


def test_an_empty_split_is_named(trnflow: Shell) -> None:
    (trnflow.folder / "rows/test.jsonl").write_text("")
    assert "test" in trnflow.error("run", "mine.yaml", "--until", *DATA, code=1)


def test_a_run_prints_each_thing_once_and_its_table_last(trnflow: Shell) -> None:
    """A server that is away is said when the run begins, no address of MLflow fills three lines, and the table ends it."""
    shell = Shell(trnflow.folder)
    done = shell("run", "mine.yaml", "--until", "load_data", PREFECT_API_URL="http://127.0.0.1:9/api")
    assert done.returncode == 0, done.stderr
    printed = done.stderr + done.stdout
    assert printed.count("can't be reached") == 1 and "the run goes on without Prefect" in done.stderr
    lines = done.stdout.splitlines()
    assert "mlflow:" not in printed and lines[1].endswith("; pages: `trnflow ui`")
    assert lines[-1].startswith("load_data  ") and lines[-3].startswith("stage  ")
    # a tracking server of the recipe's own is one that `trnflow ui` does not know
    named = shell("run", "mine.yaml", "--until", "load_data", "--direct", "tracking.experiment=mine").stdout
    assert named.count("mlflow:  http://") == 1


def test_an_unwritable_store_is_named(trnflow: Shell) -> None:
    (trnflow.folder / "file").write_text("")
    command, store = ("run", "mine.yaml", "--until", *DATA), str(trnflow.folder / "file/store")
    assert "file/store" in Shell(trnflow.folder).error(*command, code=1, TRNFLOW_STORE=store)


def test_usage_errors_of_the_parser_exit_with_2(trnflow: Shell) -> None:
    assert Shell(trnflow.folder)("run").returncode == 2
    assert trnflow("rnu", "demo").returncode == 2
    assert trnflow("--help").returncode == 0
    said = trnflow("plan", "demo", "http://me:open-sesame@example.org/x").stderr
    assert "unrecognized arguments: http://***@example.org/x" in said


def test_the_doctor_says_what_there_is(trnflow: Shell) -> None:
    checks = {check["name"]: check for check in trnflow.json("doctor")["checks"]}
    assert checks["torch"]["ok"]
    assert checks["store"]["ok"]


def test_the_doctor_ends_with_1_where_something_is_wrong(trnflow: Shell) -> None:
    (home := trnflow.folder / ".trnflow").mkdir(exist_ok=True)
    home.chmod(0o755)
    done = trnflow("doctor")
    assert done.returncode == 1 and ": other users can read it  fix: chmod 700 " in done.stdout


def test_each_module_adds_the_commands_that_the_table_says() -> None:
    """`trnflow COMMAND` imports the module of the command alone, so a command that the table misses would not exist."""
    commands = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    assert [name for names, _ in GROUPS.values() for name in names] == list(commands)
    for name in commands:
        own = next(a for a in parser(name)._actions if isinstance(a, argparse._SubParsersAction)).choices
        assert name in own and own[name].format_help() == commands[name].format_help()


def test_each_command_stands_under_one_heading_of_the_help_in_a_short_line(trnflow: Shell) -> None:
    """The page as printed: eight headings, each command once, `more` is not where everything goes."""
    page, commands = trnflow("--help").stdout, [name for names, _ in GROUPS.values() for name in names]
    blocks = [block.splitlines() for block in page.split("\n\n")]
    headings = {block[0]: block[1:] for block in blocks if re.fullmatch(r"[a-z ]+", block[0])}
    assert [*headings] == [
        "start", "run", "look", "models", "data and store", "every night", "machines", "more",
    ]  # fmt: skip
    rows = [re.fullmatch(r"  ([a-z]+) +(.+)", row) for rows in headings.values() for row in rows]
    assert sorted(row[1] for row in rows) == sorted(commands)
    assert not [row[0] for row in rows if len(row[2]) > 60]
    assert len(headings["more"]) <= 4 and max(len(line) for line in page.splitlines()) <= 84


def test_with_json_lines_all_on_stderr_is_objects_without_secrets(trnflow: Shell) -> None:
    shell = Shell(trnflow.folder)
    shell.warm = False
    done = shell("run", "mine.yaml", "--until", *DATA, "--json", TRNFLOW_LOG="json")
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 0 and json.loads(done.stdout)["recipe"] == "mine"
    assert said[0]["message"].startswith("made ")
    ran = [(one["stage"], one["action"]) for one in said if "action" in one]
    stages = ["load_data", "format_prompts", "tokenize_text", "pack_chunks"]
    assert ran == [(stage, "ran") for stage in stages]
    source = "data.source=http://me:pl4nted-s3cret@127.0.0.1:1/rows.csv"
    failed = trnflow("run", "mine.yaml", "--until", *DATA, source, TRNFLOW_LOG="json")
    last = [json.loads(line) for line in failed.stderr.splitlines()][-1]
    assert (failed.returncode, last["level"], last["type"]) == (1, "error", "DataError")
    assert "127.0.0.1" in last["message"] and last["fix"]
    assert "pl4nted-s3cret" not in failed.stderr + failed.stdout


@pytest.mark.parametrize(
    ("arguments", "said", "command"),
    [
        (("run",), "the following arguments are required: recipe", "trnflow run"),
        (("preview", "mine.yaml", "many"), "invalid int value: 'many'", "trnflow preview"),
        (("rum",), "invalid choice: 'rum'", "trnflow"),
        (("runs", "--fast"), "unrecognized arguments: --fast", "trnflow"),
        ((), "required: COMMAND", "trnflow"),
    ],
)
def test_with_json_lines_wrong_usage_is_one_error(
    trnflow: Shell, arguments: tuple[str, ...], said: str, command: str
) -> None:
    done = trnflow(*arguments, TRNFLOW_LOG="json")
    (line,) = done.stderr.splitlines()
    error = json.loads(line)
    assert (done.returncode, done.stdout, error["level"], error["type"]) == (2, "", "error", "ConfigError")
    assert said in error["message"]
    assert error["fix"].startswith(f"`{command} --help`")


def test_a_wrong_kind_of_log_is_one_clear_error(trnflow: Shell) -> None:
    assert "TRNFLOW_LOG is 'xml', and can be text or json" in trnflow.error("runs", code=2, TRNFLOW_LOG="xml")


def test_the_garbage_of_a_program_that_calls_is_still_collected(tmp_path: Path) -> None:
    frozen = gc.get_freeze_count()
    InProcessShell(tmp_path)("runs")
    assert gc.get_freeze_count() == frozen


@pytest.mark.parametrize("given", [None, "mine"])
def test_the_choice_of_pydantic_s_plugins_is_as_before_when_a_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", str(given))  # so that it is set back
    if given is None:
        monkeypatch.delenv("PYDANTIC_DISABLE_PLUGINS")
    with _quick_imports():
        assert os.environ["PYDANTIC_DISABLE_PLUGINS"] == (given or "__all__")
    assert os.environ.get("PYDANTIC_DISABLE_PLUGINS") == given


@pytest.mark.parametrize(("free", "ok"), [(4_900_000_000, False), (5_000_000_000, True)])
def test_the_doctor_asks_for_five_gb_of_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, ok: bool
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: argparse.Namespace(free=free))
    check = _disk(tmp_path)
    assert (check.ok, check.found) == (ok, "5 GB free")
