"""What the user is told of quoted lines of a tsv."""

from __future__ import annotations

from trnflow.tasks.data.load.tsv_lines import TsvLines


def test_the_remark_counts_all_lines_and_names_the_first() -> None:
    lines = ["a\tb\n", "1\tplain\n", '2\t"open\n', '3\tclosed"\n', "4\tplain\n", '5\t"open\n', '6\tclosed"\n']
    seen = TsvLines("rows.tsv")
    assert [*seen.for_reader(iter(lines), 1)][2] == '"2"\t"""open"\n'
    assert (seen.rows, seen.first, seen.unsure) == (4, 3, 0)
    assert seen.remarks()[0].startswith("rows.tsv: 4 lines, from line 3 on, are read as a row each")


def test_the_first_of_several_cells_with_line_breaks_and_tabs_is_named() -> None:
    lines = ["a\tb\n", '1\t"two\tparts\nno tab"\n', '2\t"again\n', 'two\tparts\tmore"\n', '3\t"x\n', 'y\tz\tu"\n']
    seen = TsvLines("rows.tsv")
    assert [*seen.for_reader(iter(lines), 1)] == lines
    assert (seen.rows, seen.unsure) == (0, 3) and "line 3: a quoted cell" in seen.remarks()[0]
