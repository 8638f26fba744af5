"""What the key of a stage has of the stages that make its kept inputs."""

from __future__ import annotations

from pathlib import Path

from trnflow.tasks.evaluate_model import evaluate_model
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.key_document import stage_closure
from trnflow.tasks.stage import stage_of


def test_the_code_and_the_libraries_of_kept_inputs_are_in_the_key(tmp_path: Path) -> None:
    """evaluate_model itself imports no torch: what predicts in its place does."""
    memo, described = Memo(tmp_path / "memo.db"), stage_of(evaluate_model)
    own, whole = closure(evaluate_model.__module__, memo), stage_closure(described, memo)
    assert "torch" not in own.env and whole.env["torch"] and own.env.items() < whole.env.items()
    for kept in described.kept.values():
        theirs = closure(kept.function.__module__, memo)
        assert theirs.env.items() <= whole.env.items() and theirs.code.items() <= whole.code.items()
