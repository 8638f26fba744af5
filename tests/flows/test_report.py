"""What a person sees while a stage runs."""

from __future__ import annotations

import io

from flows.call import bind
from flows.report import Progress
from tasks.config import StageConfig
from tests.flows.toy import learn


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_and_how_long_still(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    bars = Progress(screen)
    bars.stage_started(bind(learn, StageConfig(), ()), "key")
    for done in range(1, 4):
        bars.event("learn", {"progress": {"done": done, "total": 10, "unit": "steps", "loss": 0.5}})
        bars._bars.refresh()
    shown = screen.getvalue()
    bars.close()
    assert "3/10" in shown and "ETA" in shown and "loss 0.5" in shown
    assert "ETA 0:00:0" in shown.replace("\x1b[36m", "").replace("\x1b[0m", "")
