"""What the proof of the code closure costs: the permit of a stage, an audit event, an opened file (seconds of the processor)."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

from trnflow.flows import finetune
from trnflow.tasks.keys.allowed_files import permit_for
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.file_audit import Permit, watch_process
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.stage import stage_of

COUNT = 20_000


def best(what: Callable[[], object], number: int) -> float:
    """Seconds a call, the best of five."""
    return min(timeit.repeat(what, number=number, repeat=5, timer=time.process_time)) / number


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    memo = Memo(folder / "memo.db")
    (folder / "outside").write_text("x")
    known = Path(finetune.__file__).parents[1] / "tasks/tokenize_text.py"
    stage = stage_of(finetune.tokenize_text)
    code = closure(stage.function.__module__, memo)[0]
    loaded = [str(module.__file__) for module in sys.modules.values() if getattr(module, "__file__", None)]

    def event() -> None:
        sys.audit("trnflow.bench")

    def outside() -> None:
        os.close(os.open(folder / "outside", os.O_RDONLY))

    def inside() -> None:
        os.close(os.open(known, os.O_RDONLY))

    def permit(*also: str) -> Permit:
        return permit_for(stage, code, (), (folder, *also), memo)

    def watched() -> None:
        with watch_process(permitted):
            pass

    def round_trip() -> list[float]:
        return [1e6 * best(what, COUNT) for what in (event, outside, inside)]

    permitted = permit(*loaded)  # this process has more modules of the project than a stage's process
    rounds = {"before any stage": round_trip()}  # the hook is not yet in
    print(f"permit of tokenize_text ({len(code)} modules, memoised): {1e3 * best(permit, 50):.2f} ms")
    print(f"begin and end to watch ({len(sys.modules)} modules loaded): {1e3 * best(watched, 50):.2f} ms")
    rounds["between stages"] = round_trip()
    with watch_process(permitted):
        rounds["while a stage is watched"] = round_trip()
    for when, (one, two, three) in rounds.items():
        print(f"{when}: an audit event {one:.2f} us, a file opened {two:.2f}, a file of the project opened {three:.2f}")


if __name__ == "__main__":
    main()
