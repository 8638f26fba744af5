"""Choose columns and task for data that was looked at, or ask. Nothing is guessed in silence: what is taken for what is
in the draft."""

from __future__ import annotations

from collections.abc import Callable

from trnflow.flows.authoring import answers, targets
from trnflow.flows.authoring.columns import FEW, LABELS
from trnflow.flows.authoring.draft import Draft, Question, listed
from trnflow.flows.authoring.look import Column, Looked
from trnflow.flows.authoring.tagged import lists_of
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.load.csv_rows import UNNAMED
from trnflow.tasks.errors import ConfigError, DataError

Choose = Callable[[dict[str, Column], Meta, Meta], Draft | None]

TASKS: dict[str, tuple[Choose, str]] = {
    "preference": (
        answers.preference, "data.columns.prompt=COLUMN data.columns.chosen=COLUMN data.columns.rejected=COLUMN",
    ),
    "unpaired_preference": (
        answers.unpaired_preference,
        "data.columns.prompt=COLUMN data.columns.completion=COLUMN data.columns.label=COLUMN",
    ),
    "chat": (answers.chat, "format.messages=COLUMN"),
    "token_classification": (targets.token_classification, "format.words=COLUMN format.target=COLUMN"),
    "instruction": (answers.instruction, "format.instruction=COLUMN format.response=COLUMN"),
    "multi_label": (targets.multi_label, "data.text=COLUMN format.target=COLUMN"),
    "reranker": (targets.reranker, "data.text=COLUMN format.text_pair=COLUMN format.target=COLUMN"),
    "embedding": (
        targets.embedding, "data.text=COLUMN format.text_pair=COLUMN, perhaps format.negative or format.score",
    ),
    "classification": (targets.classification, "data.text=COLUMN data.label=COLUMN"),
    "text": (answers.text, "data.text=COLUMN"),
    "regression": (targets.regression, "data.text=COLUMN format.target=COLUMN"),
}  # fmt: skip
"""By task: what chooses its columns, and the settings that name them. Data is tried in this order."""

OPTIONS = ("choices", "options", "endings")
"""Names of columns with the answers that a row offers."""


def choose(looked: Looked, given: Meta) -> Draft:
    """Return the draft of a recipe. given: the settings that the user named. Raises Question, ConfigError, DataError."""
    data, form = given.get("data", {}), given.get("format", {})
    columns = looked.columns
    for name in _named(data, form):
        if name in looked.unreadable:
            raise DataError(looked.unreadable[name], "repair that row in the file, or name another column")
    task = form.get("task") or ("classification" if data.get("label") else None)
    if task in TASKS:
        make, settings = TASKS[task]
        draft = make(columns, data, form)
        if draft is None:
            raise ConfigError(
                f"no columns for format.task={task} were found: {listed(columns)}", f"name them: {settings}"
            )
    else:
        # numbers are predicted only if the user says so: they may be classes
        drafts = (make(columns, data, form) for name, (make, _) in TASKS.items() if name != "regression")
        draft = next(filter(None, drafts), None)
    if draft is None:
        raise next((_unread(why) for why in looked.unreadable.values()), None) or _no_texts(columns)
    is_text = draft.settings["format"].get("task") == "text"
    if not task:
        _refuse_half(columns, draft, is_text=is_text)
    for name, why in looked.unreadable.items():
        if not task and (is_text or (draft.base == "classify" and name.lower() in LABELS)):
            raise _unread(why)
    if any(column.name.startswith(UNNAMED) and column.name not in _named(data, form) for _, column in draft.taken):
        raise ConfigError(
            "the first line does not name all columns: is it a title?",
            "remove the lines above the names of the columns",
        )
    return draft


def _named(*settings: Meta) -> list[str]:
    """Return the texts of the user's settings, among them the names of columns."""
    values = [value for each in settings for value in each.values()]
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return [name for name in names if isinstance(name, str)]


def _unread(why: str) -> DataError:
    """Return the error about a column that can't be read, and may be what is to be learnt."""
    return DataError(
        why,
        "repair the row, or give the column one type in the file; or name what is learnt: format.task=text or "
        "data.label=COLUMN",
    )


def _no_texts(columns: dict[str, Column]) -> ConfigError:
    """Return the error about columns none of which looks like texts; a Question where short ones may be."""
    nested, names = [name for name, column in columns.items() if column.nested], {*map(str.lower, columns)}
    is_tagged = bool(names & {"word", "token"} and names & {"tag", "label"})
    plain = [
        column for column in columns.values() if not column.nested and column.numbers is None and not column.is_date
    ]
    short = [column.name for column in plain if column.is_unique or len(column.counts) > FEW][:4]
    if short and not nested and not is_tagged:
        pair = (
            {f"data.text={short[0]} format.text_pair={short[1]}": "two texts that are judged together"}
            if short[1:]
            else {}
        )
        return Question(
            f"which column holds the texts? {listed(columns)}",
            {**{f"data.text={name}": columns[name].describe() for name in short}, **pair},
        )
    if mixed := [name for name in nested if any(isinstance(example, str) for example in columns[name].examples)]:
        return ConfigError(
            f"{mixed[0]} holds texts in some rows, and lists or objects in others",
            "give the column one type in the file",
        )
    return ConfigError(
        f"no column holds texts to train on: {listed(columns)}",
        "of words with tags write a file NAME.conll: word, tab and tag a line, and a blank line after each sentence"
        if is_tagged
        else f"what lies inside {nested[0]} is not read: give one object a row with a column for each text, or "
        'conversations as lists of {"role": ..., "content": ...}'
        if nested
        else "name one: data.text=COLUMN",
    )


def _refuse_half(columns: dict[str, Column], draft: Draft, *, is_text: bool) -> None:
    """Raise ConfigError or Question where columns that the draft leaves out decide what the others mean."""
    judged = columns.get("answer")
    if judged and {"accept"} < {*judged.counts} <= {"accept", "reject", "ignore"}:
        raise ConfigError(
            f"answer holds {' and '.join(sorted(judged.counts))}, as Prodigy writes it: rejected rows would be learnt, too",
            "keep the rows that are accepted in the file, or name the task: format.task=NAME",
        )
    label = columns.get("label")
    if draft.base == "instruct" and label and len(label.counts) == 2 and not label.many:
        raise Question(
            f"label is {' or '.join(label.counts)}: are answers of both kinds to be learnt?",
            {"format.task=instruction": "yes; else keep the rows of one kind in the file"},
        )
    options = next((column for name, column in columns.items() if column.nested and name.lower() in OPTIONS), None)
    if options and draft.base == "classify":
        raise ConfigError(
            f"{options.name} holds answers to choose from, and {draft.taken[-1][1].name} names another one in each row",
            "write question and answers in one column and the right answer in another, for format.task=instruction; "
            "format.task=classification leaves them out",
        )
    lists = [
        column for column in columns.values() if column.nested and any(column.examples) and lists_of(column, (str,))
    ]
    if is_text and lists:
        raise Question(
            f"{' and '.join(c.name for c in lists[:4])} hold{'s' * (len(lists) == 1)} lists of texts: what is to be learnt?",
            {
                **{
                    f"format.task=multi_label format.target={column.name}": "the labels of a row"
                    for column in lists[:4]
                },
                "format.task=text": f"nothing of them: to write texts as in {draft.taken[0][1].name}; what belongs to one "
                "text needs a row with a column for each text",
            },
        )
