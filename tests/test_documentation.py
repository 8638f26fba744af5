"""README and docs name files, commands and settings that exist; the README's recipe is one that loads."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

import pytest

from tests import troubleshooting
from tests.conftest import PROJECT
from trnflow.flows.cli.headings import HEADINGS
from trnflow.flows.cli.main import parser
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.reference import settings_of
from trnflow.flows.runner.graph import Lookup

PAGES = [
    PROJECT / "README.md",
    PROJECT / "SECURITY.md",
    PROJECT / "CONTRIBUTING.md",
    PROJECT / "CHANGELOG.md",
    PROJECT / "ARCHITECTURE.md",
    *sorted((PROJECT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    links = [page.parent / link for link in re.findall(r"\]\((?!http)([^)#]+)\)", text)]
    paths = [PROJECT / path for path in re.findall(r"`((?:flows|tasks|tests|conf|docs)/[\w/.-]*)`", text)]
    assert not [path for path in links + paths if not path.exists()]
    top = parser()
    commands = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction)).choices
    assert set(re.findall(r"(?:^    |`)trnflow ([a-z]+)", text, re.MULTILINE)) <= set(commands)
    known = {one.name for one in settings_of(settings.Recipe)}
    sections = "|".join(name for name in settings.Recipe.model_fields if f"{name}." in " ".join(known))
    named = set(re.findall(rf"(?<![\w.])(?:{sections})\.[a-z_]+(?:\.[a-z_]+)?(?![\w./(])", text))
    assert not {name for name in named if not any(f"{name}.".startswith(f"{one}.") for one in known)}


def test_texts_of_the_code_name_commands_that_exist() -> None:
    top = parser()
    commands = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction)).choices
    files = [file for folder in ("flows", "tasks", "trnflow") for file in (PROJECT / folder).rglob("*.py")]
    named = {name for file in files for name in re.findall(r"`trnflow ([a-z]+)", file.read_text())}
    assert len(named) > 20 and not named - {*commands}


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    return {slug(heading) for heading in re.findall(r"^#+ .+$", page.read_text(), re.MULTILINE)}


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lstrip("# ").lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_link_to_a_heading_finds_it(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text())
    assert not [(name, anchor) for name, anchor in links if anchor not in slugs(page.parent / name if name else page)]


SCREEN = 36
"""Lines of a page, or of a section, that are seen first."""
QUESTIONS = {
    "How do I get an answer to each row of test.csv?": ("docs/predict.md", "--file rows.jsonl --out predictions.csv"),
    "Which scores do I get, and can I compute them again?": ("docs/evaluation.md", "| classification | `label`"),
    "What are TrainingArguments called here?": ("docs/coming-from.md#trainer", "`trnflow settings num_train_epochs`"),
    "Where do my own loss and preprocessing go?": ("docs/own_code.md", "format: {make: formats:ticket}"),
    "Does it take my axolotl config?": ("docs/coming-from.md", "trnflow new config.yml"),
    "Does an 8 B model fit on my card?": ("docs/training.md#memory", "| Llama 3.1 8B |"),
    "How do I train on SageMaker, and has it run there?": (
        "docs/machines.md#sagemaker",
        "Nothing of this has run on AWS",
    ),
    "What does an instance cost?": ("docs/machines.md#sagemaker", "**What it costs**"),
    "How do I train every night, and who tells me?": ("docs/retrain.md", "where messages go"),
    "The new model is worse: how do I go back?": ("docs/champions.md", "trnflow rollback RECIPE"),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_one_click_from_the_readme(question: str) -> None:
    link, answer = QUESTIONS[question]
    page, _, anchor = link.partition("#")
    lines = (PROJECT / page).read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("#") and (not anchor or slug(line) == anchor))
    assert f"({link})" in (PROJECT / "README.md").read_text()
    assert answer in "\n".join(lines[begin : begin + SCREEN])


def test_the_commands_of_the_page_are_grouped_as_in_the_help() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| (.+) \| .+ \|$", (PROJECT / "docs/operation.md").read_text(), re.MULTILINE)
    page = {group: text for group, text in rows if group in HEADINGS}
    assert [*page] == [*HEADINGS]
    every = {name for names in HEADINGS.values() for name in names}
    for group, text in page.items():
        assert {name for name in re.findall(r"`([a-z]+)", text) if name in every} == {*HEADINGS[group]}


def test_each_promise_of_security_has_its_test() -> None:
    rows = [row for row in (PROJECT / "SECURITY.md").read_text().splitlines() if row.startswith("| ")][1:]
    named = [re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row) for row in rows]
    assert len(rows) > 10 and all(named)
    assert not [
        (file, test) for tests in named for file, test in tests
        if not (PROJECT / file).exists() or (test and f"def {test}(" not in (PROJECT / file).read_text())
    ]  # fmt: skip


def test_the_recipe_of_the_readme_loads(tmp_path: Path) -> None:
    text = (PROJECT / "README.md").read_text()
    (tmp_path / "tweets.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    recipe = settings.load(str(tmp_path / "tweets.yaml"), ["on=cpu", "train.epochs=1", "data.limit=1000"])
    assert (recipe.name, recipe.train.device, recipe.train.epochs) == ("tweets", "cpu", 1)


def table(page: str, begins: str) -> list[list[str]]:
    """Return the cells of the rows, below the line, of the page's table whose head begins so."""
    rows = (PROJECT / page).read_text().partition(f"\n{begins}")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_what_each_stage_reads_is_what_the_page_of_the_store_says() -> None:
    recipe = settings.load("demo")
    lines = re.findall(r"^\| (\w+) \| (\w+)[^|]* \| ([^|]+) \|$", (PROJECT / "docs/store.md").read_text(), re.MULTILINE)
    files = {"source": "the rows' files", "model": "the model's files", "base": "the model's files"}
    for node, (stage, section, reads) in zip(finetune(recipe).nodes, lines[1:], strict=True):
        assert stage == node.name and isinstance(getattr(recipe, section), type(node.config))
        inputs = {files.get(name) if isinstance(item, Lookup) else item.name for name, item in node.inputs.items()}
        assert set(reads.split(", ")) == inputs


