"""The warm parents of a run: processes that have imported slow libraries, such as torch, and from which stages'
processes are forked."""

from __future__ import annotations

import contextlib
from functools import partial

from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.plan import Step
from trnflow.flows.runner.stage_call import Parent, process_of
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.launch.warm_parents import preload


def parent_of(step: Step, context: RunContext) -> Parent:
    """Return the warm parent of a step's stage. Raises ConfigError as `RunContext.environment`."""
    stage, memo = step.node.stage, context.store.memo
    environment = context.variables_for(closure(stage.function.__module__, memo).env)
    return process_of(stage, step.config, memo, environment, torch_xla=context.uses_torch_xla)


def start_warm_parents(due: list[Step], context: RunContext) -> None:
    """Start the warm parents of steps that may run; they import while other things go on.

    A TrnflowError, such as a wrong setting, is left to the run, which raises it again."""
    with contextlib.suppress(TrnflowError):
        preload(map(partial(parent_of, context=context), due))
