"""Write a draft as a recipe file, and a deployment of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from trnflow.flows.authoring.draft import Draft, listed
from trnflow.flows.authoring.given_model import GivenModel
from trnflow.flows.authoring.look import Column, Looked
from trnflow.flows.recipes.files import Origins, RecipeTree, SettingOrigin, read_tree, recipe_names
from trnflow.flows.recipes.recipe import Recipe, load, validated
from trnflow.flows.recipes.schema import merge
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.instruction_styles import STYLES
from trnflow.tasks.data.format.row_columns import ARGUMENTS, fixes_of, says_something
from trnflow.tasks.data.load.labels import whole_number
from trnflow.tasks.errors import ConfigError, DataError, ModelError
from trnflow.tasks.kinds.label_names import alike, say_the_same
from trnflow.tasks.sources.data_files import ALIASES, COMPRESSED, FORMATS
from trnflow.tasks.sources.hub_errors import is_out_of_reach
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.system.terminal import one_line

FEWEST_ROWS = 20
FEW_ROWS = 2000
MANY_ROWS = 5000
LENGTHS = (64, 128, 256, 512, 1024)
BYTES_A_TOKEN, HEADING_BYTES = 3.5, 3.0
"""Bytes of a token, of texts and of a template's headings, where no tokenizer is at hand."""
SPECIAL_TOKENS = 8
TALKING = ("chat", "preference", "unpaired_preference")
"""The tasks whose rows may be conversations, which a chat template writes."""
ENCODER, DECODER = "base/scratch/encoder", "base/scratch/decoder"
ENCODERS = ("classify", "multi-label", "regression", "token-classification", "reranker", "embedding")
COMPARING = ("preference", "unpaired-preference")
SCRATCH = {**dict.fromkeys(ENCODERS, ENCODER), **dict.fromkeys(("instruct", "chat", *COMPARING), DECODER)}
"""{shipped recipe: the model from scratch that stands in for its base}."""
OPTIONAL = ("tools", "documents", "context", "system", "history", ARGUMENTS)
"""What columns are taken for that rows may lack."""
PEOPLE = ("user", "author", "customer", "patient", "speaker", "session", "conversation", "thread")
"""Columns whose rows resemble each other, so that a test split with some of them is too easy."""
FEWEST_PEOPLE = 3
"""Else a split is left empty."""
TRAIN, HELD_OUT = {"train", "training"}, {"validation", "valid", "val", "dev", "eval", "test", "testing"}
"""Values of a column that says which split a row is in."""
PREFECT_FILE = "prefect.yaml"


def given_settings(overrides: list[str]) -> Meta:
    """Return the settings that the user named, {section: {setting: value}}. Raises ConfigError for a malformed one."""
    return RecipeTree(Recipe, "", {}, {}).with_overrides(overrides).tree


def given_origins(overrides: list[str]) -> Origins:
    """Return where errors say that the user's settings stand: on the command line."""
    return RecipeTree(Recipe, "", {}, {}).with_overrides(overrides).origins


def name_of(source: str, given: Meta) -> str:
    """Return the recipe's name: the user's, else that of the file, folder or dataset. Raises ConfigError for the name of
    a shipped recipe."""
    parts = [part for part in re.split(r"[/\\]", source.partition("?")[0].rstrip("/")) if part not in ("", ".", "..")]
    while len(parts) > 1 and (_stem(parts[-1]).lower() in (*ALIASES, "data") or "*" in parts[-1]):
        parts.pop()  # the folder of train.csv says more
    name = str(given.get("name") or re.sub(r"[^\w-]+", "-", _stem(parts[-1] if parts else "")).strip("-") or "mine")
    if name in recipe_names():
        raise ConfigError(f"{name} is the name of a shipped recipe", f"give yours another: name=my-{name}")
    return name


def _stem(name: str) -> str:
    for suffix in (*COMPRESSED, ".zip", *FORMATS):
        name = name.removesuffix(suffix)
    return name


def has_hub(base: str, given: Meta, resolver: Resolver) -> bool:
    """Return False if the recipe's model is on a hub that can't be reached. Raises ModelError if the hub refuses, or
    does not answer as a hub does."""
    if _names_model(given):
        return True
    try:
        model_source(load(base).model, resolver)
    except ModelError as error:
        if is_out_of_reach(error):
            return False
        error.fix += "; with HF_HUB_OFFLINE=1 the recipe gets a tiny model from scratch"
        raise
    return True


def _names_model(given: Meta) -> bool:
    model = given.get("model", {})
    if not isinstance(model, dict):  # which the recipe refuses
        return True
    return bool(model.get("source") or "model_type" in model.get("config", {}))


