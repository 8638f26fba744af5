"""Options of `trnflow sweep` that are settings of the section `sweep`."""

from __future__ import annotations

from argparse import ArgumentParser

from trnflow.flows.cli.model.sweep_command import OPTIONS, add_commands
from trnflow.flows.recipes.sections import SweepConfig


def test_each_option_with_the_name_of_a_setting_sets_it() -> None:
    parser = ArgumentParser()
    add_commands(parser.add_subparsers(), ArgumentParser(add_help=False))
    options = vars(parser.parse_args(["sweep", "--direction", "max"]))
    assert options["direction"] == "max" and {*options} & {*SweepConfig.model_fields} == {*OPTIONS}
