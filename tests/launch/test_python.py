"""The command line of a process that imports its code from where this process has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SHOW = "from trnflow.tasks.launch.python import python; print(*python('trnflow.tasks.errors:unexpected'), sep='\\n')"


def test_a_process_imports_from_the_folder_that_was_named_though_it_is_a_link(tmp_path: Path) -> None:
    """Resolved, the folder could be another, which holds other packages, too."""
    (tmp_path / "trnflow").symlink_to(PROJECT / "trnflow")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {SHOW}"
    *_, folder, entry = subprocess.check_output([sys.executable, "-P", "-c", program], text=True).splitlines()
    assert (folder, entry) == (str(tmp_path), "trnflow.tasks.errors:unexpected")
