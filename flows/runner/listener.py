"""The events of a run, for whoever shows or records them."""

from __future__ import annotations

from collections.abc import Iterable

from trnflow.flows.runner.plan import Step
from trnflow.tasks.artifact import Meta


class Listener:
    """Base class for objects that receive the events of a run. Override the methods you need.

    The methods are called in the runner's thread:
    - `retrain_begins`: `trnflow retrain` is about to train; with the reason.
    - `planned`: before the first stage; with the planned steps, in order.
    - `stage_started`: a stage is about to be executed; not called for a hit.
    - `waits`: again and again while a stage waits for another run; an error that it raises ends the run.
    - `event`: a running stage reports progress, metrics, figures or a message (see `trnflow.tasks.stage.Workdir`).
    - `stage_ended`, `stage_failed`: with the settled step, or with the error.
    """

    def retrain_begins(self, why: str) -> None: ...
    def planned(self, steps: list[Step]) -> None: ...
    def stage_started(self, step: Step) -> None: ...
    def waits(self, stage: str) -> None: ...
    def event(self, stage: str, event: Meta) -> None: ...
    def stage_ended(self, step: Step) -> None: ...
    def stage_failed(self, stage: str, error: BaseException) -> None: ...


class Log(Listener):
    """Passes each event on to several listeners, in their order."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self.listeners = tuple(listeners)

    def retrain_begins(self, why: str) -> None:
        for listener in self.listeners:
            listener.retrain_begins(why)

    def planned(self, steps: list[Step]) -> None:
        for listener in self.listeners:
            listener.planned(steps)

    def stage_started(self, step: Step) -> None:
        for listener in self.listeners:
            listener.stage_started(step)

    def waits(self, stage: str) -> None:
        for listener in self.listeners:
            listener.waits(stage)

    def event(self, stage: str, event: Meta) -> None:
        for listener in self.listeners:
            listener.event(stage, event)

    def stage_ended(self, step: Step) -> None:
        for listener in self.listeners:
            listener.stage_ended(step)

    def stage_failed(self, stage: str, error: BaseException) -> None:
        for listener in self.listeners:
            listener.stage_failed(stage, error)

    def say(self, stage: str, text: str) -> None:
        """Report a message for the user about a stage; nothing if it is empty."""
        if text:
            self.event(stage, {"info": text})
