"""The processes that run one stage together, its *ranks*: started, watched and ended by the stage's worker.

They stay in the worker's process group, so the guard's TERM reaches them all and none outlives the worker. They meet
through a file, so no port can be taken; torch_xla's processes alone through a port, which was free when they were started.
Each writes `rank-K.json`: what came of it. When one fails, the others, which would wait for it, get a few seconds to fail
by themselves; then each that is left writes its stack, and is killed. What is told is the failure that came first: an error
that a rank understood, else a death without a word, else the earliest.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.artifact import Meta
from tasks.errors import Interrupted, ProcessFailed
from tasks.launch.guard import die_with_parent

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LAST_WORDS = 3.0  # seconds from the first failure until those that are left are killed
STACK_SECONDS = 1.0
POLL = 0.05


def run_ranks(command: Callable[[int], list[str]], count: int, folder: Path, pass_fds: Sequence[int] = ()) -> Meta:
    """Run `command(rank)` for each rank and wait for all; {"meta": ...} of rank 0, or {"error": ..., "details": ...}.

    folder: theirs alone, made anew. pass_fds: descriptors that rank 0 inherits. SIGTERM is rank 0's to heed, and held back here
    and in a rank until it is ready for it (see `enter`)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if signal.sigpending() & set(SIGNALS):
        return {"error": Interrupted("stopped before the ranks were started", "run the same command again").to_json()}
    folder.mkdir(parents=True)
    port = _free_port()
    processes = [
        subprocess.Popen(
            command(rank),
            env={**os.environ, **environ(rank, count, folder, port)},
            pass_fds=tuple(pass_fds) if rank == 0 else (),
        )
        for rank in range(count)
    ]
    try:
        left = _watch(processes, folder)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return _outcome([process.returncode for process in processes], left, folder)


def environ(rank: int, count: int, folder: Path, port: int) -> dict[str, str]:
    """As torchrun names them (TORCHELASTIC_RUN_ID is what torch_xla knows its ranks by); and the file through which the ranks
    meet. On one machine gloo needs no name of the host."""
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
    """First thing in a rank: end with the parent, write the stack when asked, and let signals in: rank 0 hears SIGTERM,
    the others do as it says."""
    die_with_parent(parent)
    faulthandler.register(signal.SIGUSR1, file=_stack(folder, rank).open("w"), all_threads=True)
    for number in SIGNALS:
        signal.signal(number, interrupt if rank == 0 else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def leave(rank: int, folder: Path, document: Meta) -> None:
    """Last thing in a rank: what came of it, {"meta": ...} or {"error": ..., "details": ...}."""
    aside = folder / f"rank-{rank}.part"
    aside.write_text(json.dumps({**document, "time": time.time()}), encoding="utf-8")
    aside.replace(folder / f"rank-{rank}.json")


def _free_port() -> int:
    """A TCP port of this machine on which nobody listens now."""
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port: int = some.getsockname()[1]
        return port


def _watch(processes: list[subprocess.Popen[bytes]], folder: Path) -> list[int]:
    """Wait for all; the ranks that were left when one had failed, and were killed."""
    deadline: float | None = None
    while left := [rank for rank, process in enumerate(processes) if process.poll() is None]:
        if deadline is None and any(process.returncode for process in processes):
            deadline = time.monotonic() + LAST_WORDS
        if deadline is not None and time.monotonic() > deadline:
            for rank in left:
                with contextlib.suppress(ProcessLookupError):
                    processes[rank].send_signal(signal.SIGUSR1)
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


def _told(first: int, statuses: list[int], document: Meta | None, left: list[int]) -> Meta:
    where = f"rank {first} of {len(statuses)}"
    if document is not None and (first == 0 and document["error"]["type"] != ProcessFailed.__name__):
        told: Meta = document["error"]  # all ranks say so
        return told
    if document is None:
        how = f"signal {signal.Signals(-statuses[first]).name}" if statuses[first] < 0 else f"exit {statuses[first]}"
        fix = "read the stage's log; if the machine ran out of memory, lower the batch size or train.devices"
        told = ProcessFailed(f"{where} died without a word ({how}), and the others were ended", fix).to_json()
    else:
        told = {**document["error"], "message": f"{where}: {document['error']['message']}"}
    if left:
        told["message"] += (
            f"; still at work were ranks {', '.join(map(str, left))}, whose stacks are in the stage's log"
        )
    return told


def _last_words(folder: Path, rank: int, document: Meta | None) -> str:
    """The traceback of a rank that failed, or the stack of one that was killed."""
    said = str(document.get("details", "")) if document else ""
    stack = _stack(folder, rank)
    if not said and stack.exists():
        said = stack.read_text(encoding="utf-8", errors="replace")
    return f"--- rank {rank}\n{said or 'said nothing'}\n"


def _document(folder: Path, rank: int) -> Meta | None:
    file = folder / f"rank-{rank}.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def _stack(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.stack"
