"""The event log of a run: one process writes what happens as lines of JSON, and all that is visible reads them.

docs/events.md describes the format.
"""

from trnflow.tasks.events.event_types import SCHEMA, Event
from trnflow.tasks.events.log import Emit, EventLog, Reader
from trnflow.tasks.events.reading import follow, has_end, is_killed, parse_events, read_log, read_tail
from trnflow.tasks.events.retention import is_written, log_file, logged_runs, run_folder, unsent_file, unsent_runs
from trnflow.tasks.events.state import RunState, StageState, fold

__all__ = [
    "SCHEMA", "Emit", "Event", "EventLog", "Reader", "RunState", "StageState", "fold", "follow", "has_end", "is_killed",
    "is_written", "log_file", "logged_runs", "parse_events", "read_log", "read_tail", "run_folder", "unsent_file", "unsent_runs",
]  # fmt: skip
