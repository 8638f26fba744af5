"""`trnflow new` on the command line: what is written, what is refused, a terminal that is asked, a hub that answers or not."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import PROJECT
from tests.flows.authoring.test_choose import KINDS, lines, sentence, table
from tests.helpers.command_line import InProcessShell, Shell
from tests.helpers.hub_server import serve
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from trnflow.flows.authoring.write import write_recipe
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.services.deployed_recipes import check_recipes
from trnflow.tasks.errors import ConfigError

TICKETS = table("id", "body", "category", rows=200, body=sentence, category=KINDS)
SCORES = table("text", "score", score=lambda n: n / 7)
NOBODY = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "tickets.csv").write_bytes(TICKETS)
    (tmp_path / "scores.csv").write_bytes(SCORES)
    return Shell(tmp_path)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The same in this process. A model of one's own needs no hub."""
    (tmp_path / "tickets.csv").write_bytes(TICKETS)
    (tmp_path / "scores.csv").write_bytes(SCORES)
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text('{"model_type": "bert"}')
    return InProcessShell(tmp_path)


def test_it_says_what_it_takes_for_what_and_writes_a_recipe_that_loads(here: Shell) -> None:
    done = here("new", "tickets.csv", "model.source=base", "train.epochs=7")
    assert done.returncode == 0, done.stderr
    assert "text <- body (mean 13 words)\nlabel <- category (3 values)\nnot used: id (numbers" in done.stdout
    text = (here.folder / "tickets.yaml").read_text()
    assert "# label <- category (3 values)" in text and len(text.splitlines()) < 30
    recipe = settings.load(str(here.folder / "tickets.yaml"))
    assert (recipe.name, recipe.data.text, recipe.data.label) == ("tickets", "body", "category")
    assert recipe.data.split == {"validation": 0.1, "test": 0.1}
    assert (recipe.train.epochs, recipe.model.source) == (7, "base")
    assert "this machine: trains on " in done.stdout and "# this machine: trains on " in text
    assert recipe.folder("data.source") == here.folder


def test_with_code_a_function_and_its_test_lie_beside_the_recipe(here: Shell) -> None:
    (here.folder / "pairs.csv").write_bytes(
        table("prompt", "completion", rows=60, prompt=sentence, completion=sentence)
    )
    for data, row in (("tickets.csv", {"body": "a"}), ("pairs.csv", {"prompt": "a"})):
        done = here("new", data, "--code", "model.source=base")
        assert done.returncode == 0, done.stderr
        recipe = settings.load(str(here.folder / data.replace(".csv", ".yaml")))
        assert recipe.format.make == "formats:make" and recipe.format.prompt_template is None
        program = f"import test_formats as t; t.test_make(); assert t.make({row!r}) == 'a'"
        subprocess.run([sys.executable, "-c", program], cwd=here.folder, check=True)
        assert "formats.py exists" in here.error("new", data, "--code", "name=other", "model.source=base", code=2)
        (metric,) = recipe.evaluate.metrics
        program = f"import test_metrics as t; t.test_{metric.name}()"
        subprocess.run([sys.executable, "-c", program], cwd=here.folder, check=True)
        for name in ("formats.py", "test_formats.py", "metrics.py", "test_metrics.py"):
            (here.folder / name).unlink()


def test_with_code_a_recipe_whose_texts_no_function_makes_has_a_metric(here: Shell) -> None:
    (here.folder / "news.conll").write_text("Ann B-PER\nsits O\n\n" * 40)
    done = here("new", "news.conll", "--code", "model.source=base")
    assert done.returncode == 0, done.stderr
    recipe = settings.load(str(here.folder / "news.yaml"))
    assert recipe.format.make is None and [one.function for one in recipe.evaluate.metrics] == ["metrics:share_right"]
    subprocess.run(
        [sys.executable, "-c", "import test_metrics as t; t.test_share_right()"], cwd=here.folder, check=True
    )
    assert not (here.folder / "formats.py").exists()


