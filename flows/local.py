"""A run from the command line under Prefect: finds or starts the server, then calls the flow in this process.

Prefect reads its settings when it is imported, so the environment is set first and the import comes last.
"""

from __future__ import annotations

import os
from pathlib import Path

from flows.run import Options, Result
from flows.server import ensure_server
from flows.stage import Listener
from tasks.errors import TrnflowError


def run_here(
    recipe: str, overrides: list[str], options: Options, listeners: tuple[Listener, ...], home: Path
) -> Result:
    """Run the flow `finetune`; a stage's failure is in the result."""
    os.environ["PREFECT_API_URL"] = ensure_server(home)
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # the terminal has the progress bars
    os.environ.setdefault("DO_NOT_TRACK", "1")

    from flows.orchestrate import SESSION, Session, finetune

    session = Session(listeners)
    token = SESSION.set(session)
    try:
        finetune(recipe, list(overrides), options.until, sorted(options.force), options.offline)
    except TrnflowError:
        if session.result is None:
            raise
    finally:
        SESSION.reset(token)
    assert session.result is not None
    return session.result
