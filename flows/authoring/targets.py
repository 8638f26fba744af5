"""Choose the columns of tasks with labels or targets."""

from __future__ import annotations

from trnflow.flows.authoring.columns import (
    AMOUNTS,
    LABELS,
    belonging,
    check_label,
    column_of,
    find_label,
    find_texts,
    is_several,
    known_pair,
)
from trnflow.flows.authoring.draft import Draft, Question, listed
from trnflow.flows.authoring.look import Column
from trnflow.flows.authoring.tagged import has_one_entry, lists_of, refuse_numbers, spans_in, words_and_tags
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.load.labels import parse_rule

QUERIES = (("query", "passage"), ("question", "passage"), ("query", "document"), ("question", "document"))
RELEVANCES = ("label", "relevance", "relevant", "score", "target")


def token_classification(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
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
    texts = find_texts(columns, data.get("text"), {spans.name}) if spans else []
    if spans is None or not texts:
        return None
    draft.taken = [("text", texts[0]), ("target", spans)]
    draft.settings["data"]["text"] = texts[0].name
    draft.settings["format"] |= {"target": spans.name, "words": None}
    return draft


def multi_label(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts and lists of labels, None without them."""
    lists = [column for column in columns.values() if column.nested and lists_of(column, (str, int, bool))]
    usual = [column for column in lists if column.name.lower() in (*LABELS, *(f"{name}s" for name in LABELS))]
    likely = usual[:1]
    if likely and not form.get("task"):
        name = likely[0].name.lower()
        before = LABELS[: LABELS.index(name if name in LABELS else name[:-1])]
        if classes := [c for c in columns.values() if c.can_be_classes and c.name.lower() in before]:
            raise Question(
                f"{classes[0].name} holds classes and {likely[0].name} lists: what is to be predicted?",
                {
                    f"data.label={classes[0].name}": classes[0].describe(),
                    f"format.task=multi_label format.target={likely[0].name}": "a row has several labels",
                },
            )
    if not likely and form.get("task"):
        likely = lists or [c for c in columns.values() if any(is_several(value, c) for value in c.counts)]
    draft = _with_targets("multi_label", columns, data, form, likely)
    if draft is not None and has_one_entry(draft.taken[-1][1]):
        name = draft.taken[-1][1].name
        draft.also.append(
            f"also possible: format.task=classification, which answers with one label, as each list here has one; write "
            f"{name} without its brackets for it"
        )
    return draft


def regression(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts and numbers, None without them."""
    numbers = [
        column for column in columns.values() if column.numbers and not (column.is_unique and not column.has_fractions)
    ]
    usual = [column for column in numbers if column.name.lower() in AMOUNTS]
    draft = _with_targets("regression", columns, data, form, usual or numbers)
    if draft is not None and "text_pair" in draft.settings["format"]:
        targets = [column for role, column in draft.taken if role == "target"]
        draft.also.append(f"also possible: {_with_score(targets)}, a vector for each text, whose cosine is the score")
    return draft


def reranker(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for queries, passages and their relevance, None without them."""
    by_name = {name.lower(): name for name in columns}
    known = next((pair for pair in QUERIES if {*pair} <= by_name.keys()), None)
    if not form.get("task") and (known is None or data.get("label") or form.get("target")):
        return None
    first, second = data.get("text"), form.get("text_pair")
    if known:
        first, second = first or by_name[known[0]], second or by_name[known[1]]
    likely = [
        column
        for column in (columns[by_name[name]] for name in RELEVANCES if name in by_name)
        if {*column.counts} == {"true", "false"} or (column.numbers and all(0 <= each <= 1 for each in column.numbers))
    ]
    draft = _with_targets("reranker", columns, {"text": first}, {**form, "text_pair": second}, likely[:1])
    if draft is not None and known and likely:
        draft.also.append(f"also possible: {_with_score(likely)}, a vector for each query and passage, to search with")
    return draft


def embedding(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts that belong together, None unless the columns are called so or the task is named."""
    by_name = {name.lower(): name for name in columns}
    known = belonging(columns) or (None, None)
    is_named = form.get("task") == "embedding"
    if not is_named and "positive" not in by_name:
        return None
    first, second = data.get("text") or known[0], form.get("text_pair") or known[1]
    if not isinstance(first, str) or second is None:
        return None
    draft, score = Draft("embedding"), form.get("score") or (by_name.get("score") if is_named else None)
    negative = form.get("negative") or (None if score else by_name.get("negative"))
    named = {"text_pair": second, "negative": negative, "score": score}
    draft.taken = [("text", column_of(columns, first, "data.text"))]
    draft.taken += [(what, column_of(columns, name, f"format.{what}")) for what, name in named.items() if name]
    draft.settings["data"]["text"] = first
    # null, because the recipe that is extended has a negative
    kept = {what: name for what, name in named.items() if name or what == "negative"}
    draft.settings["format"] = {"task": "embedding", **kept}
    return draft


def _with_score(targets: list[Column]) -> str:
    return f"format.task=embedding format.score={targets[0].name}"


def _with_targets(task: str, columns: dict[str, Column], data: Meta, form: Meta, likely: list[Column]) -> Draft | None:
    """Return the draft for texts and the columns of `format.target`, else the only likely one. Raises Question."""
    named = form.get("target", [])
    targets = [column_of(columns, name, "format.target") for name in ([named] if isinstance(named, str) else named)]
    if not targets and len(likely) > 1:
        choices = {f"format.task={task} format.target={column.name}": column.describe() for column in likely[:6]}
        raise Question(f"which column holds what is to be predicted? {listed({c.name: c for c in likely})}", choices)
    targets = targets or likely
    texts = find_texts(columns, data.get("text"), {column.name for column in targets})
    if not texts or not targets:
        return None
    draft, names = Draft(task.replace("_", "-")), [column.name for column in targets]
    draft.settings["format"] = {"task": task, "target": names if len(names) > 1 else names[0]}
    _take_texts(draft, columns, texts, data, form)
    draft.taken += [("target", column) for column in targets]
    return draft


def classification(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts and their classes, None without either. Raises Question."""
    label = data.get("label")
    rule = parse_rule(label) if label and label not in columns else None
    named = rule.column if rule else label
    texts = find_texts(columns, data.get("text"), {named})
    if not texts or (not label and not form.get("task") and len(texts) == len(columns)):
        return None
    draft = Draft("classify")
    chosen = column_of(columns, named, "data.label") if named else find_label(columns, texts, bool(form.get("task")))
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
    check_label(labels[0], rule is not None, label is not None, is_of_pair="text_pair" in draft.settings["format"])
    return draft


def _take_texts(draft: Draft, columns: dict[str, Column], texts: list[Column], data: Meta, form: Meta) -> None:
    """Enter the texts that the user named, else a known pair, else the likeliest one."""
    named, second = bool(data.get("text")), form.get("text_pair")
    pair = column_of(columns, second, "format.text_pair") if second else None
    first = [column for column in texts if column is not pair][: None if named else 1]
    if not named and not pair and (known := known_pair(texts)):
        first, pair = known[:1], known[1]
    draft.taken += [("text", column) for column in first]
    names = [column.name for column in first]
    draft.settings["data"]["text"] = names if len(names) > 1 else names[0]
    if pair:
        draft.taken.append(("text_pair", pair))
        draft.settings["format"]["text_pair"] = pair.name
