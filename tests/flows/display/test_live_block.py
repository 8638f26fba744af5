"""The block that a notebook shows while a run goes on."""

from __future__ import annotations

from typing import Any

import pytest

from trnflow.flows.display import live_block
from trnflow.flows.display.live_block import Block, loss_curve
from trnflow.tasks.events import EventLog


def test_texts_of_stages_are_text_in_the_page_and_updates_are_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    clock = [10.0]
    monkeypatch.setattr(live_block.time, "monotonic", lambda: clock[0])
    log = EventLog(Block(shown.append))
    log.state.begin("<b>mine</b>")
    progress: dict[str, Any] = {"stage": "<b>mine</b>", "total": 9, "unit": "<i>rows</i>", "values": {}}
    for done, at in ((1, 10.0), (2, 10.2), (3, 10.6)):
        clock[0] = at
        log.write("progress", done=done, **progress)
    assert len(shown) == 2, "an update each half second"
    assert "&lt;b&gt;mine&lt;/b&gt;" in shown[-1] and "&lt;i&gt;rows" in shown[-1]
    assert "<b>" not in shown[-1] and "<i>" not in shown[-1]


def test_a_curve_is_drawn_by_step_from_the_second_on() -> None:
    assert loss_curve([(1, 2.0), (1, 3.0)]) == ""
    assert loss_curve([(2, 1.0), (1, 2.0)]) == loss_curve([(1, 2.0), (2, 1.0)]) != loss_curve([(1, 1.0), (2, 2.0)])
