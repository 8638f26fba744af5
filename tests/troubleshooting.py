"""Write docs/troubleshooting.md from the errors that the code raises: `python -m tests.troubleshooting`.

An error's text is what stands in its call, with … for values. Two errors whose texts begin alike are one line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "troubleshooting.md"
KINDS = {"ConfigError", "DataError", "MachineError", "ModelError", "StoreError"}
LONGEST = 56
"""Characters of a text that the page shows, cut at a word."""


class Section(NamedTuple):
    """begins: the modules whose errors it has, the first section that fits; advice: links to pages."""

    title: str
    begins: tuple[str, ...]
    advice: str


SECTIONS = (
    Section(
        "`trnflow new` and the shape of a file",
        ("flows/authoring", "flows/cli/new_commands"),
        "`new` looked at your file and can't know what is meant. Give the setting that the error names on the same command line: "
        "[what it asks](own-data.md#what-it-asks).",
    ),
    Section(
        "A config of another program",
        ("flows/translation",),
        "The error names the key and its line. What has another name here stands in [coming from](coming-from.md).",
    ),
    Section(
        "A recipe, a setting, an override",
        ("flows/recipes", "tasks/config", "flows/finetune", "flows/python"),
        "The error names file and line. `trnflow settings NAME` describes a setting, `trnflow config RECIPE` prints all: "
        "[recipes](recipes.md), [settings](settings.md).",
    ),
    Section(
        "Where data and models come from",
        ("tasks/sources",),
        "A path is relative to the file that wrote it. A hub needs a network, and `HF_TOKEN` for gated models: "
        "[sources](data.md#sources).",
    ),
    Section(
        "Rows, columns, labels, splits",
        ("tasks/data/load", "tasks/load_data", "tasks/kinds", "tasks/data/columns"),
        "The error names file and row. `data.nulls=drop` leaves bad rows out and counts them: "
        "[data](data.md), [tasks](tasks.md).",
    ),
    Section(
        "Formats, chat templates, tokens, chunks",
        ("tasks/data", "tasks/format_prompts", "tasks/tokenize_text", "tasks/pack_chunks"),
        "`trnflow preview RECIPE` shows the first rows as the model reads them: "
        "[what a row's fields do](data.md#what-a-rows-fields-do).",
    ),
    Section(
        "Functions of your own",
        ("tasks/keys", "tasks/own_stage", "flows/runner/own_code"),
        "The error names your line: [own code](own_code.md).",
    ),
    Section(
        "Models, layouts, training",
        (
            "tasks/training",
            "tasks/train",
            "tasks/precompile",
            "tasks/consolidate",
            "tasks/model_folder",
            "tasks/compute_reference",
        ),
        "Most are found by `plan`, before anything runs: [training](training.md).",
    ),
    Section(
        "Export, evaluation, prediction",
        (
            "tasks/export",
            "tasks/evaluation",
            "tasks/evaluate_model",
            "tasks/predict_rows",
            "tasks/run_harness",
            "tasks/prediction",
            "flows/cli/model/predict",
            "flows/cli/model/serve",
        ),
        "[Evaluation](evaluation.md), [predict](predict.md).",
    ),
    Section(
        "A run, its plan, a rehearsal",
        (
            "flows/runner",
            "tasks/rehearsal",
            "flows/rehearsal",
            "tasks/stage",
            "tasks/artifact",
            "tasks/events",
            "flows/events",
        ),
        "`trnflow explain RECIPE STAGE` says what changed, `trnflow logs last` what the stage printed: "
        "[commands](operation.md), [rehearse](rehearse.md).",
    ),
    Section(
        "The store, names of models",
        ("tasks/store", "flows/models"),
        "`trnflow verify` reads everything and names damage: [the store](store.md), [names](operation.md#naming-a-model).",
    ),
    Section(
        "Champions, retraining, sweeps",
        ("flows/champions", "tasks/promotion", "flows/retraining", "flows/sweeps"),
        "[Champions](champions.md), [retraining](retrain.md), [sweeps](sweeps.md).",
    ),
    Section(
        "Prefect, MLflow, schedules",
        ("flows/services", "flows/deployments", "tasks/tracking"),
        "`trnflow health` says what is not well: [Prefect](prefect.md), [services](services.md).",
    ),
    Section(
        "Other machines, jobs, Slurm",
        ("flows/jobs", "tasks/platforms", "flows/cli/job_commands"),
        "`trnflow jobs` says what became of a job: [machines](machines.md#jobs).",
    ),
    Section(
        "This machine: memory, disk, processes",
        ("tasks/system", "tasks/launch", "tasks/errors", "flows/cli/doctor"),
        "`trnflow doctor` checks this machine: [memory of a stage](machines.md#memory-of-a-stage), "
        "[environment](environment.md).",
    ),
    Section(
        "Commands",
        ("flows/cli", "flows/display"),
        "`trnflow COMMAND --help` shows what can be given: [commands](operation.md).",
    ),
)

HEAD = """# Troubleshooting

An error is one line: what happened, where, and what to do. `--debug` adds the traceback, `trnflow logs last` prints
what the processes of a run said. Search this page for words of the error: each section names the pages that help, and
lists how its errors begin, with … for a name or a value. `python -m tests.troubleshooting` writes the page.
"""


def errors() -> Iterator[tuple[str, str]]:
    """Yield (module, text) of each error of KINDS that the code makes with a text of its own."""
    for folder in ("flows", "tasks"):
        for path in sorted((PROJECT / folder).rglob("*.py")):
            module = path.relative_to(PROJECT).with_suffix("").as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in KINDS
                    and node.args
                ):
                    for text in texts(node.args[0]):
                        yield module, text


def texts(node: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression can be, as the page shows them; none without three words of our own."""
    branches = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
    for branch in branches:
        whole = " ".join(literal(branch).split())
        if len(re.findall(r"[A-Za-z]{2,}", whole)) >= 3:
            yield shortened(whole)


def literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return "…"


def shortened(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return text[:LONGEST].rpartition(" ")[0].rstrip(",;:(") + " …"


def section_of(module: str) -> Section | None:
    fitting = (section for section in SECTIONS if any(module.startswith(begins) for begins in section.begins))
    return next(fitting, None)


def page() -> str:
    """Return the page. Raises LookupError for a module that has errors and no section."""
    lines: dict[Section, set[str]] = {section: set() for section in SECTIONS}
    for module, text in errors():
        section = section_of(module)
        if section is None:
            raise LookupError(f"{module} raises errors and is of no section of {Path(__file__).name}")
        lines[section].add(text)
    parts = [HEAD]
    for section, found in lines.items():
        rows = "\n".join(f"- `{text.replace('`', chr(39))}`" for text in sorted(found, key=by_words))
        parts.append(
            f"## {section.title}\n\n{section.advice}\n\n<details><summary>{len(found)} errors</summary>\n\n{rows}\n\n</details>\n"
        )
    return "\n".join(parts)


def by_words(text: str) -> tuple[str, str]:
    return re.sub(r"[^a-z ]", "", text.lower()).strip(), text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