def test_the_picture_of_the_stages_is_of_these_stages() -> None:
    from tests.pictures import stages

    assert (PROJECT / "docs/stages.svg").read_text() == stages()


def test_the_figures_of_the_readme_are_the_measured_ones() -> None:
    text = (PROJECT / "README.md").read_text()
    measured = {row[0].split()[0]: row[1:] for row in table("docs/training.md", "| set | tfidf |")}
    cells = [
        [measured[name][at] for at in (0, 2, -1)] for name in ("emotion-500", "roget-2000", "books-1600", "reviews-500")
    ]
    shown = [row[1:] for row in table("README.md", "| rows of train |")]
    assert shown == [[re.sub(r" / [\d.]+| \(.*|; \d seeds", "", cell) for cell in row] for row in cells]

    tools = {row[0].split()[0].rstrip(","): row for row in table("docs/own_code.md", "| tool | the function is |")}
    for cell in (2, 3):
        counts = [(tool, tools[tool][cell].split(":")[0]) for tool in ("DVC", "redun", "Hamilton", "Metaflow")]
        ours = tools["trnflow"][cell]
        assert f"| {ours} | {', '.join(f'{tool} {count}' for tool, count in counts)} |" in text

    full, lora = (
        {row[0]: int(row[1].replace(",", "")) for row in table("docs/machines.md", f"| {head}")}
        for head in ("all weights", "LoRA, rank 16")
    )
    ways = ("neither (another run)", "`compile: true`", "`compile: true`, `deterministic: false`")
    times = [full[way] / full["HF Trainer, Liger's kernels (another run)"] for way in ways]
    times.append(lora[ways[2]] / lora["HF Trainer with peft, Liger's kernels"])
    assert f"| {'; '.join(f'{each:.2f}' for each in times)} | HF Trainer, Liger: 1 |" in text


def test_the_table_of_the_defaults_has_what_was_measured() -> None:
    from tests.bench import bench_defaults

    page = (PROJECT / "docs/training.md").read_text().splitlines()
    lines = bench_defaults.table(bench_defaults.kept()).splitlines()
    assert len(lines) > 5 and not [line for line in lines if line not in page]


def test_the_families_of_the_readme_are_those_of_the_tests() -> None:
    from tests.parity.test_families import DECODERS, ENCODERS

    rows = table("README.md", "| task | a row |")
    named = {name.replace(" ", "").lower() for row in rows for name in row[2].split(", ")}
    assert named == {*ENCODERS, *DECODERS}


def test_each_error_that_the_code_raises_is_on_the_page_of_troubleshooting() -> None:
    page = troubleshooting.PAGE.read_text()
    missing = [(module, text) for module, text in troubleshooting.errors() if text.replace("`", "'") not in page]
    assert not missing and page == troubleshooting.page(), "write it anew: python -m tests.troubleshooting"
    assert troubleshooting.section_of("flows/unheard_of") is None


def test_the_text_of_an_error_is_what_stands_in_its_call() -> None:
    def shown(call: str) -> list[str]:
        return [*troubleshooting.texts(ast.parse(call, mode="eval").body)]

    assert shown("f'{path} has no rows, only ' 'names'") == ["… has no rows, only names"]
    assert shown("'a b' if x else f'there is no {y!r} in the store'") == ["there is no … in the store"]
    assert shown("message") == []


def test_the_pages_are_short() -> None:
    readme = (PROJECT / "README.md").read_text()
    assert len(readme.splitlines()) <= 120 and len(readme.split()) <= 1000
    assert max(len(line) for line in readme.splitlines()) <= 160
    assert len((PROJECT / "ARCHITECTURE.md").read_text().splitlines()) <= 160
    assert len((PROJECT / "CHANGELOG.md").read_bytes()) <= 3000
    assert len((PROJECT / "CONTRIBUTING.md").read_text().splitlines()) <= 20
