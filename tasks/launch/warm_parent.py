"""The warm parent: imports slow libraries, and forks guards in 30 ms.

    warm_parent:serve SOCKET

A request names modules to import while idle, or a stage to start. Our own code is imported after the fork. The process
ends when the flow does.
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
from typing import TypedDict

from trnflow.tasks.launch import guard
from trnflow.tasks.system.garbage import no_collections

# seconds between two checks whether the flow still runs
LOOK_SECONDS = 1.0

# `/proc/PID/environ` of a forked process shows the first environment alone: bytes kept there for the attempt's name
RESERVED = 256

LONGEST_REQUEST = 1 << 18


class StageRequest(TypedDict):
    """A stage that a warm parent is to run. entry: the worker's function, as "module:function"; grace: seconds between
    SIGTERM and SIGKILL; memory: the bytes above which the stage is killed; environ: None removes a variable; attempt: the
    variable with the attempt's id."""

    entry: str
    arguments: list[str]
    modules: tuple[str, ...]
    grace: float
    memory: int
    folder: str
    environ: dict[str, str | None]
    attempt: str


def serve(descriptor: str) -> None:
    """Run as a warm parent on a socket's descriptor, until the flow ends or closes the socket."""
    flow = os.getppid()
    requests = _socket(int(descriptor))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes guards that ended
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    to_come: list[str] = []
    while True:
        if os.getppid() != flow:
            os._exit(0)
        requests.settimeout(0 if to_come else LOOK_SECONDS)
        try:
            message, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 3)
        except (BlockingIOError, TimeoutError):
            _import(to_come[:1])
            del to_come[:1]
            continue
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "entry" in request:
            _import(request["modules"])
            _fork(requests, request, descriptors)
        else:
            to_come += request["modules"]


def _import(modules: list[str]) -> None:
    if all(name in sys.modules for name in modules):
        return
    with no_collections():
        for name in modules:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # without this, garbage collection would write to shared memory pages and so copy them


def _socket(descriptor: int) -> socket.socket:
    # not descriptor 3, which is a worker's event pipe
    requests = socket.socket(fileno=os.dup(descriptor) if descriptor == guard.WORKER_EVENTS else descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing != guard.WORKER_EVENTS:
        os.dup2(nothing, guard.WORKER_EVENTS, inheritable=False)
    return requests


def _fork(requests: socket.socket, request: StageRequest, descriptors: list[int]) -> None:
    """Fork a guard, and send its pid and a pidfd; send "threads" if this process has several."""
    # a library has started a thread: a fork would not be safe
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


def _guard(request: StageRequest, descriptors: list[int]) -> None:
    """Run the guard of one worker, in the forked process."""
    status = 1
    try:
        os.setsid()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        _show_attempt(request["environ"].get(request["attempt"]))
        status = guard.main(request["grace"], request["memory"], lambda: _work(request))
    finally:
        os._exit(status)


def _work(request: StageRequest) -> None:
    """Run the worker, in the forked process, set up as a new interpreter would be."""
    for number in (*guard.STOP, guard.LEAVE, signal.SIGCHLD):
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
    """Overwrite in memory this process's first ATTEMPT, which `/proc/PID/environ` shows."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place = getenv(b"TRNFLOW_ATTEMPT")
    if place and attempt:
        ctypes.memmove(place, attempt.encode()[: RESERVED - 1].ljust(RESERVED, b"\0"), RESERVED)
