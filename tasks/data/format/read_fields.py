"""Find out which fields of messages a template reads: record what a rendering asks of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from trnflow.tasks.data.format.fitting import CALL
from trnflow.tasks.data.format.training_fields import FIELDS, PREFIX, TEXT_NAMES, THINKING, is_plain

Row = dict[str, Any]

READ, UNREAD = "reads ", "does not read "
"""What the notes on a field begin with."""
OURS = (*FIELDS, PREFIX, CALL, "role", "refusal", "audio")
"""Fields that are used whatever the template reads, with those of their objects."""
OURS_OF_PARTS = frozenset(f"content.{name}" for name in ("type", *TEXT_NAMES, *FIELDS))

WHOLE = ("arguments",)
"""Fields whose own fields are a tool's, not the format's."""


class Recorded(dict[str, Any]):
    """A message, or an object in it, that notes which of its fields are read. Templates see a dict."""

    __slots__ = ("__path", "__read")

    def __init__(self, fields: Row, read: set[str], path: str = "") -> None:
        # read gets the names of fields that are read, such as `name` or `tool_calls.id`
        super().__init__({name: recorded(value, read, f"{path}{name}.") for name, value in fields.items()})
        self.__read, self.__path = read, path

    def __getitem__(self, name: Any) -> Any:
        self.__read.add(f"{self.__path}{name}")
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.__read.add(f"{self.__path}{name}")
        return super().__contains__(name)

    def get(self, name: Any, default: Any = None) -> Any:
        self.__read.add(f"{self.__path}{name}")
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.__note_all()
        return super().__iter__()

    def keys(self) -> Any:
        self.__note_all()
        return super().keys()

    def values(self) -> Any:
        self.__note_all()
        return super().values()

    def items(self) -> Any:
        self.__note_all()
        return super().items()

    def __repr__(self) -> str:
        self.__note_all()
        return super().__repr__()

    def __note_all(self) -> None:
        self.__read.update(f"{self.__path}{name}" for name in super().__iter__())


def recorded(value: Any, read: set[str], path: str = "") -> Any:
    """Return a value with its objects as `Recorded`, but for a message of role and text alone. path: of the value, with a dot
    at its end."""
    if isinstance(value, dict) and is_plain(value):
        return value
    if isinstance(value, dict) and path[:-1].rpartition(".")[2] not in WHOLE:
        return Recorded(value, read, path)
    return [recorded(entry, read, path) for entry in value] if isinstance(value, list) else value


def fields_of(value: Any, path: str = "") -> Iterator[str]:
    """Yield the names of a message's fields, and of those in its objects."""
    if isinstance(value, list):
        for entry in value:
            yield from fields_of(entry, path)
    elif isinstance(value, dict) and path[:-1].rpartition(".")[2] not in WHOLE:
        for name, entry in value.items():
            yield f"{path}{name}"
            yield from fields_of(entry, f"{path}{name}.")


def notes_of_fields(messages: Iterable[Row], read: set[str]) -> Iterator[str]:
    """Yield a note for each field of the messages that no program defines to be of the text. read: what a template read."""
    read |= {*THINKING} if read & {*THINKING} else set()  # one text under several names
    for name in dict.fromkeys(name for message in messages if not is_plain(message) for name in fields_of(message)):
        if name not in OURS_OF_PARTS and name.partition(".")[0] not in OURS and name != "content":
            yield f"{READ if name in read else UNREAD}{name}"
