"""The warm parent: a process that has imported slow libraries, and from which stage processes are forked in some 30 ms.

    warm_parent:serve SOCKET

The warm parent waits on SOCKET (a file descriptor) for requests of the flow, the process that runs the pipeline
(`trnflow.tasks.launch.warm_start`). A request either names modules, all third-party, that later stages need: the warm parent
imports them, one after the other, while it has nothing else to do. Or it starts a stage: the warm parent imports what
this stage needs and is not imported yet, and forks a guard (`trnflow.tasks.launch.guard`), which forks the worker, the process
that runs the stage. Guard and worker have the libraries loaded, and import the project's own code after the fork. The
warm parent creates no XLA client, no CUDA context and no thread. If a library started a thread, the warm parent refuses
to fork, and the flow starts the stage in a new interpreter.

The warm parent ends when the flow ends or closes the socket. The guards that were forked from it then end their
workers.
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

from trnflow.tasks.launch import guard

LOOK_SECONDS = 1.0
"""Seconds between two checks whether the flow still runs."""

RESERVED = 256
"""Length in bytes that is reserved in the environment for the attempt's name, which `/proc/PID/environ` of a forked
process shows."""

LONGEST_REQUEST = 1 << 18


def serve(descriptor: str) -> None:
    """Run as a warm parent, the process from which the processes of stages are forked: import the modules that the flow,
    the process that runs the pipeline, asks for, and fork a guard (the process that starts and ends the process of one
    stage) for each stage, as soon as the modules that this stage needs are imported. Does not return: the process exits
    when the flow ends or closes the socket.

    descriptor: the file descriptor of the socket to the flow, as text.
    """
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
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # without this, garbage collection would write to shared memory pages and so copy them


def _socket(descriptor: int) -> socket.socket:
    """Return the socket that has this descriptor. If the descriptor is 3, the socket gets another one, because a
    worker's event pipe must be 3."""
    requests = socket.socket(fileno=os.dup(descriptor) if descriptor == guard.WORKER_EVENTS else descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing != guard.WORKER_EVENTS:
        os.dup2(nothing, guard.WORKER_EVENTS, inheritable=False)
    return requests


def _fork(requests: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
    """Fork a guard and send its pid and a pidfd to the flow. Send "threads" instead if this process has several
    threads, because forking it would not be safe."""
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
    """Run the guard of one worker, in the forked process. descriptors: the guard's lifeline, event pipe and log."""
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
    """Run the worker, in the forked process: set up what a new interpreter would have (arguments, environment, import
    path), then call the requested function."""
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
    """Overwrite, in memory, the value of the variable ATTEMPT that this process was started with.

    `trnflow.tasks.system.process.lives_on` finds the processes of an attempt by `/proc/PID/environ`, which shows the memory of
    the first environment and not later changes of `os.environ`.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    place = getenv(b"TRNFLOW_ATTEMPT")
    if place and attempt:
        ctypes.memmove(place, attempt.encode()[: RESERVED - 1].ljust(RESERVED, b"\0"), RESERVED)