def test_unused_fields_are_named_and_kept_in_the_recipe_and_refusals_are_foretold(here: Shell) -> None:
    talk = [
        {"role": "user", "content": "hi", "id": 1, "name": "ann"},
        {"role": "assistant", "content": "ho", "weight": 1},
    ]
    rows = lines(lambda n: {"messages": talk, "source": "web", "system": f"Be {n}.", "weight": 0.5, "images": []})
    (here.folder / "talks.jsonl").write_bytes(rows)
    document = here.json("new", "talks.jsonl", "model.source=base", "name=first")
    assert document["settings"]["data"]["ignore"] == ["source", "weight", "images", "messages.id"]
    said = here("new", "talks.jsonl", "model.source=base").stdout
    assert "system <- system" in said and "used only where the chat template reads them: messages.id\n" in said
    (refused,) = (line for line in said.splitlines() if line.startswith("refused: "))
    assert refused.startswith(
        "refused: rows with the column weight, which nothing here reads: rows have no weights here"
    )
    text = (here.folder / "talks.yaml").read_text()
    assert "  ignore: [source, weight, images, messages.id]   # not used; others are named by `plan` and `run`" in text


def test_nothing_is_overwritten(here: Shell) -> None:
    (here.folder / "tickets.yaml").write_text("mine")
    assert "tickets.yaml exists" in here.error("new", "tickets.csv", "model.source=base", code=2)
    assert (here.folder / "tickets.yaml").read_text() == "mine"
    assert here("new", "tickets.csv", "model.source=base", "name=other").returncode == 0
    (here.folder / "prefect.yaml").write_text("mine")
    asked = ("new", "tickets.csv", "model.source=base", "name=third", "--deploy", "0 3 * * *")
    assert "prefect.yaml exists" in here.error(*asked, code=2)
    assert (here.folder / "prefect.yaml").read_text() == "mine" and not (here.folder / "third.yaml").exists()


def test_a_shipped_recipe_s_name_is_refused(here: Shell) -> None:
    (here.folder / "demo.csv").write_bytes(TICKETS)
    assert "name=my-demo" in here.error("new", "demo.csv", "model.source=base", code=2)


@pytest.mark.parametrize(
    ("file", "name"),
    [("rows/train.csv", "rows"), ("My file (1).csv", "My-file-1"), ("a.b.csv.gz", "a-b"), ("x/data/train.jsonl", "x")],
)
def test_a_recipe_has_the_name_of_its_data(here: Shell, file: str, name: str) -> None:
    (here.folder / file).parent.mkdir(parents=True, exist_ok=True)
    content = TICKETS if ".csv" in file else lines(lambda n: {"text": sentence(n), "label": n % 2})
    (here.folder / file).write_bytes(content)
    assert here.json("new", file, "model.source=base")["written"] == [f"{name}.yaml"]


def test_a_question_is_exit_code_2_with_the_setting_that_answers_it(here: Shell) -> None:
    said = here.error("new", "scores.csv", "model.source=base", code=2)
    answer = re.search(r"'(data\.label=score >= [\d.]+)'", said)
    assert answer and not (here.folder / "scores.yaml").exists()
    document = here.json("new", "scores.csv", answer[1], "model.source=base")
    assert document["settings"]["data"]["label"] == answer[1].removeprefix("data.label=")


