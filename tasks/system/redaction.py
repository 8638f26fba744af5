"""Keep secrets in settings, URLs, environment variables and errors out of all that is written or shown.

`hide_secrets` finds secrets in settings by form: a URL's user part, query values such as `token`, values of `environment`.
`scrub` also replaces known secrets in any text, raw or URL-encoded.
"""

from __future__ import annotations

import base64
import json
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO
from urllib.parse import unquote, unquote_plus

from trnflow.tasks.errors import ConfigError, TrnflowError, unexpected
from trnflow.tasks.system.terminal import printable

SCHEMA = 1

MASK = "***"
# the shortest secret that `scrub` replaces: a shorter one may be part of other words
SHORTEST_SECRET = 6

# a URL's user name of this length counts as a token, even before a password
LONG_USER = 12

LONGEST = 10_000
"""Most characters of an error's message."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_REFERENCES = r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+"
_ONLY_REFERENCES = re.compile(_REFERENCES)

_USER = r"(?:[^/?#\s]*|[^/?#\s:@\[]+:(?!\d+(?:[/?#\s]|$))[^\s@]{0,256})@"
_ENDS = r"[:;,.)'\"`]{0,2}(?:[&#\s]|$)"  # the end of a value: in a sentence, punctuation may follow
_QUERY = r"(?<=[?&;#])(?!viewStateShareKey=)"  # MLflow's name of a saved view is no secret
_CREDENTIAL = "token|sig|key|secret|pass|pwd|credential|auth|jwt|session|cookie"
_NAME = r"[^?=&;#\s]*"
# looks for = first, and is atomic: else a text without a secret takes time with the square of its length
_NAMED = rf"{_QUERY}(?={_NAME}=)(?>({_NAME}?(?:{_CREDENTIAL}){_NAME}=))"
_SHAPES = (
    # (1) a user name before a `${NAME}` password, (2) the user part of a URL, (3) values in its query
    (rf"(?<=://)(?!{_REFERENCES}:)[^/?#\s:@]+(?=:{_REFERENCES}@)", MASK),
    (rf"(?<=://)(?!(?:\*\*\*|{_REFERENCES})(?::{_REFERENCES})?@){_USER}", f"{MASK}@"),
    (rf"(?i){_NAMED}(?!(?:\*\*\*|{_REFERENCES}){_ENDS})[^&\s]+", rf"\1{MASK}"),
)
_COMPILED = tuple((re.compile(pattern), shown) for pattern, shown in _SHAPES)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s]+")
_USER_PART = re.compile(rf"(?<=://)({_USER})")
_QUERY_VALUE = re.compile(rf"{_NAMED}([^&\s]+)", re.IGNORECASE)

_SPECIAL = "".join(
    f"(?<!{kind}_)" for kind in ("pad", "eos", "bos", "unk", "cls", "sep", "mask")
)  # `pad_token` is not a secret
_WORDS = (
    f"{_SPECIAL}token|secret|pass(word|wd|phrase)|credentials?|pat|environment|((api|access|private|secret)[._-]?)?key"
)
_SECRET_NAME = re.compile(rf"(^|[._-])({_WORDS})($|[._-])", re.IGNORECASE)
ENVIRONMENT = "environment"

# {secret: (its pattern, the text shown instead)}, for the whole process: any thread may raise an error with the secret
_known: dict[str, tuple[re.Pattern[str], str]] = {}


# Secrets found by the form of a setting


def hide_secrets(value: Any) -> Any:
    """Return a copy of settings with `***` in place of secrets; `${NAME}` is kept."""
    if isinstance(value, str):
        return _hidden(value)
    if isinstance(value, dict):
        return {name: _masked(inner) if name == ENVIRONMENT else hide_secrets(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [hide_secrets(inner) for inner in value]
    return value


def without_secrets(value: Any) -> Any:
    """Return a copy of settings for a tracking server: hidden, without entries named like secrets, such as `hf_token`."""
    if isinstance(value, dict):
        return {name: without_secrets(inner) for name, inner in value.items() if not names_secret(str(name))}
    if isinstance(value, list | tuple):
        return [without_secrets(inner) for inner in value]
    return hide_secrets(value)


def names_secret(name: str) -> bool:
    """Return whether a value of this name may be a secret, such as `hf_token` or `API_KEY`."""
    return _SECRET_NAME.search(name) is not None


def hide_override(text: str) -> str:
    """Return an override such as `tracking.uri=http://me:pw@host` with its secrets replaced."""
    name, equals, value = text.partition("=")
    path = name.strip().split(".")
    if ENVIRONMENT not in path or not equals:
        return scrub(text)
    return f"{name}={value if _ONLY_REFERENCES.fullmatch(value) and path[-1] != ENVIRONMENT else MASK}"


def _masked(value: Any) -> Any:
    """Replace every value by `***`, except texts that are only a `${NAME}`."""

    def masked(leaf: Any) -> Any:
        return leaf if leaf is None or (isinstance(leaf, str) and _ONLY_REFERENCES.fullmatch(leaf)) else MASK

    return map_leaves(masked, value)


def _hidden(text: str) -> str:
    if "://" in text or "=" in text:
        for pattern, shown in _COMPILED:
            text = pattern.sub(shown, text)
    return text


# Secrets found by their value


def fill_variables(text: str, setting: str) -> str:
    """Return a setting's text with each `${NAME}` filled in, a secret from now on. Raises ConfigError."""

    def value(reference: re.Match[str]) -> str:
        name = reference[1]
        if name not in os.environ:
            raise ConfigError(
                f"{setting}: the environment variable {name} is not set", f"export {name}=..., or change {setting}"
            )
        add_secret(os.environ[name], reference[0])
        return os.environ[name]

    filled = _VARIABLE.sub(value, text)
    add_secrets_of(filled)
    return filled


