"""Predict in a process of its own, so that the caller's keeps its variables, libraries, seeds and signal handlers.

To load a model changes a process for good: libraries read variables when they are imported, set others, and add to
`sys.path`, loggers and the filters of warnings. Costs a new interpreter (0.1 s); questions and answers are JSON.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.conversation import Row
from trnflow.tasks.data.format.row_format import read_row_format
from trnflow.tasks.data.limited_process import keep_servers
from trnflow.tasks.errors import DataError, MachineError, ProcessFailed, from_json, unexpected
from trnflow.tasks.launch.memory_watch import watch_memory
from trnflow.tasks.launch.python import python
from trnflow.tasks.prediction.carried import carried_columns
from trnflow.tasks.prediction.predict import open_model, predictor
from trnflow.tasks.prediction.prompts import columns_of
from trnflow.tasks.sources.frames import plain_cell, rows_of
from trnflow.tasks.system.child_environ import without_logins
from trnflow.tasks.system.model_process import predicting_environ
from trnflow.tasks.system.process import how_ended
from trnflow.tasks.system.redaction import scrub_logs


class Bounds(NamedTuple):
    """What a request may take: megabytes (10^6 bytes) of its rows as JSON, and seconds until its answer."""

    megabytes: float = math.inf
    seconds: float = math.inf


class PredictingProcess:
    """A model that another process has loaded. That process ends with this object, or with the process that made it.

    rows: the content of `trnflow.json`; max_new_tokens: of an answer.
    """

    def __init__(self, folder: Path, kind: str, meta: Meta, max_new_tokens: int, bounds: Bounds | None = None) -> None:
        """Load the model in `folder`, which may be removed then. kind, meta: of its artifact; bounds: of each `predict`.

        Raises as `open_model` and `predictor`, and ProcessFailed if the process ended.
        """
        self.rows, self.max_new_tokens = read_row_format(folder), max_new_tokens
        self._bounds = bounds or Bounds()
        self._columns = [name for names in columns_of(self.rows) for name in names]
        ours, theirs = socket.socketpair()
        with theirs:
            # in a session of its own: Ctrl-C is for the caller, who ends the process
            self._process = subprocess.Popen(
                python(f"{__name__}:serve_watched", str(theirs.fileno())),
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=without_logins(predicting_environ()),
                start_new_session=True,
            )  # fmt: skip
        self._connection, self._owner, self._alone = Connection(ours.detach()), os.getpid(), threading.Lock()
        self._end = weakref.finalize(self, _end, self._process, self._connection, self._owner)
        try:
            self._ask([str(folder), kind, meta, max_new_tokens], Bounds())
        except BaseException:
            self._end()
            raise

    def predict(self, data: Any, columns: Sequence[str] | None = None) -> list[Meta]:
        """Return the prediction of each row, in order; threads take turns.

        data: A DataFrame, or a list of dicts or texts. columns: Of the rows, for their predictions (`carried_columns`).

        Raises as `rows_of`, `carried_columns` and a `Predict` function, ConfigError for a bare text of a model that reads
        several columns, DataError for more than the bounds, and ProcessFailed if the process ended.
        """
        rows = rows_of(data)
        given = [row for row in rows if not isinstance(row, str)]
        there = dict.fromkeys(name for row in given for name in row)
        carried = carried_columns(self.rows, there, columns).columns
        asked = [(f"row {number}", self._read(row)) for number, row in enumerate(rows, 1)]
        predicted: list[Meta] = self._ask(asked, self._bounds)
        return [
            predictions if isinstance(row, str) else {**{name: row.get(name) for name in carried}, **predictions}
            for row, predictions in zip(rows, predicted, strict=True)
        ]

    def _read(self, row: Row | str) -> Row | str:
        """Return a row's columns that the model reads: others may hold what is no JSON."""
        return row if isinstance(row, str) else {name: row[name] for name in self._columns if name in row}

    @property
    def ended(self) -> bool:
        """Whether it can't predict any more: the process ended, or this one is a fork of that which made it."""
        return self._owner != os.getpid() or not self._end.alive or self._process.poll() is not None

    def _ask(self, question: Any, bounds: Bounds) -> Any:
        """Send a question and return its answer, or raise the error that came in its place."""
        try:
            asked = json.dumps(question, default=plain_cell).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"the rows hold what is no JSON: {error}", "give texts, numbers, lists and dicts"
            ) from error
        if len(asked) > bounds.megabytes * 1e6:
            raise DataError(
                f"the request has {len(asked) / 1e6:.1f} MB of rows, and may have {bounds.megabytes:g} MB at most",
                "send fewer rows at a time, or load the model with a larger max_request_mb",
            )
        try:
            with self._alone:
                self._connection.send_bytes(asked)
                self._await(bounds.seconds)
                failure, answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError, ValueError) as error:  # or what was left of an answer before the watch's error
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
            self._end()
            raise ProcessFailed(
                f"the process that predicts ended ({how_ended(self._process.returncode)})",
                "predict again, which loads the model anew; the system's log says whether memory ran out",
            ) from error
        except BaseException:  # an answer that is not read would be that to the next question
            self._end()
            raise
        if failure is not None:
            if answer is None:  # the watch says so, and ends the process
                self._end()
            failed = from_json(failure)
            failed.details = answer
            raise failed
        return answer

    def _await(self, seconds: float) -> None:
        """Wait until an answer begins. Raises DataError after `seconds`, with which the process ends: it can't be interrupted."""
        if not self._connection.poll(None if math.isinf(seconds) else seconds):
            raise DataError(
                f"the request took longer than {seconds:g} seconds",
                "send fewer rows or shorter texts at a time, or load the model with a larger max_request_seconds",
            )


def _end(process: subprocess.Popen[bytes], connection: Connection, owner: int) -> None:
    connection.close()
    if os.getpid() == owner:  # in a fork the process is another's
        process.kill()
        process.wait()


def serve_watched(descriptor: str) -> None:
    """Main function of the process: `serve` under `watch_memory`."""
    number = int(descriptor)

    def say(error: MachineError) -> None:
        with suppress(OSError):
            Connection(os.dup(number)).send_bytes(json.dumps([error.to_json(), None]).encode())

    watch_memory("the process that predicts", say, caller=number)
    serve(descriptor)


def serve(descriptor: str) -> None:
    """Answer questions: load the model that the first question names, then predict each question's rows.

    An answer is [null, the answer], or [an error, its traceback], as JSON; of the watch [an error, null].
    """
    predict: Callable[[list[Any]], list[Meta]] | None = None
    scrub_logs()
    keep_servers()
    with Connection(int(descriptor)) as connection, suppress(EOFError, ConnectionError):  # the caller has ended
        while True:
            try:
                question = json.loads(connection.recv_bytes())
                answer: list[Any] = [None, predict(question) if predict else None]
                predict = predict or _load(*question)
            except (EOFError, ConnectionError):
                return
            except Exception as error:
                answer = [unexpected(error).to_json(), traceback.format_exc()]
            connection.send_bytes(json.dumps(answer).encode())


def _load(folder: str, kind: str, meta: Meta, max_new_tokens: int) -> Callable[[list[Any]], list[Meta]]:
    model = open_model(Path(folder), kind, meta)
    predict, of_text = predictor(model, max_new_tokens), model.shape.of_text
    return lambda rows: [*predict((where, of_text(row) if isinstance(row, str) else row) for where, row in rows)]
