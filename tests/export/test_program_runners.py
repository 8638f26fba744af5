"""How jax, which is not installed beside the tests, is asked to compile an export."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trnflow.tasks.export.program_runners import JaxRunner


@pytest.mark.parametrize(("optimised", "level"), [(False, 0), (True, 3)])
def test_xla_optimises_if_it_is_asked_to_and_compiles_once(
    optimised: bool, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Options:
        def __init__(self) -> None:
            debug = SimpleNamespace(xla_backend_optimization_level=0)
            self.executable_build_options = SimpleNamespace(debug_options=debug)

    client: Any = ModuleType("jaxlib.xla_client")
    client.CompileOptions, client.DeviceList = Options, tuple
    monkeypatch.setitem(sys.modules, "jaxlib", ModuleType("jaxlib"))
    monkeypatch.setitem(sys.modules, "jaxlib.xla_client", client)
    (tmp_path / "a.bc").write_bytes(b"bytes")
    runner, compiled = object.__new__(JaxRunner), list[Any]()
    runner.folder, runner._optimised, runner._compiled = tmp_path, optimised, {}
    runner._device = SimpleNamespace(
        client=SimpleNamespace(compile_and_load=lambda *given: compiled.append(given) or given)
    )
    assert runner._executable("a.bc") is runner._executable("a.bc")
    ((bytecode, _, options),) = compiled
    assert (
        bytecode == b"bytes" and options.executable_build_options.debug_options.xla_backend_optimization_level == level
    )
