"""Follow a job from its first event on: what its stages report goes into the log of the run here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, cast

from trnflow.flows.jobs.listing import read_document, runs_of, seconds_since, stop_file
from trnflow.flows.jobs.order import JobUri, result_file
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.run_log import say
from trnflow.flows.runner.work_folders import attempt_log
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import JobSubmission, RecordedStage
from trnflow.tasks.errors import BlobLost, HomeRemoved, Interrupted, MachineError, StoreError, TrnflowError, from_json
from trnflow.tasks.events.event_types import Event
from trnflow.tasks.events.log_copy import EVENTS, SILENT_SECONDS, CopiedLogs
from trnflow.tasks.platforms.protocol import Platform, Standing
from trnflow.tasks.system.terminal import one_line

ASK_SECONDS = 15.0
"""Between two questions to the platform."""
LAST_SECONDS = 90.0
"""How long the result of a job that the platform has ended may take to be seen, on a disk of other machines."""
PASSED_ON = ("stage_begun", "progress", "metrics", "figures", "part", "waits", "note")
AGAIN = "run the same command again: finished stages hit, training resumes"


class FollowedJob:
    """A job, as far as it has come.

    Attributes:
        ended: {stage: how it ended}.
        is_over: Whether nothing more is to be expected.
        is_here: Whether the job ran as part of this run.
        tells: Whether what it reports goes into the log.
    """

    def __init__(
        self,
        context: RunContext,
        uri: JobUri,
        submission: JobSubmission,
        platform: Platform,
        max_wait_hours: float,
        stages: Sequence[str],
    ) -> None:
        self.ended: dict[str, RecordedStage] = {}
        self.is_over, self.is_here, self.tells = False, True, True
        self.id = uri.id
        self._context, self._store, self._log = context, context.store, context.log
        self._submission, self._platform, self._stages = submission, platform, frozenset(stages)
        self._longest_wait = max_wait_hours * 3600
        self._runs: list[str] = []
        self._copy: CopiedLogs | None = None
        self._result: Meta = {}
        self._seen: set[tuple[Any, ...]] = set()
        self._standing, self._asked = Standing("unknown", ""), -ASK_SECONDS
        self._gone: float | None = None
        self._answered = time.monotonic()
        self._is_to_stop = self._is_silent = False

    def look(self, stage: str) -> None:
        """Take what the job has reported since the last look. stage: the one that is waited for. Raises StoreError if the store
        does not answer for SILENT_SECONDS."""
        try:
            runs = [run for run in runs_of(self._store, self.id) if run not in self._submission["earlier"]]
            # first: who sees the result has all events
            result = read_document(self._store, result_file(self.id)) or {}
            for run in runs[max(len(self._runs) - 1, 0) :]:
                if run not in self._runs:
                    self._runs.append(run)
                    self._copy = CopiedLogs(self._store.backend, run)
                    say(self._log, stage, f"job {self.id} runs as {run}")
                    if self._is_to_stop:
                        self._store.backend.create(stop_file(self.id, run), b"")
                self._take_new()
            self._answered = time.monotonic()
        except StoreError:
            if time.monotonic() - self._answered > SILENT_SECONDS:
                raise
            return
        self._result = {}
        # the job has gone on since an older one
        if runs and result.get("run") == self._runs[-1]:
            self._take_result(result)

    @classmethod
    def of_result(cls, context: RunContext, uri: JobUri, result: Meta, platform: Platform) -> FollowedJob:
        """Return a job that has completed before this run."""
        nobody = JobSubmission(platform="", ticket="", earlier=[], host="", time="")
        job = cls(context, uri, nobody, platform, 0.0, ())
        job.is_here = False
        job._take_result(result)
        return job

    def _take_result(self, result: Meta) -> None:
        """Take the result of the job's newest run."""
        self._result = result
        if result.get("outcome") == "completed":
            self.ended = ended_stages(result) | self.ended
            self.is_over = True

    def fault(self, stage: str) -> TrnflowError | None:
        """Return why the job will not end a stage that it has not ended; None while it may."""
        outcome, error = self._result.get("outcome"), self._result.get("error")
        if outcome == "completed":
            return MachineError(f"job {self.id} has ended without {stage}", AGAIN)
        if outcome == "failed" or (outcome == "stopped" and (self._is_to_stop or self._ask(stage).state == "ended")):
            self.is_over = True
            known = self._error(error)
            return Interrupted(known.message, AGAIN) if outcome == "stopped" else known
        standing = self._ask(stage)
        if (
            standing.state == "waiting"
            and not self._runs
            and seconds_since(self._submission["time"]) > self._longest_wait
        ):
            self.end()
            hours = self._longest_wait / 3600
            return MachineError(
                f"job {self.id}: no machine came in {hours:g} h ({standing.why})",
                "raise launch.max_wait_hours, or ask for less",
            )
        if standing.state != "ended":
            self._gone = None
            self._note_silence(stage, standing)
            return None
        return self._gone_without_result(standing)

    def ask_to_stop(self, stage: str) -> bool:
        """Ask the job to save its state and stop. Return whether that is to be waited for."""
        self._asked = -ASK_SECONDS
        self._is_to_stop = True
        if self._runs and self._ask(stage).state in ("running", "unknown"):
            self._store.backend.create(stop_file(self.id, self._runs[-1]), b"")
            return True
        self.end()
        return False

    def end(self) -> None:
        """Take the job from the platform, at once."""
        self.is_over = True
        self._platform.end(self._submission["ticket"])

    def last_notes(self, stage: str) -> list[str]:
        """Return the notes of a job that has ended its last stage."""
        until = time.monotonic() + LAST_SECONDS
        has_ticket = bool(self._submission["ticket"])
        while not self._result and time.monotonic() < until:
            time.sleep(1.0)
            self.look(stage)
        self.is_over = True
        self._asked = -ASK_SECONDS
        # submitted a second time meanwhile
        if has_ticket and self._ask(stage).state == "waiting":
            self.end()
        return [str(note) for note in self._result.get("notes", ())]

    def _take_new(self) -> None:
        assert self._copy is not None
        new = self._copy.new()
        for event in self._copy.parsed(new.pop(EVENTS, b"")):
            self._take(event)
        for attempt, text in new.items():
            name = attempt.replace(self._runs[-1], self._context.run, 1)
            with (
                contextlib.suppress(OSError),
                attempt_log(self._store.home, self._context.run, name).open("ab") as file,
            ):
                file.write(text)

    def _take(self, event: Event) -> None:
        fields: Meta = {name: value for name, value in event.items() if name not in ("n", "time", "event")}
        if fields.get("stage") not in self._stages:
            return
        if event["event"] == "stage_ended":
            self.ended[event["stage"]] = cast(RecordedStage, fields)
        elif self.tells and event["event"] in PASSED_ON and not self._is_repeated(event):
            self._log.write(event["event"], at=event["time"], **fields)

    def _is_repeated(self, event: Event) -> bool:
        """Return whether an event tells of a step that was done again after a kill."""
        if event["event"] != "metrics":
            return False
        sign = event["stage"], event["step"], *sorted(event["values"])
        is_known = sign in self._seen
        self._seen.add(sign)
        return is_known

    def _ask(self, stage: str) -> Standing:
        """Return what the platform says of the job, at most ASK_SECONDS old; a change is said."""
        if time.monotonic() - self._asked >= ASK_SECONDS:
            before, self._standing = self._standing, self._platform.look(self._submission["ticket"])
            self._asked = time.monotonic()
            if self._standing != before and self._standing.state in ("waiting", "unknown"):
                why = f" ({self._standing.why})" if self._standing.why else ""
                holder = f"{self._platform.kind} {self._submission['ticket']}{why}"
                self._log.write("waits", stage=stage, holder=holder)
        return self._standing

    def _note_silence(self, stage: str, standing: Standing) -> None:
        """Say once that a platform runs a job that has not reported anything for SILENT_SECONDS."""
        was_silent, copy = self._is_silent, self._copy
        self._is_silent = standing.state == "running" and copy is not None and copy.is_silent
        if self._is_silent and not was_silent:
            holder = f"{self._platform.kind} {self._submission['ticket']}"
            text = f"job {self.id} has given no sign of life for {SILENT_SECONDS / 60:g} minutes, and {holder} says that it runs"
            say(self._log, stage, f"{text}: its machine may have died (docs/machines.md)")

    def _error(self, document: Any) -> TrnflowError:
        """Return the error of a job. What one says of the home or a blob there is no matter for the run here."""
        if not isinstance(document, dict) or not {"type", "message"} <= document.keys():
            return MachineError(f"job {self.id} failed", f"`trnflow jobs {self.id}` says more")
        error = from_json(document)
        if isinstance(error, BlobLost | HomeRemoved):
            error = MachineError(f"job {self.id}: {error.message}", AGAIN)
        error.stage = str(document.get("stage") or "")
        return error

    def _gone_without_result(self, standing: Standing) -> TrnflowError | None:
        self._gone = self._gone or time.monotonic()
        if time.monotonic() - self._gone < LAST_SECONDS:
            return None
        self.is_over = True
        ticket, why = self._submission["ticket"], f" ({standing.why})" if standing.why else ""
        if self._runs:
            return MachineError(
                f"{self._platform.kind} ended job {self.id} (its {ticket}) before it could say why{why}", AGAIN
            )
        printed = self._platform.printed(ticket).strip().splitlines()[-1:]
        said = f": {one_line(printed[0])}" if printed else ""
        return MachineError(
            f"{self._platform.kind} ended job {self.id} (its {ticket}) before trnflow began{why}{said}",
            "see that launch.python is an interpreter with trnflow there, and that it reaches the store",
        )


def ended_stages(result: Meta) -> dict[str, RecordedStage]:
    """Return {stage: how it ended} of the result of a job."""
    return {ended["stage"]: ended for ended in cast("list[RecordedStage]", result.get("stages", []))}