def complete(
    draft: Draft, looked: Looked, source: str, given: Meta, *, hub: bool, model: GivenModel | None = None
) -> None:
    """Add to a draft what its data does not decide: splits, lengths, what is missing. Raises DataError for few rows."""
    data = draft.settings["data"]
    if looked.rows < FEWEST_ROWS:
        raise DataError(f"{source} has {looked.rows} rows", f"give {FEWEST_ROWS} or more: some are kept for the test")
    draft.settings["data"] = data = {"source": source, **data}
    if source.startswith("builtin:"):
        data["name"] = None
    if looked.unreadable and not {"text", "label", "columns"} & data.keys():  # else all columns are loaded
        data["columns"] = {name: name for name in looked.columns}
    refused = {split: why for split, others in looked.others.items() if (why := _unlike(draft, looked, others))}
    usable = [split for split in looked.others if split not in refused]
    if refused:
        data["splits"] = {name: name for name in ("train", *usable)}
        draft.why["data.splits"] = "; ".join(f"not {split}: {why}" for split, why in refused.items())
    share = 0.2 if looked.rows < 100 else 0.1
    if missing := [split for split in ("validation", "test") if split not in usable]:
        data["split"] = dict.fromkeys(missing, share)
    by = given.get("data", {}).get("split_by")
    if isinstance(by, str) and data.get(by) != by and {"text", "label", "columns"} & data.keys():
        data["columns"] = {**data.get("columns", {}), by: by}
    elif missing:
        draft.also += _groups(draft, looked)
    draft.also += [] if usable else _own_splits(draft, looked)
    if draft.base in ENCODERS:
        if draft.base == "classify" and missing and looked.rows < FEW_ROWS and not by:
            data["stratify"] = True
            draft.why["data.stratify"] = "so few rows are shared out label by label"
        splits = [looked.columns, *(looked.others[split] for split in usable)]
        blank = {c.name: sum(split[c.name].blank for split in splits) for _, c in draft.taken}
        if any(blank.values()):
            data["nulls"] = "drop"
            rows = ", ".join(f"{name} ({count:,})" for name, count in blank.items() if count)
            draft.why["data.nulls"] = f"rows without {rows}"
    if not looked.is_whole or looked.rows > MANY_ROWS:
        rows = f"{'more than ' * (not looked.is_whole)}{looked.rows:,} rows"
        draft.others["data.limit"] = [(2000, f"for a first look: {rows} take a processor long")]
    length = chunk = _length(draft, model)
    if draft.base in COMPARING:  # whose chunks hold both answers
        length = min(length, LENGTHS[-1] // 2)
        chunk = 2 * length
    elif draft.base == "embedding":  # whose chunks hold each text of a row
        chunk = length * (3 if draft.settings["format"].get("negative") else 2)
    draft.settings["tokenize"], draft.settings["pack"] = {"max_length": length}, {"chunk_length": chunk}
    data["ignore"] = [*_rest(draft, looked), *draft.fields]
    if data["ignore"]:
        draft.why["data.ignore"] = "not used; others are named by `plan` and `run`"
    if model:
        _fit_to(draft, model)
    elif hub and not _names_model(given):
        usual = load(draft.base).model
        draft.settings["model"] = {"source": usual.source, "revision": usual.revision}
        draft.why["model.source"] = f"as `trnflow recipes` says of {draft.base}"
    if not hub:
        draft.also += [
            f"no hub could be asked for the model of `{draft.base}`: the recipe has a tiny one from scratch",
            "with a pretrained model in a folder: `trnflow new` again, with model.source=FOLDER and another name=NAME",
        ]
    merge(draft.settings, given, Recipe)
    draft.settings.pop("name", None)  # it is the file's


def _fit_to(draft: Draft, model: GivenModel) -> None:
    """Add to a draft what the model that the user named decides, and say where it does not know the texts."""
    draft.why["model.source"] = model.describe()
    read = [column for role, column in draft.taken if role not in ("label", "target")]
    draft.also += [f"model: {model.note}"] * bool(model.note)
    draft.also += [strange for column in read if (strange := model.strange(column))]
    if not model.has_template and draft.settings["format"]["task"] in TALKING:
        draft.settings["format"]["chat_template"] = "sections"
        draft.why["format.chat_template"] = "plain headings, because the model has no chat template"


def _groups(draft: Draft, looked: Looked) -> list[str]:
    """Return remarks on columns by which the rows could be split."""
    return [
        f"{name} stands in several rows: data.split_by={name} keeps those of each {name} in the same split"
        for name, column in _rest(draft, looked).items()
        if name.lower().removesuffix("_id") in PEOPLE
        and not column.is_unique
        and (column.many or len(column.counts) >= FEWEST_PEOPLE)
    ]


def _own_splits(draft: Draft, looked: Looked) -> list[str]:
    """Return a remark on columns that say which split a row is in."""
    return [
        f"{name} says which split a row is in ({', '.join(column.counts)}), and nothing reads it: the recipe draws splits of its "
        "own from all rows; to keep those of the data, write a file for each (train.csv, test.csv) and name their folder"
        for name, column in _rest(draft, looked).items()
        if (values := {value.strip().lower() for value in column.counts}) <= TRAIN | HELD_OUT
        and values & TRAIN
        and values & HELD_OUT
    ]


def _rest(draft: Draft, looked: Looked) -> dict[str, Column]:
    """Return the columns that nothing reads."""
    used = {column.name for _, column in draft.taken}
    return {name: column for name, column in looked.columns.items() if name not in used}


def _refusals(draft: Draft, looked: Looked) -> Iterator[str]:
    """Yield what a run will say of rows with columns that a format defines to change what is learnt, and nothing reads."""
    rest = _rest(draft, looked)
    try:
        settings = FormatConfig.model_validate(draft.settings["format"])
    except ValueError:  # `write_recipe` says what is wrong
        return
    for name, fix in fixes_of(settings, rest).items():
        if any(says_something(name, value) for value in rest[name].examples):
            yield f"refused: rows with the column {name}, which nothing here reads: {fix}"


def _unlike(draft: Draft, looked: Looked, others: dict[str, Column]) -> str:
    """Return why another split can't be evaluated on, or ""."""
    for role, column in draft.taken:
        if role not in OPTIONAL and column.name not in others:
            return f"it has no column {column.name}"
        if role == "label":
            labels = [*others[column.name].counts]
            if not {*map(whole_number, labels)} & {*map(whole_number, column.counts)}:
                return f"its labels are unknown ({', '.join(labels[:3]) or 'blank'})"
    return ""


def _length(draft: Draft, model: GivenModel | None) -> int:
    """Return the tokens that nearly all rows fit in, at most the model's positions."""
    tokens = _around(draft)
    for column in (column for role, column in draft.taken if role != "target"):  # which the model does not read
        lengths = sorted(len(text.encode()) for text in map(_letters, column.examples))
        size = (model and model.bytes_a_token(column)) or BYTES_A_TOKEN
        tokens += lengths[int(0.98 * (len(lengths) - 1))] / size if lengths else 0
    most = LENGTHS[:-1] if draft.base in ENCODERS else LENGTHS
    length = next((length for length in most if tokens <= length), most[-1])
    return min(length, (model and model.positions) or length)


def _around(draft: Draft) -> float:
    """Return the tokens that a row's template adds, special ones included."""
    form = draft.settings["format"]
    if form["task"] != "instruction" or "prompt_template" in form:
        return SPECIAL_TOKENS
    context = "-" * any(role == "context" for role, _ in draft.taken)
    headings = STYLES[form.get("style", "dolly")]("", context)
    return SPECIAL_TOKENS + len(headings) / HEADING_BYTES


def _letters(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def report(draft: Draft, looked: Looked) -> list[str]:
    """Return lines that say what was taken for what."""
    lines = [f"{role} <- {column.name} ({column.describe()})" for role, column in draft.taken]
    rest = _rest(draft, looked)
    lines += [f"not used: {listed(rest)}"] * bool(rest)
    lines += [f"used only where the chat template reads them: {', '.join(draft.fields)}"] * bool(draft.fields)
    lines += _refusals(draft, looked)
    lines += [f"splits: {why}" for why in [draft.why.get("data.splits")] if why]
    lines += [f"left out: {why}" for why in [draft.why.get("data.nulls")] if why]
    is_rule = draft.settings["data"].get("label") not in looked.columns
    lines += [r for role, label in draft.taken if role == "label" and not is_rule for r in _names_of_labels(label)]
    lines += [f"not read: {', '.join(looked.unread[:5])}"] * bool(looked.unread)
    lines += [f"column {name} can't be read: {why}" for name, why in [*looked.unreadable.items()][:5]]
    lines += looked.remarks[:5] + [f"{len(looked.remarks) - 5} more remarks of this kind"] * bool(looked.remarks[5:])
    lines += [f"or {setting}={flow(value)} ({why})" for setting, some in draft.others.items() for value, why in some]
    lines += draft.also
    rows = f"{looked.rows:,} rows" if looked.is_whole else f"the first {looked.rows:,} rows"
    read = read_tree(draft.base, Recipe)
    merge(read.tree, draft.settings, Recipe)
    machine = read.for_this_machine().machine  # "" if the user named other hardware
    return [f"task: {draft.settings['format']['task']}, from {rows} of train", *lines, *filter(None, [machine])]


def _names_of_labels(label: Column) -> list[str]:
    """Return remarks on labels that look alike, or say the same."""
    names = [] if label.many else sorted(label.counts)
    return [*alike(names), *say_the_same(names)]


def recipe_text(draft: Draft, looked: Looked, name: str, *, hub: bool) -> str:
    """Return YAML. hub: as `has_hub` says."""
    extends = draft.base if hub else [draft.base, SCRATCH[draft.base]]
    lines = [
        f"# Written by `trnflow new`. All settings: `trnflow config {name}.yaml`; what they mean: `trnflow settings`.",
        # names of the data's: a newline in one would end the comment, and begin a setting, such as a hook
        *(f"# {one_line(line)}" for line in report(draft, looked) if not line.startswith("or ")),
    ]
    lines.append(f"extends: {flow(extends)}   # --on NAME takes other hardware")
    for section, settings in draft.settings.items():
        if isinstance(settings, dict):
            lines += _section(section, settings, draft)
        else:
            lines.append(f"{section}: {flow(settings)}")
    return "\n".join(lines) + "\n"


def _section(section: str, settings: Meta, draft: Draft) -> Iterator[str]:
    commented = [name.partition(".")[2] for name in draft.others if name.startswith(f"{section}.")]
    if not settings and not commented:
        return
    yield f"{section}:"
    for name in dict.fromkeys([*settings, *commented]):
        why = draft.why.get(f"{section}.{name}")
        if name in settings:
            yield f"  {name}: {flow(settings[name])}{f'   # {one_line(why)}' if why else ''}"
        for value, reason in draft.others.get(f"{section}.{name}", ()):
            yield f"  # {name}: {one_line(flow(value))}   # {one_line(reason)}"


class _OneLine(yaml.SafeDumper):
    """Writes a text that has lines with escapes: names of the data's come at the ends of lines."""


def _escaped(dumper: _OneLine, text: str) -> yaml.ScalarNode:
    style = '"' if len(f"{text}.".splitlines()) > 1 else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_OneLine.add_representer(str, _escaped)


def flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml.dump(value, Dumper=_OneLine, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def write_recipe(file: Path, text: str, origins: Origins | None = None) -> Recipe:
    """Create a recipe's file and read it. Raises ConfigError if the file exists, or the settings don't fit together.

    origins: where the error says that a setting stands, instead of in the recipe, which is not written then.
    """
    aside = file.with_name(f"{file.stem}.{os.getpid()}.unfinished.yaml")
    try:
        aside.write_text(text, encoding="utf-8")
        read = read_tree(str(aside), Recipe)
        places = {
            setting: _origin(setting, where, origins or {}, aside, file) for setting, where in read.origins.items()
        }
        recipe = validated(replace(read, origins=places), str(file))
        os.link(aside, file)
    except FileExistsError as error:
        raise exists(file) from error
    finally:
        aside.unlink(missing_ok=True)
    return recipe


def _origin(setting: tuple[str, ...], where: SettingOrigin, origins: Origins, aside: Path, file: Path) -> SettingOrigin:
    for length in range(len(setting), 0, -1):
        if setting[:length] in origins:
            return SettingOrigin(origins[setting[:length]], where.folder)
    return SettingOrigin(where.replace(str(aside.resolve()), str(file)), where.folder)


def test_rows(draft: Draft, looked: Looked) -> int:
    """Return about how many test rows the first retrain will freeze; 0 without a test split."""
    data: Meta = draft.settings["data"]
    share: float = (data.get("split") or {}).get("test", 0.0)
    if share:
        return round(share * looked.rows)
    is_used = "test" in looked.others and "test" in data.get("splits", looked.others)
    return max((column.rows for column in looked.others["test"].values()), default=0) if is_used else 0


def exists(file: Path) -> ConfigError:
    """Return the error about a file that is in the way."""
    fix = (
        "delete it, or give the recipe another name: name=NAME"
        if file.name != PREFECT_FILE
        else "add the deployment to it"
    )
    return ConfigError(f"{file} exists, and nothing is overwritten", fix)


def deployment_text(recipe: str, cron: str) -> str:
    """Return a prefect.yaml that retrains a recipe by a schedule."""
    return f"""# Written by `trnflow new`: `trnflow deploy` registers it, `trnflow worker` runs it.
name: {flow(Path(recipe).stem)}

deployments:
  - name: retrain
    description: Train again if data, code or settings changed, and promote a better model.
    entrypoint: trnflow.flows.deployments.retrain
    parameters: {{recipe: {flow(recipe)}, overrides: []}}
    work_pool: {{name: local}}
    tags: [trnflow]   # runs with this tag are marked as crashed when their heartbeats stop
    schedules:
      - cron: {json.dumps(cron)}
        timezone: UTC
"""


def column_json(column: Column) -> Meta:
    """Return what was seen of a column."""
    return {"name": column.name, "rows": column.rows, "blank": column.blank, "holds": column.describe()}
