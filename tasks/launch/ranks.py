"""Fork, watch and end the ranks of a stage.

Ranks find each other through a file; torch_xla needs a port. The error reported is the likeliest cause: a rank's
TrnflowError, else a death without result, else the earliest error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ErrorDocument, Interrupted, ProcessFailed
from trnflow.tasks.launch.guard import die_with_parent
from trnflow.tasks.launch.memory import takes_less
from trnflow.tasks.system.process import how_ended
from trnflow.tasks.system.whole_file import write_whole

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# the others wait for the failed rank, and would wait for ever
LAST_WORDS = 3.0  # seconds from the first failure until the remaining ranks are killed
STACK_SECONDS = 1.0
POLL = 0.05


def run_ranks(work: Callable[[int], None], count: int, folder: Path, of_rank_0: Sequence[int] = ()) -> Meta:
    """Fork all ranks, wait until they have ended, and return {"meta"}, or {"error": the likeliest cause, "details"}.

    Args:
        work: Runs one rank, in its process.
        folder: For the ranks' results; must not exist.
        of_rank_0: Descriptors that the other ranks close.
    """
    # the guard's signal reaches the whole process group: rank 0 alone handles it, and lets the others save
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if signal.sigpending() & set(SIGNALS):
        return {"error": Interrupted("stopped before the ranks were started", "run the same command again").to_json()}
    folder.mkdir(parents=True)
    port = _free_port()

    def begin(rank: int) -> None:
        os.environ.update(environ(rank, count, folder, port))
        for descriptor in of_rank_0 if rank else ():
            os.close(descriptor)
        work(rank)

    # not started anew: each rank would import torch and transformers again, which takes seconds
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=begin, args=(rank,)) for rank in range(count)]
    try:
        for process in processes:
            process.start()
        left = _watch(processes, folder)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return _outcome([process.exitcode or 0 for process in processes], left, folder)


def environ(rank: int, count: int, folder: Path, port: int) -> dict[str, str]:
    """Return a rank's environment: torchrun's variables, and the file through which ranks find each other."""
    # so that gloo looks up no host name
    loopback = "lo" if sys.platform == "linux" else "lo0"
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "trnflow",
        "TRNFLOW_RENDEZVOUS": str(folder / "rendezvous"),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback),
    }


def enter(rank: int, parent: int, folder: Path, interrupt: Callable[..., None]) -> None:
    """Set up this process as a rank: killed with its parent, writes its stack on SIGUSR1, receives signals from now on.

    interrupt: handles SIGTERM and SIGINT in rank 0; others ignore them.
    """
    die_with_parent(parent)
    faulthandler.register(signal.SIGUSR1, file=_stack(folder, rank).open("w"), all_threads=True)
    for number in SIGNALS:
        signal.signal(number, interrupt if rank == 0 else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def leave(rank: int, folder: Path, document: Meta) -> None:
    """Write this rank's result, {"meta"} or {"error", "details"}, to `rank-K.json`."""
    write_whole(folder / f"rank-{rank}.json", json.dumps({**document, "time": time.time()}))


def _free_port() -> int:
    """Return a TCP port on which nothing listens now."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port: int = some.getsockname()[1]
        return port


def _watch(processes: Sequence[BaseProcess], folder: Path) -> list[int]:
    """Wait for all ranks; return the numbers of those that still ran LAST_WORDS after a failure."""
    deadline: float | None = None
    while left := [rank for rank, process in enumerate(processes) if process.exitcode is None]:
        if deadline is None and any(process.exitcode for process in processes):
            deadline = time.monotonic() + LAST_WORDS
        if deadline is not None and time.monotonic() > deadline:
            for rank in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(processes[rank].pid or 0, signal.SIGUSR1)
            time.sleep(STACK_SECONDS)
            return left
        time.sleep(POLL)
    return []


def _outcome(statuses: list[int], left: list[int], folder: Path) -> Meta:
    documents = [_document(folder, rank) for rank in range(len(statuses))]
    if not any(statuses) and documents[0] is not None:
        return documents[0]
    failed = [rank for rank, status in enumerate(statuses) if status and rank not in left] or [0]
    first = min(failed, key=lambda rank: _order(rank, documents[rank]))
    details = "\n".join(_last_words(folder, rank, documents[rank]) for rank in sorted({*failed, *left}))
    sys.stderr.write(details)
    return {"error": _told(first, statuses, documents[first], left), "details": details}


def _order(rank: int, document: Meta | None) -> tuple[int, float, int]:
    if document is None:
        return 1, 0.0, rank
    understood = document["error"]["type"] != ProcessFailed.__name__
    return (0, 0.0, rank) if understood else (2, document["time"], rank)


def _told(first: int, statuses: list[int], document: Meta | None, left: list[int]) -> ErrorDocument:
    where = f"rank {first} of {len(statuses)}"
    if document is not None and (first == 0 and document["error"]["type"] != ProcessFailed.__name__):
        error: ErrorDocument = document["error"]  # every rank reports this error
        return error
    if document is None:
        fix = f"read the stage's log; if the machine ran out of memory, {takes_less('train')}lower train.devices"
        error = ProcessFailed(
            f"{where} died without a word ({how_ended(statuses[first])}), and the others were ended", fix
        ).to_json()
    else:
        last: ErrorDocument = document["error"]
        error = {**last, "message": f"{where}: {last['message']}"}
    if left:
        error["message"] += (
            f"; still at work were ranks {', '.join(map(str, left))}, whose stacks are in the stage's log"
        )
    return error


def _last_words(folder: Path, rank: int, document: Meta | None) -> str:
    """Return the traceback of a failed rank, or the stack of a killed one."""
    words = str(document.get("details", "")) if document else ""
    stack = _stack(folder, rank)
    if not words and stack.exists():
        words = stack.read_text(encoding="utf-8", errors="replace")
    return f"--- rank {rank}\n{words or 'words nothing'}\n"


def _document(folder: Path, rank: int) -> Meta | None:
    file = folder / f"rank-{rank}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def _stack(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.stack"
