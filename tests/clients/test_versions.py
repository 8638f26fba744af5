"""Each client is what its lock says, and no other version comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import RunClient

LOCKS = sorted(Path(__file__).parent.glob("*.lock"))
VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_client_has_the_locked_versions(lock: Path, run_client: RunClient) -> None:
    lines = [line for line in lock.read_text().splitlines() if "==" in line and not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert run_client(lock.stem, VERSIONS, *pins) == pins
