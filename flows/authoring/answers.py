"""Choose the columns of tasks that learn to write."""

from __future__ import annotations

from trnflow.flows.authoring.columns import AS_VECTORS, belonging, find_texts
from trnflow.flows.authoring.draft import Draft, Question, listed
from trnflow.flows.authoring.look import Column
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.conversation import messages_of
from trnflow.tasks.data.format.marked_answers import MARKS
from trnflow.tasks.data.format.read_fields import UNREAD, notes_of_fields
from trnflow.tasks.data.format.row_columns import ALIASES, ARGUMENTS, HISTORY, JUDGED, SYSTEM, TOOLS
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.preference import CHOSEN, PROMPT, REJECTED
from trnflow.tasks.kinds.unpaired_preference import COMPLETION, LABEL

PAIRED = ((CHOSEN, REJECTED), ("chosen_messages", "rejected_messages"))
"""Names of a chosen and a rejected answer: the second are LLaMA-Factory's."""
PROMPTS = (PROMPT, "conversations", "conversation", "messages", "question", "instruction", "input")
"""Names of what was asked, where there are a chosen and a rejected answer."""
ANSWERS = (COMPLETION, "messages", "conversations")
"""Names of an answer that is marked, the last ones with what was asked."""
CONVENTIONAL = ("name", "tool_calls", "tool_call_id", "reasoning_content")
"""Fields of messages that chat templates usually read: those that one does not read are named when it has been used."""
TURNS = (
    ("instruction", "input", "output"), ("instruction", "context", "response"), ("instruction", "input", "response"),
    ("instruction", None, "output"), ("instruction", None, "response"), ("prompt", None, "completion"),
    ("prompt", None, "response"), ("question", "context", "answer"), ("question", None, "answer"),
    ("question", None, "response"), ("user", None, "assistant"), ("query", None, "response"), ("query", None, "answer"),
    ("input", None, "output"),
)  # fmt: skip
"""Names of an instruction, its context and its answer, as Alpaca, Dolly, TRL and others have them."""


