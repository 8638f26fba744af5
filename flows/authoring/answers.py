"""Choose the columns of tasks that learn to write."""

from __future__ import annotations

from trnflow.flows.authoring.columns import find_texts
from trnflow.flows.authoring.draft import Draft, Question, listed
from trnflow.flows.authoring.look import Column
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.conversation import messages_of
from trnflow.tasks.data.format.marked_answers import MARKS
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.kinds.preference import CHOSEN, PROMPT, REJECTED
from trnflow.tasks.kinds.unpaired_preference import COMPLETION, LABEL

PROMPTS = (PROMPT, "conversations", "conversation", "messages", "question", "instruction", "input")
"""Names of what was asked, where there are a chosen and a rejected answer."""
ANSWERS = (COMPLETION, "messages", "conversations")
"""Names of an answer that is marked, the last ones with what was asked."""
TURNS = (
    ("instruction", "input", "output"), ("instruction", "context", "response"), ("instruction", "input", "response"),
    ("instruction", None, "output"), ("instruction", None, "response"), ("prompt", None, "completion"),
    ("prompt", None, "response"), ("question", "context", "answer"), ("question", None, "answer"),
    ("question", None, "response"), ("user", None, "assistant"), ("query", None, "response"), ("query", None, "answer"),
    ("input", None, "output"),
)  # fmt: skip
"""Names of an instruction, its context and its answer, as Alpaca, Dolly, TRL and others have them."""


def preference(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
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


def unpaired_preference(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for answers that are marked good and bad, of `format.task` also for pairs; None without them."""
    answer, label = next((name for name in ANSWERS if name in columns), None), columns.get(LABEL)
    draft = Draft("unpaired-preference")
    if answer is not None and label is not None and 2 <= len(label.counts) == len({*label.counts} & MARKS.keys()):
        asked = [(PROMPT, columns[PROMPT])] if answer == COMPLETION and PROMPT in columns else []
        draft.taken = [*asked, (COMPLETION, columns[answer]), (LABEL, label)]
        if answer != COMPLETION:
            draft.settings["data"]["columns"] = {COMPLETION: answer, LABEL: LABEL}
    elif form.get("task") and (pairs := preference(columns, data, form)):
        draft.taken, draft.settings = pairs.taken, pairs.settings
    else:
        return None
    draft.settings["format"]["task"] = "unpaired_preference"
    draft.settings["train"] = {"objective": "kto"}
    return draft


def chat(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
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


def instruction(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
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


def text(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for texts to continue, None without texts. Raises Question for several."""
    wanted = data.get("text") or form.get("text")
    texts = find_texts(columns, wanted, set())
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