def variables_in(settings: Any) -> set[str]:
    """Return the names of the environment variables that settings refer to as `${NAME}`."""
    return {name for text in _texts(settings) for name in _VARIABLE.findall(text)}


def add_secrets_of(settings: Any) -> None:
    """Add the secrets in `settings`: credentials in URLs, and all values below `environment`."""
    if isinstance(settings, dict):
        for name, inner in settings.items():
            for secret in _texts(inner) if name == ENVIRONMENT else ():
                add_secret(secret)
            add_secrets_of(inner)
    elif isinstance(settings, list | tuple):
        for inner in settings:
            add_secrets_of(inner)
    elif isinstance(settings, str):
        for secret in _in_urls(settings):
            add_secret(secret)


def add_secret(secret: str, shown: str = MASK) -> None:
    """Let `scrub` replace a secret, each of its lines, and their URL-decoded forms, from LEAST characters on."""
    for part in {secret, *secret.splitlines()}:
        for form in {part, unquote(part), unquote_plus(part)}:
            if len(form) >= SHORTEST_SECRET and form not in _known and not _ONLY_REFERENCES.fullmatch(form):
                _known[form] = (re.compile("".join(map(_character, form))), shown)


def scrub(text: str) -> str:
    """Return a text with secrets replaced by `***`, or by the `${NAME}` they came from."""
    for pattern, shown in _longest_first():
        text = pattern.sub(shown, text)
    return _hidden(text)


def substitutions() -> list[list[str]]:
    """Return the replacements of `scrub` as [[regular expression, replacement], ...], for the guard."""
    # the guard can't import this module: it starts without packages
    known = [[pattern.pattern, shown] for pattern, shown in _longest_first()]
    return [*known, *map(list, _SHAPES)] if known else []


def scrub_all(value: Any) -> Any:
    """Return a JSON value with each text in it scrubbed, keys aside."""
    return map_leaves(lambda leaf: scrub(leaf) if isinstance(leaf, str) else leaf, value)


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a JSON value with each value in it that is no object and no list changed."""
    if isinstance(value, dict):
        return {name: map_leaves(change, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [map_leaves(change, inner) for inner in value]
    return change(value)


def scrubbed(error: TrnflowError) -> TrnflowError:
    """Scrub an error's message, fix and details in place, cut what may quote a value of any length, and return it."""
    trace = scrub("".join(traceback.format_exception(error)))
    error.message, error.fix = (
        text if len(text) <= LONGEST else f"{text[:LONGEST]}..." for text in (scrub(error.message), scrub(error.fix))
    )
    error.args = (error.message,)
    error.details = scrub(error.details) or trace
    # the cause may hold secrets; its traceback is in the details
    error.__cause__ = None
    error.__suppress_context__ = True
    return error


def raisable(error: Exception) -> Exception:
    """Return an error that is safe to raise where another program logs it: itself, scrubbed, or a TrnflowError."""
    if isinstance(error, TrnflowError):
        return scrubbed(error)
    trace = "".join(traceback.format_exception(error))
    return error if scrub(trace) == trace else scrubbed(unexpected(error))


class Scrubbed:
    """A text stream that passes everything on to `stream`, scrubbed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, scrubbed; return the length of `text`."""
        self._stream.write(scrub(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def scrub_logs() -> None:
    """Let Python's logging and warnings scrub all messages and tracebacks from now on, and escape control characters."""
    import logging
    import warnings

    def shown(text: str) -> str:
        return printable(scrub(text))

    earlier = logging.getLogRecordFactory()
    if getattr(earlier, "scrubs", False):
        return

    def record(*arguments: Any, **named: Any) -> logging.LogRecord:
        entry = earlier(*arguments, **named)
        try:
            entry.msg, entry.args = shown(entry.getMessage()), ()
        except (TypeError, ValueError):  # arguments do not fit the format: logging reports this itself
            return entry
        if entry.exc_info and entry.exc_info[0] is not None:
            entry.exc_text = shown("".join(traceback.format_exception(*entry.exc_info))).rstrip("\n")
        return entry

    record.scrubs = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(record)
    as_text = warnings.formatwarning
    # showwarning calls it, unless another program has replaced that
    warnings.formatwarning = lambda *warned, **line: shown(as_text(*warned, **line))


def _longest_first() -> Iterable[tuple[re.Pattern[str], str]]:
    """Return the substitutions, the longest secret first."""
    # one secret may be part of another
    return [_known[secret] for secret in sorted([*_known], key=len, reverse=True)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _in_urls(text: str) -> Iterator[str]:
    """Yield the secrets in a text's URLs: users, passwords, both as an HTTP header encodes them, query values."""
    for url in _URL.findall(text):
        for user_part in _USER_PART.findall(url):
            user, colon, password = user_part[:-1].partition(":")
            yield password
            if not password or len(user) >= LONG_USER:
                yield user
            if colon:
                yield base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        yield from (value for _, value in _QUERY_VALUE.findall(url))


def _character(character: str) -> str:
    """Return a regular expression for a character as it stands plainly, in URLs, in JSON and in a `repr`."""
    if character.isascii() and (character.isalnum() or character in "-_.~"):
        return re.escape(character)
    encoded = "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
    forms = {character, encoded, encoded.lower(), json.dumps(character)[1:-1], repr(character)[1:-1]}
    forms |= {"+"} if character == " " else {f"\\{character}"} if character in "'\"" else set()
    return f"(?:{'|'.join(map(re.escape, sorted(forms, key=len, reverse=True)))})"
