"""The Dockerfile of a job's image, read by a linter that we did not write. It is not built here."""

from __future__ import annotations

import pytest

from tests.clients.conftest import RunClient
from tests.conftest import PROJECT

LINT = """
import json, os, subprocess, sys
program = os.path.join(os.environ["PYTHONPATH"].split(os.pathsep)[0], "bin", "hadolint")
def said(text):
    return json.loads(subprocess.run([program, "--format", "json", "-"], input=text, capture_output=True, text=True).stdout)
text = open(sys.argv[1]).read()
print(json.dumps([said(text), [one["code"] for one in said(text.replace("=12.*", ""))]]))
"""


@pytest.mark.more
def test_the_linter_of_dockerfiles_finds_nothing(run_client: RunClient) -> None:
    found, planted = run_client("hadolint", LINT, PROJECT / "services/aws/Dockerfile")
    assert found == [] and planted == ["DL3008"]
