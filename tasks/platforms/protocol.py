"""What every platform can do: take a job, say how it stands, end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

MARGIN_SECONDS = 60.0
"""What a job gets beyond `launch.grace_seconds` between its platform's SIGTERM and its end: to upload its state, and to leave."""

STOPPED = 75
"""The exit code of a job that was stopped with its state saved: the platform starts it again."""

FAILURE_FILE = "TRNFLOW_JOB_FAILURE"
"""The variable that names the file for the line of a job's error, on a platform that shows it."""

SECRET = "TRNFLOW_JOB_SECRET"
"""The variable that names the secret with the values of the variables that a job needs."""


class Standing(NamedTuple):
    """How a job stands on its platform.

    Attributes:
        state: `unknown` while the platform can't be reached.
        why: The platform's own words, short; "" of a job that ended well, or that the platform no longer knows.
    """

    state: Literal["waiting", "running", "ended", "unknown"]
    why: str = ""


class Platform(Protocol):
    """Where jobs run. A ticket is the platform's own name of a job that was submitted.

    kind: as in `launch.kind`.
    python: the interpreter there, unless `launch.python` names another.
    check: raises ConfigError or MachineError if no job can be submitted; costs nothing.
    submit: hands over a job (its name, of letters and digits; the command), and returns its ticket; raises as `check`.
    find: returns the ticket of a job that waits or runs, by its name; None without one; raises MachineError.
    look: returns how a job stands.
    end: ends a job at once, without saving; harmless if it is over; raises MachineError.
    printed: returns the last lines that a job printed; "" if there are none, or they can't be read from here.
    """

    @property
    def kind(self) -> str: ...

    @property
    def python(self) -> str: ...

    def check(self) -> None: ...

    def submit(self, job: str, command: Sequence[str]) -> str: ...

    def find(self, job: str) -> str | None: ...

    def look(self, ticket: str) -> Standing: ...

    def end(self, ticket: str) -> None: ...

    def printed(self, ticket: str) -> str: ...
