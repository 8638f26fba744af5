"""Read and write JSON whose numbers keep their text: `str` of 0.10 is `0.10`, and 1e5 stays 1e5. NaN is read as null."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

# a text of the data can't have it
_UNGUESSED = secrets.token_hex(8)
_MARK = re.compile(rf'"{_UNGUESSED} (\d+)"')


class WrittenNumber(float):
    """A number that Python would write otherwise than the JSON that it was read from."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenNumber:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        return (self.text,)

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


def as_written(text: str) -> float:
    """Return the number of a JSON text with a fraction or an exponent."""
    number = float(text)
    # 15 digits without exponent and without a zero at the end are written alike; `repr` takes longer than these tests
    if len(text) < 17 and text[-1] != "0" and abs(number) > 1e-4 and "e" not in text and "E" not in text:
        return number
    return number if repr(number) == text else WrittenNumber(text)


CONSTANTS = {"NaN": None, "Infinity": WrittenNumber("Infinity"), "-Infinity": WrittenNumber("-Infinity")}
loads = json.JSONDecoder(parse_float=as_written, parse_constant=CONSTANTS.__getitem__).decode
"""Read one JSON value. Raises ValueError."""


def dumps(value: Any, **options: Any) -> str:
    """Write JSON as `json.dumps` does with these options, numbers as they were read."""
    texts: list[str] = []
    marked = _marked(value, texts)
    if not texts:
        return json.dumps(value, **options)
    # `json` writes every float by float's own repr, so marks stand for the texts
    return _MARK.sub(lambda mark: texts[int(mark[1])], json.dumps(marked, **options))


def _marked(value: Any, texts: list[str]) -> Any:
    """Return a copy with a mark for each WrittenNumber, whose texts are appended to `texts`."""
    if isinstance(value, WrittenNumber):
        texts.append(value.text)
        return f"{_UNGUESSED} {len(texts) - 1}"
    if isinstance(value, dict):
        return {name: _marked(entry, texts) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(entry, texts) for entry in value]
    return value
