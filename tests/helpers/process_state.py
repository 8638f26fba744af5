"""All that a library can change in the process that imports and calls it: taken before and after, and compared."""

from __future__ import annotations

import asyncio
import csv
import decimal
import faulthandler
import gc
import hashlib
import locale
import logging
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import warnings
from typing import Any

CHILD = "import json, os; print(json.dumps(dict(os.environ), sort_keys=True))"


def state() -> dict[str, Any]:
    """Return what can be compared: of the interpreter, and of each library that is imported already."""
    return {**_interpreter(), **_logging(), **_libraries()}


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return {what: (before, after)} of all that was there before and differs."""
    return {name: (value, after.get(name)) for name, value in before.items() if after.get(name) != value}


def _interpreter() -> dict[str, Any]:
    mask = os.umask(0)
    os.umask(mask)
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "environ": dict(os.environ),
        "the environment of a child": subprocess.run(
            [sys.executable, "-c", CHILD], capture_output=True
        ).stdout.decode(),
        "cwd": os.getcwd(),
        "umask": mask,
        "nice": os.nice(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "sys.path": [*sys.path],
        "sys.meta_path": [*map(id, sys.meta_path)],
        "torch_xla": "torch_xla" in sys.modules,
        "hooks": [id(sys.excepthook), id(sys.displayhook), id(sys.unraisablehook), id(threading.excepthook)],
        "import": id(__import__),
        "streams": [id(sys.stdin), id(sys.stdout), id(sys.stderr)],
        "limits of the interpreter": (sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()),
        "tracing": (sys.gettrace(), sys.getprofile(), faulthandler.is_enabled()),
        "signals": {number: repr(signal.getsignal(number)) for number in signal.valid_signals()},
        "timers": [
            signal.getitimer(timer) for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
        "threads": sorted(thread.name for thread in threading.enumerate() if not thread.daemon),
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count()),
        "warnings": ([*map(repr, warnings.filters)], id(warnings.showwarning)),
        "locale": locale.setlocale(locale.LC_ALL),
        "decimal": repr(decimal.getcontext()),
        "csv": csv.field_size_limit(),
        "sockets": socket.getdefaulttimeout(),
        "asyncio": repr(type(asyncio.get_event_loop_policy())),
        "random": _digest(random.getstate()),
    }


def _logging() -> dict[str, Any]:
    loggers = {"": logging.getLogger(), **logging.Logger.manager.loggerDict}
    shown = {
        name: (logger.level, [*map(id, logger.handlers)], logger.propagate, logger.disabled, [*map(id, logger.filters)])
        for name, logger in loggers.items()
        if isinstance(logger, logging.Logger)
    }
    return {
        "logging": (logging.root.manager.disable, id(logging.getLoggerClass()), id(logging.getLogRecordFactory())),
        **{f"logger {name}": repr(value) for name, value in shown.items()},
    }


def _libraries() -> dict[str, Any]:
    return {
        f"{name} {what}": value
        for name, look in LOOKS.items()
        if name in sys.modules
        for what, value in look(sys.modules[name]).items()
    }


def _torch(torch: Any) -> dict[str, Any]:
    backends = torch.backends
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "default": (torch.get_default_dtype(), str(torch.get_default_device())),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
        "precision": (
            torch.get_float32_matmul_precision(), backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32,
            backends.cudnn.benchmark, backends.cudnn.deterministic, backends.mkldnn.enabled,
        ),
        # a denormal number that is taken for zero is no longer more than it
        "denormals": bool(torch.tensor([1e-310], dtype=torch.float64).mul(0.5).item() > 0),
        "random": _digest(torch.get_rng_state().tolist()),
        "sharing": torch.multiprocessing.get_sharing_strategy(),
    }  # fmt: skip


def _numpy(numpy: Any) -> dict[str, Any]:
    return {
        "random": _digest(repr(numpy.random.get_state())),
        "errors": numpy.geterr(),
        "print": repr(numpy.get_printoptions()),
    }


def _pandas(pandas: Any) -> dict[str, Any]:
    return {
        "options": {name: repr(pandas.get_option(name)) for name in ("display.max_rows", "mode.copy_on_write",
                    "future.infer_string", "mode.string_storage", "compute.use_numexpr")}
    }  # fmt: skip


def _transformers(transformers: Any) -> dict[str, Any]:
    logs = transformers.utils.logging
    available = transformers.utils.import_utils.is_torch_xla_available
    return {"logging": (logs.get_verbosity(), logs.is_progress_bar_enabled()), "xla": available()}


def _hub(hub: Any) -> dict[str, Any]:
    constants = hub.constants
    return {
        "constants": {
            name: getattr(constants, name)
            for name in dir(constants)
            if name.startswith(("HF_", "HUGGINGFACE", "ENDPOINT"))
        },
        "bars": hub.utils.are_progress_bars_disabled(),
    }


def _datasets(datasets: Any) -> dict[str, Any]:
    return {
        "bars": datasets.is_progress_bar_enabled(), "cache": datasets.is_caching_enabled(),
        "offline": datasets.config.HF_HUB_OFFLINE, "logging": datasets.logging.get_verbosity(),
    }  # fmt: skip


def _mlflow(mlflow: Any) -> dict[str, Any]:
    run = mlflow.active_run()
    return {
        "tracking": mlflow.get_tracking_uri(),
        "registry": mlflow.get_registry_uri(),
        "run": run and run.info.run_id,
    }


LOOKS = {
    "torch": _torch,
    "numpy": _numpy,
    "pandas": _pandas,
    "transformers": _transformers,
    "huggingface_hub": _hub,
    "datasets": _datasets,
    "mlflow": _mlflow,
    "matplotlib": lambda matplotlib: {"settings": _digest(repr(sorted(matplotlib.rcParams.items())))},
    "multiprocessing": lambda module: {"start": module.get_start_method(allow_none=True)},
}


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
