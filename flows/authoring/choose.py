"""Choose columns and task for data that was looked at, or ask. Nothing is guessed in silence: what is taken for what is
in the draft."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from trnflow.flows.authoring.look import Column, Looked
from trnflow.flows.authoring.tagged import refuse_numbers, spans_in, words_and_tags
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.conversation import messages_of
from trnflow.tasks.data.load.labels import parse_rule
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.preference import CHOSEN, PROMPT, REJECTED

TEXTS = (
    "text", "body", "content", "review", "review_text", "review_body", "sentence", "tweet", "comment", "message",
    "description", "utterance", "document", "abstract", "question", "query", "title", "headline",
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "category", "target", "sentiment", "intent", "topic", "emotion", "tag", "type", "y",
    "rating", "stars", "score", "is_spam", "spam", "toxic", "priority", "department", "team",
)  # fmt: skip
"""Names that columns of texts and of classes usually have, the likeliest first."""
AMOUNTS = ("score", "target", "label", "labels", "y", "rating", "value", "similarity")
"""Names of columns that are meant to be predicted also where they hold amounts."""
ASIDE = ("lang", "language", "locale", "source", "split", "user", "author", "country", "gender", "year", "month", "url")
"""Names of columns that are rarely what is to be predicted."""
PAIRS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"),
    ("text", "text_pair"), ("sentence_a", "sentence_b"), ("question", "passage"), ("query", "passage"),
    ("query", "document"), ("question", "document"), ("question", "sentence"),
)  # fmt: skip
"""Two texts that are judged together."""
BELONGING = (
    ("anchor", "positive"), ("query", "positive"), ("question", "positive"), ("sentence1", "sentence2"),
    ("query", "passage"), ("question", "answer"), ("text", "text_pair"),
)  # fmt: skip
"""Two texts that belong together, by the names of embeddings' data."""
QUERIES = (("query", "passage"), ("question", "passage"), ("query", "document"), ("question", "document"))
PROMPTS = (PROMPT, "conversations", "messages", "question", "instruction", "input")
"""Names of what was asked, where there are a chosen and a rejected answer."""
RELEVANCES = ("label", "relevance", "relevant", "score", "target")
TURNS = (
    ("instruction", "input", "output"),
    ("instruction", "context", "response"),
    ("instruction", "input", "response"),
    ("instruction", None, "output"),
    ("instruction", None, "response"),
    ("prompt", None, "completion"),
    ("prompt", None, "response"),
    ("question", "context", "answer"),
    ("question", None, "answer"),
    ("question", None, "response"),
    ("user", None, "assistant"),
    ("query", None, "response"),
    ("query", None, "answer"),
    ("input", None, "output"),
)
"""Names of an instruction, its context and its answer, as Alpaca, Dolly, TRL and others have them."""
FEW = 200
"""More classes than these are no likely label, unless the column's name says so."""


class Question(ConfigError):
    """What the data leaves open. choices: {setting=value: what it means}. Shown without a terminal, it is an error."""

    def __init__(self, message: str, choices: dict[str, str]) -> None:
        listed = ", or ".join(f"{shlex.join(overrides_in(choice))} ({meaning})" for choice, meaning in choices.items())
        super().__init__(message, f"answer with {listed}")
        self.choices = choices


def overrides_in(choice: str) -> list[str]:
    """Return the overrides of a choice; their values may hold spaces."""
    return re.split(r" (?=[a-z]+\.[a-z_]+=)", choice)


@dataclass
class Draft:
    """A recipe's own part.

    Attributes:
        base: The shipped recipe that it extends.
        taken: (what for, column) of each column that is used.
        settings: {section: {setting: value}}.
        others: {section.setting: [(another value, why)]}, to be written as comments.
        why: {section.setting: comment}.
    """

    base: str
    taken: list[tuple[str, Column]] = field(default_factory=list)
    settings: dict[str, Meta] = field(default_factory=lambda: {"data": {}, "format": {}})
    others: dict[str, list[tuple[Any, str]]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)


