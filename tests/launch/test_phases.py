"""A stage in parts: results come in order, however the parts were made, and take no room once they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trnflow.tasks.artifact import Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import DataError
from trnflow.tasks.launch.phases import Phase, run_phase
from trnflow.tasks.stage import Part, Parts, Workdir, stage

COUNT = 12


class CountConfig(StageConfig):
    """bad: the part that fails."""

    bad: int = -1


def split(config: CountConfig, out: Workdir) -> list[Part]:
    (out.path / "shared").write_text("for all")
    return [Part({"params": {}, "inputs": {}}, {"number": number}) for number in range(COUNT)]


def part(config: CountConfig, shared: Any, part: Meta, out: Workdir) -> Meta:
    assert (shared.path / "shared").read_text() == "for all"
    if part["number"] == config.bad:
        raise DataError(f"part {config.bad} is bad")
    (out.path / "made").write_text(str(part["number"]))
    (out.scratch / "litter").write_text("x")
    out.info(f"made {part['number']}")
    return {"number": part["number"]}


@stage(kind="counts", split=split, part=part)
def count(config: CountConfig, parts: Parts, out: Workdir) -> Meta:
    found, most = [], 0
    for result in parts.of():
        found.append((result.meta["number"], (result.folder / "made").read_text()))
        most = max(most, len(list(result.folder.parent.iterdir())))
    return {"found": found, "most": most}


def workdir(root: Path, said: list[Meta]) -> Workdir:
    (root / "out").mkdir(parents=True)
    return Workdir(root / "out", root / "scratch", said.append)


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_come_in_order_and_few_lie_on_the_disk_at_once(threads: int, tmp_path: Path) -> None:
    said: list[Meta] = []
    meta = run_phase(count, CountConfig(), {}, workdir(tmp_path, said), Phase(threads=threads))
    assert meta["found"] == [(number, str(number)) for number in range(COUNT)]
    assert meta["most"] <= 2 * (threads + 2), (
        "a part that was read is gone; each has a folder and one for its temporary files"
    )
    assert said == [{"info": f"made {number}"} for number in range(COUNT)]


def test_the_error_of_a_part_is_that_of_the_stage(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="part 3 is bad"):
        run_phase(count, CountConfig(bad=3), {}, workdir(tmp_path, []))
    listed = run_phase(count, CountConfig(), {}, workdir(tmp_path / "listed", []), Phase("split"))
    assert [one["arguments"] for one in listed["parts"]] == [{"number": number} for number in range(COUNT)]


def test_the_first_report_and_the_last_are_sent_and_about_ten_a_second(tmp_path: Path) -> None:
    sent: list[Meta] = []
    out = Workdir(tmp_path, tmp_path, sent.append)
    for done in range(1, 5001):
        out.progress(done, 5000, "texts")
    assert [each["progress"]["done"] for each in (sent[0], sent[-1])] == [1, 5000]
    assert len(sent) < 5000 and sent[0]["progress"] == {"done": 1, "total": 5000, "unit": "texts"}
