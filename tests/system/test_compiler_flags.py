"""Flags of a compiler in keys: sorted by name, but of one name the last counts."""

from __future__ import annotations

from trnflow.tasks.system.compiler_flags import canonical_flags


def test_flags_are_sorted_by_name_and_those_of_one_name_keep_their_order() -> None:
    assert canonical_flags("--b=1 --a 2 --b=0") == ["--a 2", "--b=1", "--b=0"]
    assert canonical_flags("--b=0 --b=1") != canonical_flags("--b=1 --b=0")
    assert canonical_flags("--cache_dir=/x --a --xla_dump_to /y") == ["--a"]