def preference(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for a chosen and a rejected answer to a prompt, None without them. Raises ConfigError for a prompt in
    two columns."""
    pair = next((pair for pair in PAIRED if {*pair} <= columns.keys()), None)
    if pair is None:
        return None
    _refuse_split_prompt(columns)
    draft, asks = Draft("preference"), next((name for name in PROMPTS if name in columns), None)
    names = {**({PROMPT: asks} if asks else {}), **dict(zip((CHOSEN, REJECTED), pair, strict=True))}
    draft.taken += [(role, columns[name]) for role, name in names.items()]
    draft.settings["format"]["task"] = "preference"
    draft.settings["train"] = {"objective": "dpo"}
    draft.others["train.objective"] = [("reward", "a model that rewards answers, with one output")]
    if columns[pair[0]].nested:
        draft.fields = _fields(CHOSEN, columns[pair[0]])
        _take_around(draft, columns)
    if any(role != name for role, name in names.items()):
        beside = {column.name: column.name for role, column in draft.taken if role not in names}
        draft.settings["data"]["columns"] = {**names, **beside}
    return draft


def _refuse_split_prompt(columns: dict[str, Column]) -> None:
    """Raise ConfigError for Alpaca's `input` beside its instruction: a prompt is one column."""
    given = columns.get("input")
    if PROMPT not in columns and "instruction" in columns and given is not None and given.blank < given.rows:
        raise ConfigError(
            "chosen and rejected answer two columns, instruction and input",
            "join both in one column `prompt`: LLaMA-Factory puts a line break between them",
        )


def _take_around(draft: Draft, columns: dict[str, Column]) -> None:
    """Take the columns that a chat template receives beside the messages."""
    for setting in (SYSTEM, TOOLS, "documents", ARGUMENTS):
        names = (setting, *ALIASES.get(setting, ()))
        draft.taken += [(setting, columns[name]) for name in names if name in columns][:1]


def _fields(name: str, column: Column) -> list[str]:
    """Return the fields of messages that no format defines. Raises DataError for what are no messages."""
    messages = [
        message
        for number, value in enumerate(column.examples, 1)
        for message in messages_of([value] if isinstance(value, dict) else value, f"{column.name}, example {number}")
    ]
    unread = (note.removeprefix(UNREAD) for note in notes_of_fields(messages, set()))
    return sorted(f"{name}.{field}" for field in unread if field.partition(".")[0] not in CONVENTIONAL)


def unpaired_preference(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for answers that are marked good and bad, of `format.task` also for pairs; None without them."""
    answer = next((name for name in ANSWERS if name in columns), None)
    label = columns.get(JUDGED) or columns.get(LABEL)
    draft = Draft("unpaired-preference")
    if answer is not None and label is not None and 2 <= len(label.counts) == len({*label.counts} & MARKS.keys()):
        asked = [(PROMPT, columns[PROMPT])] if answer == COMPLETION and PROMPT in columns else []
        draft.taken = [*asked, (COMPLETION, columns[answer]), (LABEL, label)]
        if columns[answer].nested:
            draft.fields = _fields(COMPLETION, columns[answer])
            _take_around(draft, columns)
        if (answer, label.name) != (COMPLETION, LABEL):
            beside = {column.name: column.name for role, column in draft.taken if role not in (COMPLETION, LABEL)}
            draft.settings["data"]["columns"] = {COMPLETION: answer, LABEL: label.name, **beside}
    elif (
        answer == COMPLETION
        and label is not None
        and not form.get("task")
        and len(label.counts) == 2
        and not label.many
    ):
        raise Question(
            f"{label.name} is {' or '.join(label.counts)}: to learn which completions are better, write true for good ones and "
            "false for others in the file",
            {"format.task=instruction": "all completions are learnt, of both kinds"},
        )
    elif form.get("task") and (pairs := preference(columns, data, form)):
        draft.taken, draft.settings = pairs.taken, pairs.settings
    else:
        return None
    draft.settings["format"]["task"] = "unpaired_preference"
    draft.settings["train"] = {"objective": "kto"}
    return draft


def chat(columns: dict[str, Column], data: Meta, form: Meta) -> Draft | None:
    """Return the draft for a column of messages, None without one. Raises DataError for an unknown role, and for the
    parts of a conversation in two columns."""
    wanted = form.get("messages")
    chats = [column for name, column in columns.items() if _is_chat(column) and wanted in (None, name)]
    if not chats:
        return None
    if {column.name for column in chats} == {PROMPT, COMPLETION}:
        raise DataError(
            "prompt and completion each hold a part of a conversation",
            "join both in one column: messages = prompt + completion",
        )
    if len(chats) > 1:
        raise Question(
            f"{' and '.join(column.name for column in chats)} hold messages",
            {f"format.messages={column.name}": "the whole conversation" for column in chats},
        )
    draft, column = Draft("chat"), chats[0]
    draft.fields = _fields(column.name, column)
    draft.taken.append(("messages", column))
    draft.settings["format"]["task"] = "chat"
    if column.name != "messages":
        draft.settings["format"]["messages"] = column.name
    _take_around(draft, columns)
    return draft


def _is_chat(column: Column) -> bool:
    messages = [value for value in column.examples if isinstance(value, list)]
    names = ({"role", "content"}, {"from", "value"}, {"role", "tool_calls"})
    return (
        len(messages) == len(column.examples)
        and any(messages)
        and all(
            isinstance(entry, dict) and any(keys <= entry.keys() for keys in names)
            for value in messages
            for entry in value
        )
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
        raise ConfigError(
            f"{nested[0]} holds lists, not texts",
            "join prompt and answer in one column `messages`; answers within a prompt, which TRL does not train on, get weight 0",
        )
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
    told = [(role, columns[name]) for role in (SYSTEM, HISTORY) for name in (role, *ALIASES[role]) if name in columns]
    if (ask, answer) == ("instruction", "output") or told:
        settings["style"] = "alpaca"
        draft.taken += told
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
                **({"format.task=embedding": AS_VECTORS} if belonging(columns) else {}),
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