def choose(looked: Looked, given: Meta) -> Draft:
    """Return the draft of a recipe. given: the settings that the user named. Raises Question, ConfigError, DataError."""
    data, form = given.get("data", {}), given.get("format", {})
    columns = looked.columns
    task = form.get("task") or ("classification" if data.get("label") else None)
    makers: dict[str, Callable[[dict[str, Column], Meta, Meta], Draft | None]] = {
        "preference": _preference,
        "chat": _chat,
        "token_classification": _token_classification,
        "instruction": _instruction,
        "multi_label": _multi_label,
        "reranker": _reranker,
        "embedding": _embedding,
        "classification": _classification,
        "text": _text,
    }
    if task in (*makers, "regression"):
        draft = (makers | {"regression": _regression})[task](columns, data, form)
        if draft is None:
            raise ConfigError(f"no columns for format.task={task} were found: {listed(columns)}", _NAME_THEM[task])
        return _with_names(draft)
    _refuse_marks(columns)
    for make in makers.values():
        if draft := make(columns, data, form):
            return _with_names(draft)
    nested = [name for name, column in columns.items() if column.nested]
    raise ConfigError(
        f"no column holds texts to train on: {listed(columns)}",
        f"what lies inside {nested[0]} is not read: give one object a row with a column for each text, or conversations "
        'as lists of {"role": ..., "content": ...}'
        if nested
        else "name one: data.text=COLUMN",
    )


def _with_names(draft: Draft) -> Draft:
    """Return the draft. Raises ConfigError if a column that it takes has no name: above the names stands a title."""
    if any(not column.name.strip() for _, column in draft.taken):
        raise ConfigError(
            "the first line does not name all columns: is it a title?",
            "remove the lines above the names of the columns",
        )
    return draft


_NAME_THEM = {
    "chat": "name the column of messages: format.messages=COLUMN",
    "preference": "name them: data.columns.prompt=COLUMN data.columns.chosen=COLUMN data.columns.rejected=COLUMN",
    "instruction": "name them: format.instruction=COLUMN format.response=COLUMN",
    "classification": "name them: data.text=COLUMN data.label=COLUMN",
    "token_classification": "name them: format.words=COLUMN format.target=COLUMN",
    "multi_label": "name them: data.text=COLUMN format.target=COLUMN",
    "regression": "name them: data.text=COLUMN format.target=COLUMN",
    "reranker": "name them: data.text=COLUMN format.text_pair=COLUMN format.target=COLUMN",
    "embedding": "name them: data.text=COLUMN format.text_pair=COLUMN, perhaps format.negative or format.score",
    "text": "name it: data.text=COLUMN",
}


def listed(columns: dict[str, Column]) -> str:
    """Return the columns with what they hold, as text."""
    some = [f"{name} ({column.describe()})" for name, column in list(columns.items())[:12]]
    return ", ".join(some + (["..."] if len(columns) > 12 else []))


