"""The warm parent: a process that has imported slow libraries, and from which stage processes are forked in some 30 ms.

    warm_parent:serve SOCKET MODULE...

It imports the modules, which are all third-party, and then waits on SOCKET (a file descriptor) for requests of the flow
(`tasks.launch.warm_start`). For each request it forks a guard (`tasks.launch.guard`), which forks the worker. Both have the
libraries loaded, and import the project's own code anew. It creates no XLA client, no CUDA context and no thread. If a
library started a thread, it refuses to fork, and the flow starts the stage in a new interpreter.

It ends when the flow ends or closes the socket; the guards that it forked then end their workers.
"""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any

from tasks.launch import guard

LOOK_SECONDS = 1.0
"""Seconds between two checks whether the flow still runs."""

RESERVED = 256
"""Bytes of the variable in which `/proc/PID/environ` shows the attempt of a forked process."""

LONGEST_REQUEST = 1 << 18


def serve(descriptor: str, *modules: str) -> None:
    """Import the modules, then fork a guard for each request until the flow ends: the main function of a warm parent.

    descriptor: the file descriptor of the socket, as text.
    """
    flow = os.getppid()
    requests = _socket(int(descriptor))
    for name in modules:
        importlib.import_module(name)
        if os.getppid() != flow:
            os._exit(0)
    gc.collect()
    gc.freeze()  # the collector would write to, and so copy, the pages that the children share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes guards that ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests.settimeout(LOOK_SECONDS)
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 3)
        except TimeoutError:
            if os.getppid() != flow:
                os._exit(0)
            continue
        if not message:
            os._exit(0)
        _fork(requests, json.loads(message), descriptors)


def _socket(descriptor: int) -> socket.socket:
    """The socket, at a number of its own: 3 stays free for the worker's event pipe."""
    requests = socket.socket(fileno=os.dup(descriptor) if descriptor == guard.WORKER_EVENTS else descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing != guard.WORKER_EVENTS:
        os.dup2(nothing, guard.WORKER_EVENTS, inheritable=False)
    return requests


def _fork(requests: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
    """Fork a guard and send its pid with a pidfd; "threads" where forking would not be safe."""
    if len(os.listdir("/proc/self/task")) > 1:
        requests.send(b"threads")
    elif pid := os.fork():
        pidfd = os.pidfd_open(pid)
        requests.sendmsg(
            [str(pid).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd]).tobytes())]
        )
        os.close(pidfd)
    else:
        requests.close()
        _guard(request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _guard(request: dict[str, Any], descriptors: list[int]) -> None:
    """In the forked process: be the guard of one worker. descriptors: its lifeline, event pipe and log."""
    status = 1
    try:
        os.setsid()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        _show_attempt(request["environ"].get(request["attempt"]))
        status = guard.main(request["grace"], lambda: _work(request))
    finally:
        os._exit(status)


def _work(request: dict[str, Any]) -> None:
    """In the worker: what an interpreter that starts anew would have, then the entry."""
    for number in (*guard.STOP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    for name, value in request["environ"].items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    importlib.invalidate_caches()
    module, _, name = request["entry"].partition(":")
    try:
        getattr(importlib.import_module(module), name)(*request["arguments"])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()


def _show_attempt(attempt: str | None) -> None:
    """Write the attempt over the value of the variable ATTEMPT that this process started with: `/proc/PID/environ`, by which
    `tasks.system.process.lives_on` finds the processes of an attempt, shows that memory and no later change of it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place = getenv(b"TRNFLOW_ATTEMPT")
    if place and attempt:
        ctypes.memmove(place, attempt.encode()[: RESERVED - 1].ljust(RESERVED, b"\0"), RESERVED)