def test_a_terminal_is_asked(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"9\n3\n")  # there is no ninth
    done = subprocess.run(
        [sys.executable, "-m", "trnflow", "new", "scores.csv", "model.source=base"],
        cwd=shell.folder, env=shell.environ, stdin=theirs, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "amounts, or classes?" in done.stderr and done.stderr.count("1 to 3:") == 2
    assert "task: text" in done.stdout and "task: text" in (shell.folder / "scores.yaml").read_text()


def test_without_a_hub_the_model_is_tiny_and_that_is_said(shell: Shell) -> None:
    done = shell("new", "tickets.csv", "model.config.num_hidden_layers=1", **NOBODY)  # that names no model
    assert done.returncode == 0 and "no hub could be asked for the model of `classify`" in done.stdout
    recipe = settings.load(str(shell.folder / "tickets.yaml"))
    assert recipe.model.source is None and recipe.model.config["model_type"] == "bert" and recipe.tokenize.train
    (shell.folder / "chats.jsonl").write_bytes(
        lines(lambda n: {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": sentence(n)}]})
    )
    assert shell("new", "chats.jsonl", **NOBODY).returncode == 0
    recipe = settings.load(str(shell.folder / "chats.yaml"))
    assert recipe.model.config["model_type"] == "llama" and recipe.format.chat_template == "sections"


def test_with_a_hub_the_base_is_named_with_its_revision(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    base = settings.load("classify").model
    monkeypatch.setattr("tests.helpers.hub_server.Hub.repo", base.source)
    monkeypatch.setattr("tests.helpers.hub_server.Hub.head", base.revision)
    with serve({"config.json": b"{}"}, kind="models") as url:
        done = shell("new", "tickets.csv", "--json", HF_ENDPOINT=url, HF_HOME=str(shell.folder / "hf"))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert not document["from_scratch"]
    assert document["settings"]["model"] == {"source": base.source, "revision": base.revision}
    assert base.source in (shell.folder / "tickets.yaml").read_text()


def test_a_test_split_without_the_label_is_left_out(here: Shell) -> None:
    (here.folder / "set").mkdir()
    (here.folder / "set/train.csv").write_bytes(TICKETS)
    (here.folder / "set/test.csv").write_bytes(table("id", "body", body=sentence))
    assert here("new", "set", "model.source=base").returncode == 0
    text = (here.folder / "set.yaml").read_text()
    assert "splits: {train: train}   # not test: it has no column category" in text
    assert settings.load(str(here.folder / "set.yaml")).data.split == {"validation": 0.1, "test": 0.1}


def test_rows_of_the_same_user_can_be_kept_in_one_split(here: Shell) -> None:
    users = table("user_id", "body", "category", user_id=[*"aabbcc"], body=sentence, category=["x", "y", "z"])
    (here.folder / "users.csv").write_bytes(users)
    told = "user_id stands in several rows: data.split_by=user_id keeps those of each user_id in the same split"
    assert told in here("new", "users.csv", "model.source=base").stdout
    again = here("new", "users.csv", "name=apart", "model.source=base", "data.split_by=user_id")
    assert again.returncode == 0 and told not in again.stdout, again.stderr
    data = settings.load(str(here.folder / "apart.yaml")).data
    assert (data.split_by, data.columns, data.stratify) == ("user_id", {"user_id": "user_id"}, False)


def test_a_setting_of_another_task_is_one_line(here: Shell) -> None:
    (here.folder / "t.csv").write_bytes(table("body", "category", body=sentence, category=["x", "y", "z"]))
    told = here("new", "t.csv", "model.source=base", "format.words=body")
    assert told.returncode and "`words` is for token_classification, not classification" in told.stderr
    assert "unexpected" not in told.stderr


def test_a_column_that_says_which_split_a_row_is_in_is_not_passed_over(here: Shell) -> None:
    columns = {"body": sentence, "category": ["x", "y", "z"], "split": ["train", "train", "Val", "test"]}
    told = "split says which split a row is in (train, Val, test), and nothing reads it: the recipe draws splits of its own"
    for name, values, is_told in (("own", columns["split"], True), ("cars", ["train", "bus", "bicycle"], False)):
        (here.folder / f"{name}.csv").write_bytes(table("body", "category", "split", **columns | {"split": values}))
        assert (told in here("new", f"{name}.csv", "model.source=base", "data.label=category").stdout) == is_told
    (here.folder / "set").mkdir()
    for name in ("train", "test"):
        (here.folder / f"set/{name}.csv").write_bytes(table("body", "category", "split", **columns | {"split": [name]}))
    assert "says which split" not in here("new", "set", "model.source=base").stdout


def test_a_split_by_users_of_chats_and_by_few_users(here: Shell) -> None:
    talk = [{"role": "user", "content": "what is {n}?"}, {"role": "assistant", "content": "it is {n}"}]
    rows = [
        {"messages": json.loads(json.dumps(talk).replace("{n}", f"{n}")), "user_id": f"u{n % 9}"} for n in range(60)
    ]
    (here.folder / "talks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert here("new", "talks.jsonl", "model.source=base", "data.split_by=user_id").returncode == 0
    data = settings.load(str(here.folder / "talks.yaml")).data
    assert (data.split_by, data.columns) == ("user_id", {}), "all columns are loaded"
    alone = table("author", "body", "category", author=["me"], body=sentence, category=["x", "y", "z"])
    (here.folder / "alone.csv").write_bytes(alone)
    assert "data.split_by" not in here("new", "alone.csv", "model.source=base").stdout
    (here.folder / "blank.csv").write_bytes(table("body", "label", body=sentence, label=[""]))
    assert "unexpected" not in here("new", "blank.csv", "model.source=base", "data.label=label").stderr


def test_a_test_split_whose_labels_are_hidden_is_left_out(here: Shell) -> None:
    (here.folder / "set").mkdir()
    (here.folder / "set/train.csv").write_bytes(TICKETS)
    (here.folder / "set/valid.csv").write_bytes(TICKETS)
    (here.folder / "set/test.csv").write_bytes(table("id", "body", "category", body=sentence, category=[-1]))
    new = here("new", "set", "model.source=base")
    assert new.returncode == 0
    assert "splits: not test: its labels are unknown (-1)\n" in new.stdout
    assert "not test: its labels are unknown (-1)" in (here.folder / "set.yaml").read_text()
    data = settings.load(str(here.folder / "set.yaml")).data
    assert data.splits == {"train": "train", "validation": "validation"} and data.split["test"] == 0.1


def test_a_test_split_whose_labels_are_the_same_numbers_is_used(here: Shell) -> None:
    (here.folder / "set").mkdir()
    (here.folder / "set/train.csv").write_bytes(table("text", "label", label=["1.0", "2.0", "", "3.0"]))
    (here.folder / "set/test.csv").write_bytes(table("text", "label", label=[1, 2, 3]))
    assert "not test" not in here("new", "set", "model.source=base").stdout
    assert settings.load(str(here.folder / "set.yaml")).data.splits == {}


def test_few_rows_and_blank_ones(here: Shell) -> None:
    (here.folder / "few.csv").write_bytes(table("text", "label", rows=12, label=KINDS))
    assert "has 12 rows" in here.error("new", "few.csv", "model.source=base", code=1)
    (here.folder / "blank.csv").write_bytes(TICKETS + b"900,,bug\n901,what a day it was again,\n")
    assert "left out: rows without body (1), category (1)\n" in here("new", "blank.csv", "model.source=base").stdout
    assert "nulls: drop   # rows without body (1), category (1)" in (here.folder / "blank.yaml").read_text()


def test_blank_labels_of_the_test_split_are_left_out_too(here: Shell) -> None:
    (here.folder / "set").mkdir()
    (here.folder / "set/train.csv").write_bytes(TICKETS)
    (here.folder / "set/test.csv").write_bytes(TICKETS + b"900,what a day it was again,\n")
    assert "left out: rows without category (1)\n" in here("new", "set", "model.source=base").stdout
    assert settings.load(str(here.folder / "set.yaml")).data.nulls == "drop"


def test_labels_that_look_alike_are_named_before_anything_runs(here: Shell) -> None:
    (here.folder / "t.csv").write_bytes(table("text", "label", label=["joy", "Joy ", "fear"]))
    same = "labels that differ by surrounding blanks and capitals alone count as 2: 'Joy ' and 'joy'\n"
    assert same in here("new", "t.csv", "model.source=base").stdout
    (here.folder / "n.csv").write_bytes(table("text", "stars", stars=["1", "01", "5", "4"]))
    assert "count as 2: '01' and '1'" in here("new", "n.csv", "model.source=base", "name=classes").stdout
    assert "count as 2" not in here("new", "n.csv", "model.source=base", "data.label=stars >= 4").stdout


def test_a_file_that_another_program_wrote_meanwhile_stays(tmp_path: Path) -> None:
    (file := tmp_path / "mine.yaml").write_text("theirs")
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        write_recipe(file, "extends: demo\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.yaml"] and file.read_text() == "theirs"


def test_nearly_all_rows_fit_the_length_and_one_that_is_far_longer_does_not_count(here: Shell) -> None:
    for name, long, length in (("some", 10, 256), ("one", 1, 64)):
        rows = [sentence(n, 130 if n < long else 8) for n in range(100)]
        (here.folder / f"{name}.csv").write_bytes(table("text", "label", rows=100, text=rows, label=KINDS))
        assert here("new", f"{name}.csv", "model.source=base").returncode == 0
        recipe = settings.load(str(here.folder / f"{name}.yaml"))
        assert recipe.tokenize.max_length == recipe.pack.chunk_length == length


def test_a_schedule_is_written_beside_the_recipe(here: Shell) -> None:
    assert "is no schedule" in here.error("new", "tickets.csv", "model.source=base", "--deploy", "at night", code=2)
    assert here("new", "tickets.csv", "model.source=base", "--deploy", "0 3 * * *").returncode == 0
    document = yaml.safe_load((here.folder / "prefect.yaml").read_text())
    (deployment,) = document["deployments"]
    assert deployment["schedules"] == [{"cron": "0 3 * * *", "timezone": "UTC"}]
    assert deployment["parameters"] == {"recipe": "tickets.yaml", "overrides": []}
    shipped = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    ours = next(one for one in shipped if one["name"] == "retrain")
    assert deployment["work_pool"]["name"] == ours["work_pool"]["name"] and deployment["tags"] == ours["tags"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here.folder)
        assert check_recipes(document, "prefect.yaml") == {("tickets.yaml",): "tickets"}


@pytest.mark.parametrize(
    ("rows", "cron", "said"),
    [
        (
            30,
            "0 3 * * *",
            "freezes about 6 test rows: 6 frozen rows are too few for any challenger to win (7 at least): add ",
        ),
        (
            290,
            "0 3 * * *",
            "freezes about 29 test rows: on 29 frozen rows only a model 38.8 points of accuracy better is promoted (80%",
        ),
        (290, "0 3 1 * *", "at the first of 12 comparisons a year by the schedule in "),
        (5000, "0 3 * * *", ""),
    ],
)
def test_deploy_says_what_can_win_on_few_test_rows(here: Shell, rows: int, cron: str, said: str) -> None:
    (here.folder / "tickets.csv").write_bytes(table("text", "label", rows=rows, text=sentence, label=KINDS))
    asked = ("new", "tickets.csv", "model.source=base", "data.split={test: 0.1, validation: 0.1}", "--deploy", cron)
    asked = asked if rows != 30 else (*asked[:3], *asked[4:])
    found = here.json(*asked)["notes"]
    assert [said in note and "then `trnflow freeze tickets`" in note for note in found] == [True] * bool(said)


def test_deploy_says_how_to_get_a_schedule(here: Shell) -> None:
    assert '`trnflow new DATA --deploy "0 3 * * *"` writes one' in here.error("deploy", code=2)


def test_wrong_settings_of_the_source_are_named(here: Shell) -> None:
    assert "data.format" in here.error("new", "tickets.csv", "data.format=xls", code=2)
    assert "data.sauce" in here.error("new", "tickets.csv", "model.source=base", "data.sauce=1", code=2)
    assert [path.name for path in here.folder.glob("*.yaml")] == []
    assert "there is no data at" in here.error("new", "gone/rows.csv", code=2)


def test_the_recipes_rows_are_two_hundred_each(bench) -> None:
    for name in ("tickets", "questions", "chats"):
        rows = bench.rows(source=f"builtin:{name}", **({"text": "text", "label": "team"} if name == "tickets" else {}))
        assert rows.meta["splits"] == {"train": 200} and rows.meta["duplicates"] == 0
    assert rows.meta["nested"] == ["messages"]


@pytest.mark.usefixtures("inline_calls")
def test_both_answers_of_long_pairs_fit_a_chunk(here: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    answers = lines(
        lambda n: {"prompt": sentence(n) * 12, "chosen": sentence(n + 1) * 32, "rejected": sentence(n + 2) * 32},
        rows=24,
    )
    (here.folder / "answers.jsonl").write_bytes(answers)
    assert here("new", "answers.jsonl").returncode == 0
    assert "  # objective: reward   # " in (here.folder / "answers.yaml").read_text()
    done = here("run", "answers.yaml", "--direct", "--until", "pack_chunks")
    assert done.returncode == 0, done.stderr