def _preference(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for a chosen and a rejected answer to a prompt, None without them."""
    if not {CHOSEN, REJECTED} <= columns.keys():
        return None
    draft, asks = Draft("preference"), next((name for name in PROMPTS if name in columns), None)
    draft.taken += [(name, columns[name]) for name in (CHOSEN, REJECTED)]
    draft.settings["format"]["task"] = "preference"
    draft.settings["train"] = {"objective": "dpo"}
    draft.others["train.objective"] = [("reward", "a model that rewards answers, with one output")]
    if asks is not None:
        draft.taken.insert(0, (PROMPT, columns[asks]))
    if asks not in (None, PROMPT):
        draft.settings["data"]["columns"] = {PROMPT: asks, CHOSEN: CHOSEN, REJECTED: REJECTED}
    return draft


def _refuse_marks(columns: dict[str, Column]) -> None:
    """Raise Question for answers that are marked good and bad."""
    marked = [name for name, column in columns.items() if {*column.counts} == {"true", "false"}]
    answers = {"completion", "messages", "conversations"} & columns.keys()
    if answers and "label" in marked:
        raise Question(
            "these are answers marked good and bad (label), and no task here learns from marks",
            {
                "format.task=instruction" if "completion" in answers else "format.task=chat": "trains on all answers "
                "alike: leave out the bad ones first"
            },
        )


def _chat(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for a column of messages, None without one. Raises DataError for an unknown role."""
    wanted = form.get("messages")
    chats = [column for name, column in columns.items() if _is_chat(column) and wanted in (None, name)]
    if not chats:
        return None
    if len(chats) > 1:
        raise Question(
            f"{' and '.join(column.name for column in chats)} hold messages",
            {f"format.messages={column.name}": "the whole conversation" for column in chats},
        )
    draft, column = Draft("chat"), chats[0]
    for number, value in enumerate(column.examples, 1):
        messages_of(value, f"{column.name}, example {number}")
    draft.taken.append(("messages", column))
    draft.settings["format"]["task"] = "chat"
    if column.name != "messages":
        draft.settings["format"]["messages"] = column.name
    draft.taken += [(name, columns[name]) for name in ("tools", "documents") if name in columns]
    return draft


def _is_chat(column: Column) -> bool:
    messages = [value for value in column.examples if isinstance(value, list)]
    names = ({"role", "content"}, {"from", "value"}, {"role", "tool_calls"})
    return len(messages) == len(column.examples) > 0 and all(
        isinstance(entry, dict) and any(keys <= entry.keys() for keys in names) for value in messages for entry in value
    )


def _instruction(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for a prompt and its answer, None without them. Raises Question."""
    by_name = {name.lower(): column for name, column in columns.items()}
    for ask, context, answer in TURNS:
        ask, answer = form.get("instruction", ask), form.get("response", answer)
        context = form.get("context", context)
        if all(name is None or name.lower() in by_name for name in (ask, context, answer)):
            break
    else:
        return None
    names = {"instruction": ask, "context": context, "response": answer}
    taken = {role: by_name[name.lower()] for role, name in names.items() if name is not None}
    nested = [column.name for column in taken.values() if column.nested]
    if nested:
        raise ConfigError(f"{nested[0]} holds lists, not texts", "join prompt and answer in one column `messages`")
    if taken["response"].can_be_classes and not form:
        column = taken["response"]
        raise Question(
            f"{column.name} has {column.describe()}",
            {f"data.label={column.name}": "they are classes", "format.task=instruction": "they are answers to write"},
        )
    draft = Draft("instruct")
    settings = draft.settings["format"]
    settings["task"] = "instruction"
    if (ask, answer) == ("prompt", "completion"):
        draft.taken = [("prompt", taken["instruction"]), ("answer", taken["response"])]
        settings |= {"prompt_template": f"{{{{ {taken['instruction'].name} }}}}", "response": taken["response"].name}
        draft.why["format.prompt_template"] = "prompt and completion are joined as they are, without headings"
        return draft
    draft.taken = list(taken.items())
    if (ask, answer) == ("instruction", "output"):
        settings["style"] = "alpaca"
    settings |= {role: column.name for role, column in taken.items() if column.name != role}
    return draft


def _token_classification(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for words and tags, or for a text with spans; None without them. Raises ConfigError."""
    draft = Draft("token-classification")
    draft.settings["format"] = {"task": "token_classification"}
    if found := words_and_tags(columns, form.get("words"), form.get("target")):
        words, target = found
        refuse_numbers(target, form.get("labels"))
        draft.taken = [("words", words), ("target", target)]
        draft.settings["format"] |= {"target": target.name, "words": words.name}
        return draft
    spans = spans_in(columns, form.get("target"))
    texts = _texts(columns, data.get("text"), {spans.name}) if spans else []
    if spans is None or not texts:
        return None
    draft.taken = [("text", texts[0]), ("target", spans)]
    draft.settings["data"]["text"] = texts[0].name
    draft.settings["format"] |= {"target": spans.name, "words": None}
    return draft


def _multi_label(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts and lists of labels, None without them."""
    lists = [column for column in columns.values() if _holds_labels(column)]
    usual = [column for column in lists if column.name.lower() in (*LABELS, *(f"{name}s" for name in LABELS))]
    several = (
        [c for c in columns.values() if any(_is_several(value, c) for value in c.counts)] if form.get("task") else []
    )
    return _with_targets(
        "multi_label", columns, data, form, usual[:1] or (lists if form.get("task") else []) or several
    )


def _holds_labels(column: Column) -> bool:
    lists = [value for value in column.examples if isinstance(value, list)]
    plain = all(isinstance(entry, str | int) for value in lists for entry in value)
    return column.nested and len(lists) == len(column.examples) > 0 and plain


def _regression(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts and numbers, None without them."""
    numbers = [
        column for column in columns.values() if column.numbers and not (column.is_unique and not column.has_fractions)
    ]
    usual = [column for column in numbers if column.name.lower() in AMOUNTS]
    return _with_targets("regression", columns, data, form, usual or numbers)


def _reranker(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for queries, passages and their relevance, None without them."""
    by_name = {name.lower(): name for name in columns}
    known = next((pair for pair in QUERIES if {*pair} <= by_name.keys()), None)
    if not form.get("task") and (known is None or data.get("label") or form.get("target")):
        return None
    first, second = data.get("text"), form.get("text_pair")
    if known:
        first, second = first or by_name[known[0]], second or by_name[known[1]]
    relevances = [columns[by_name[name]] for name in RELEVANCES if name in by_name]
    likely = [column for column in relevances if {*column.counts} == {"true", "false"} or _are_shares(column.numbers)]
    return _with_targets("reranker", columns, {"text": first}, {**form, "text_pair": second}, likely[:1])


def _embedding(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts that belong together, None unless the columns are called so or the task is named."""
    by_name = {name.lower(): name for name in columns}
    known = next(([by_name[name] for name in pair] for pair in BELONGING if {*pair} <= by_name.keys()), [None, None])
    is_named = form.get("task") == "embedding"
    if not is_named and "positive" not in by_name:
        return None
    first, second = data.get("text") or known[0], form.get("text_pair") or known[1]
    if not isinstance(first, str) or second is None:
        return None
    draft, score = Draft("embedding"), form.get("score") or (by_name.get("score") if is_named else None)
    negative = form.get("negative") or (None if score else by_name.get("negative"))
    named = {"text_pair": second, "negative": negative, "score": score}
    draft.taken = [("text", _column(columns, first, "data.text"))]
    draft.taken += [(what, _column(columns, name, f"format.{what}")) for what, name in named.items() if name]
    draft.settings["data"]["text"] = first
    # null, because the recipe that is extended has a negative
    draft.settings["format"] = {
        "task": "embedding",
        **{what: name for what, name in named.items() if name or what == "negative"},
    }
    return draft


def _are_shares(numbers: list[float] | None) -> bool:
    return bool(numbers) and all(0 <= number <= 1 for number in numbers or [])


def _with_targets(task: str, columns: dict[str, Column], data: Meta, form: Meta, likely: list[Column]) -> Draft | None:
    """Return the draft for texts and the columns of `format.target`, else the only likely one. Raises Question."""
    named = form.get("target", [])
    targets = [_column(columns, name, "format.target") for name in ([named] if isinstance(named, str) else named)]
    if not targets and len(likely) > 1:
        choices = {f"format.task={task} format.target={column.name}": column.describe() for column in likely[:6]}
        raise Question(f"which column holds what is to be predicted? {listed({c.name: c for c in likely})}", choices)
    targets = targets or likely
    texts = _texts(columns, data.get("text"), {column.name for column in targets})
    if not texts or not targets:
        return None
    draft, names = Draft(task.replace("_", "-")), [column.name for column in targets]
    draft.settings["format"] = {"task": task, "target": names if len(names) > 1 else names[0]}
    _take_texts(draft, columns, texts, data, form)
    draft.taken += [("target", column) for column in targets]
    return draft


def _classification(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts and their classes, None without either. Raises Question."""
    label = data.get("label")
    rule = parse_rule(label) if label and label not in columns else None
    named = rule.column if rule else label
    texts = _texts(columns, data.get("text"), {named})
    if not texts or (not label and not form.get("task") and len(texts) == len(columns)):
        return None
    draft = Draft("classify")
    chosen = _column(columns, named, "data.label") if named else _label(columns, texts, bool(form.get("task")))
    if chosen is None:
        return None
    labels = [chosen] if isinstance(chosen, Column) else chosen
    draft.settings["format"]["task"] = "classification"
    _take_texts(draft, columns, texts, data, form)
    if len(draft.taken) == 1 and len(texts) > 1 and not data.get("text"):
        more = [column.name for column in columns.values() if column in texts[:2]]
        draft.others["data.text"] = [(more, f"both, joined; {texts[1].name}: {texts[1].describe()}")]
    draft.taken.append(("label", labels[0]))
    draft.settings["data"]["label"] = label or labels[0].name
    draft.others["data.label"] = [(column.name, column.describe()) for column in labels[1:2]]
    _check_label(labels[0], rule is not None, label is not None)
    return draft


def _take_texts(draft: Draft, columns: dict[str, Column], texts: list[Column], data: Meta, form: Meta) -> None:
    """Enter the texts that the user named, else a known pair, else the likeliest one."""
    named, second = bool(data.get("text")), form.get("text_pair")
    pair = _column(columns, second, "format.text_pair") if second else None
    first = [column for column in texts if column is not pair][: None if named else 1]
    if not named and not pair and (known := _pair(texts)):
        first, pair = known[:1], known[1]
    draft.taken += [("text", column) for column in first]
    names = [column.name for column in first]
    draft.settings["data"]["text"] = names if len(names) > 1 else names[0]
    if pair:
        draft.taken.append(("text_pair", pair))
        draft.settings["format"]["text_pair"] = pair.name


def _column(columns: dict[str, Column], name: str, setting: str) -> Column:
    if name not in columns:
        raise ConfigError(f"{setting}: there is no column {name}", f"there are {listed(columns)}")
    return columns[name]


def _texts(columns: dict[str, Column], wanted: str | list[str] | None, without: set[str | None]) -> list[Column]:
    """Return the columns of texts, the likeliest first."""
    if wanted:
        return [_column(columns, name, "data.text") for name in ([wanted] if isinstance(wanted, str) else wanted)]
    plain = [column for name, column in columns.items() if name not in without]
    pair = _pair([column for column in plain if not column.nested and column.numbers is None and column.words > 1])
    # a text of a pair may stand in several rows
    texts = [column for column in plain if column.is_text or any(column is each for each in pair)]
    if not texts:  # short ones, such as search queries
        texts = [column for name, column in columns.items() if name.lower() in TEXTS and _is_short_text(column)]
    half = max((column.words for column in texts), default=0.0) / 2  # a title is not what a text column's name says
    return sorted(texts, key=lambda column: (column.words < half, _place(column.name, TEXTS), -column.words))


def _is_short_text(column: Column) -> bool:
    return not column.nested and column.numbers is None and bool(column.examples) and not column.can_be_classes


def _pair(texts: list[Column]) -> list[Column]:
    by_name = {column.name.lower(): column for column in texts}
    return next(([by_name[a], by_name[b]] for a, b in PAIRS if {a, b} <= by_name.keys()), [])


def _place(name: str, names: Iterable[str]) -> int:
    listed = [*names]
    return listed.index(name.lower()) if name.lower() in listed else len(listed)


def _label(columns: dict[str, Column], texts: list[Column], asked: bool) -> list[Column] | None:
    """Return the column of the classes and others that may be it, None if nothing looks like classes. Raises Question."""
    rest = [column for column in columns.values() if column not in texts]
    lists = next((column for column in rest if column.nested and column.name.lower() in LABELS), None)
    if lists:
        raise ConfigError(
            f"{lists.name} holds lists of more than names or numbers", "give rows a label, or a list of labels"
        )
    siblings = {f"{column.name}_name" for column in rest}  # load_data reads the names of the classes there
    classes = [column for column in rest if column.can_be_classes and column.name not in siblings]
    named = [c for c in classes if c.name.lower() in LABELS]
    named = sorted(named, key=lambda column: _place(column.name, LABELS))
    usual = [c for c in classes if c not in named and len(c.counts) <= FEW and c.name.lower() not in ASIDE]
    if not named and (dates := [c for c in rest if c.is_date and c.name.lower() in LABELS]):
        raise Question(
            f"{dates[0].name} holds dates: what is to be predicted?",
            {
                **dict(map(_as_label, [dates[0], *usual][:6])),
                "format.task=text": "nothing: learn to write such texts",
            },
        )
    measures = [c for c in rest if c.numbers and c.is_measure]
    # a column of integers that are all different is an id
    amounts = [c for c in measures if c.name.lower() in AMOUNTS] or [c for c in measures if not c.is_unique]
    if named or (not amounts and len(usual) in (1, 2)):
        return [*named, *usual]
    if alone := [c for c in rest if len(c.counts) == 1 and c.name.lower() in LABELS]:
        return alone  # which is refused with its one class
    open_ones = [*amounts, *usual, *(column for column in classes if column.name.lower() in ASIDE)]
    if len(open_ones) > 1 or (open_ones and not amounts):
        raise Question(
            f"which column holds what is to be predicted? {listed({column.name: column for column in open_ones})}",
            {**dict(map(_as_label, open_ones[:6])), "format.task=text": "none of them: learn to write such texts"},
        )
    if amounts:
        return amounts
    if asked:
        raise ConfigError(f"no column looks like classes: {listed(columns)}", _NAME_THEM["classification"])
    return None


def _as_label(column: Column) -> tuple[str, str]:
    """Return the setting that makes a column the label, and what it then means."""
    if column.has_fractions:
        return f"data.label={column.name} >= {column.middle:g}", "two classes: below, and from there on"
    return f"data.label={column.name}", f"{column.describe()}{', as classes' * column.is_measure}"


def _check_label(column: Column, is_rule: bool, is_given: bool) -> None:
    """Raise Question for amounts, unless the user named the column; DataError for one class alone."""
    if is_rule:
        return
    if len(column.counts) == 1 and not column.many:
        raise DataError(
            f"{column.name} is {next(iter(column.counts))!r} in every row that was read: there is nothing to tell apart",
            "give rows of other classes, or name another column: data.label=COLUMN",
        )
    if column.has_fractions or (column.is_measure and not is_given):
        both = f"data.label={column.name} >= {column.middle:g}"
        choices = {
            f"format.task=regression format.target={column.name}": "amounts: a number is predicted",
            **{both: "two classes: below, and from there on", **dict([_as_label(column)])},
        }
        choices["format.task=text"] = "it is not to be predicted"
        raise Question(f"{column.name} holds {column.describe()}: amounts, or classes?", choices)
    several = "" if is_given else next((value for value in column.counts if _is_several(value, column)), "")
    if several:
        raise Question(
            f"{column.name} holds several values in a row ({several})",
            {
                f"format.task=multi_label format.target={column.name}": "a row has several labels",
                f"data.label={column.name}": "each combination is a class",
            },
        )


def _text(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts to continue, None without texts. Raises Question for several."""
    wanted = data.get("text") or form.get("text")
    texts = _texts(columns, wanted, set())
    if not texts:
        return None
    if len(texts) > 1 and not wanted:
        a, b = texts[0].name, texts[1].name
        raise Question(
            f"{listed({column.name: column for column in texts})} are texts: which is what?",
            {
                f"data.text={a}": "one text, all of it trained on",
                f"format.instruction={a} format.response={b} format.task=instruction": "a prompt and its answer",
            },
        )
    if texts[0].words < 3 and not wanted:
        raise Question(
            f"{texts[0].name} holds {texts[0].words:.0f} words a row, and there is nothing else: what is to be learnt?",
            {f"data.text={texts[0].name}": "to write such texts"},
        )
    draft = Draft("instruct", [("text", column) for column in texts])
    draft.settings["format"]["task"] = "text"
    names = [column.name for column in texts]
    draft.settings["data"]["text"] = names if len(names) > 1 else names[0]
    return draft


def _is_several(value: str, column: Column) -> bool:
    """Return whether a value is a list of others: `4,27` where there are 4 and 27."""
    parts = re.split(r"\s*[,;|]\s*", value.strip())
    return len(parts) > 1 and all(part in column.counts for part in parts)
