"""Run the stages of a pipeline in order: take a stage's artifact from the store if it is there (a hit), else run the
stage.

`trnflow.flows.runner.executor` runs each stage. `PrefectRunner` overrides `run_or_reuse` to
show each stage as a Prefect task.
"""

from __future__ import annotations

from typing import Any

from trnflow.flows.runner.call import Call, Function, Outcome, Stop, Value, bind
from trnflow.flows.runner.executor import Executor
from trnflow.flows.runner.inputs import Inputs
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.store import Store


class Runner(Inputs):
    """Runs the stages of a pipeline against a store. One object serves one run.

    Args:
        until: The stage after which the pipeline stops; None for the last.
        settings: Values of attributes of `Executor`, such as run (the run's id), listeners (objects that receive the
            run's events) and force (stages to run in any case).

    Attributes:
        executor: Looks up and runs single stages.
        outcomes: The outcomes of the finished stages, by the stage's name.
    """

    def __init__(self, store: Store, resolver: Resolver, *, until: str | None = None, **settings: Any) -> None:
        super().__init__(store, resolver)
        self.executor = Executor(store, notes=self.notes, **settings)
        self.outcomes: dict[str, Outcome] = {}
        self._until = until
        self._deferred: list[Call] = []

    # What a pipeline is written against (trnflow.flows.runner.call.Stages)

    def __call__(
        self, function: Function, config: StageConfig, *inputs: Value | None, after: Call | None = None
    ) -> Artifact:
        call = bind(function, config, inputs, after)
        outcome = self.executor.recorded(call)
        if outcome is None:
            for needed in call.after.values():
                self._run_deferred(needed)
        return self._finish(call, outcome)

    def defer(self, function: Function, config: StageConfig, *inputs: Value) -> Call:
        """Register a stage that runs only if another stage needs it, such as precompile for train, and return its call.

        The pipeline function passes the returned call as `after` when it calls the other stage. If the run is to stop
        after the registered stage (`until`), the registered stage runs at once, and Stop is raised.
        """
        call = bind(function, config, inputs)
        self._deferred.append(call)
        if self._until == call.name:
            self._run_deferred(call)
        return call

    def run_or_reuse(self, call: Call, recorded: Outcome | None) -> Outcome:
        """Return `recorded`, the outcome `hit` that was found in the store; if it is None, run the stage, put its
        artifact on record in the store and return the outcome."""
        return recorded or self.executor.execute(call, self.outcomes.values())

    def restart(self) -> None:
        """Clear all outcomes, so that the pipeline can be run again from its first stage after a blob (a file of the
        store) turned out missing or corrupt.

        Forced stages (those that the user asked to run again) that already ran are not forced again.
        """
        self.executor.force -= self.outcomes.keys()
        self.outcomes.clear()
        self._deferred.clear()

    def skipped(self) -> list[Outcome]:
        """Return an outcome for each stage that was registered by `defer`, to run only if another stage needs it, and
        did not run.

        The action of the outcome is `hit` if the store has the stage's artifact, else `skip`.
        """
        return [self._not_run(call) for call in self._deferred if call.name not in self.outcomes]

    def _not_run(self, call: Call) -> Outcome:
        why = "what it is for did not run"
        return self.executor.recorded(call) or Outcome(call.name, "skip", why, self.executor.key(call), None, 0.0)

    def _run_deferred(self, call: Call) -> None:
        self._finish(call, self.executor.recorded(call))

    def _finish(self, call: Call, recorded: Outcome | None) -> Artifact:
        try:
            outcome = self.run_or_reuse(call, recorded)
        except BaseException as error:
            if isinstance(error, TrnflowError) and not error.stage:
                error.stage = call.name
            for listener in self.executor.listeners:
                listener.stage_failed(call.name, error)
            raise
        self.outcomes[call.name] = outcome
        for listener in self.executor.listeners:
            listener.stage_ended(outcome)
        if self._until == call.name:
            raise Stop
        assert outcome.artifact is not None
        return outcome.artifact
