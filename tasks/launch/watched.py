"""Let a further process of a stage run the user's own code as the stage itself may: the permit is passed on in a file."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

from trnflow.tasks.artifact import CODE, Source
from trnflow.tasks.errors import DataError
from trnflow.tasks.keys.file_audit import Permit, watch_process
from trnflow.tasks.launch import landlock
from trnflow.tasks.launch.call import Call

PERMIT = "TRNFLOW_PERMIT"
"""The variable that names the file."""

NATIVE = ("/run", "/opt")
"""What libraries of the system read beside the permit: where /etc/resolv.conf points to, and drivers such as ROCm's."""

PRINTED = 1_000_000
"""The most characters that own code may print in a process."""


def pass_permit_on(call: Call) -> None:
    """Let the processes of a stage that calls own code find its permit."""
    if call.permit and any(isinstance(given, Source) and given.kind == CODE for given in call.inputs.values()):
        file = call.scratch.with_name(f"{call.scratch.name}.permit")
        file.write_text(json.dumps(call.to_json()["permit"]), encoding="utf-8")
        os.environ[PERMIT] = str(file)


@contextmanager
def watched() -> Iterator[None]:
    """Check what this process reads, and print to the stage's log. Raises CodeError."""
    kept, sys.stdout = sys.stdout, _Printed(sys.stderr)
    sys.stderr = sys.stdout
    try:
        file = os.environ.pop(PERMIT, None)
        if file is None:  # no run: a test or a prediction
            yield
            return
        permit = Permit.from_json(json.loads(Path(file).read_text(encoding="utf-8")))
        with _held(permit) if permit.held and landlock.is_there() else nullcontext(), watch_process(permit):
            yield
    finally:
        sys.stderr, sys.stdout = sys.stdout._stream, kept


@contextmanager
def _held(permit: Permit) -> Iterator[None]:
    """Let native libraries read what the permit allows alone, from now on. Raises DataError for a file that was refused."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    landlock.read_only_these([*permit.places(), *NATIVE, *filter(None, libraries)])
    try:
        yield
    except DataError as error:
        refused = error.__cause__
        if not isinstance(refused, PermissionError) and "ermission denied" not in str(refused):
            raise
        # other libraries raise errors of their own, with the same words
        named = re.search(r"'(/[^']+)'", str(refused))
        name = os.path.basename(named[1]) if named else "FILE"
        raise DataError(
            f"{error.message}: {permit.stage}'s key does not know that file, so it may not be read",
            f"put it below the recipe's folder, and declare it: own: {{files: [{name}]}}",
        ) from error


class _Printed:
    """A text stream that takes PRINTED characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._left = stream, PRINTED

    def write(self, text: str) -> int:
        self._left -= len(text)
        if self._left < 0:
            raise OverflowError(f"printed more than {PRINTED:,} characters")
        return self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)
