"""Build the commands that error messages suggest, ready to paste: with the recipe and the overrides as the user gave
them."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace

from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.system.redaction import hide_override

_OWN = re.compile(r"`trnflow (run|prepare|plan)(?P<rest>| --[^`]*)`")
"""A suggested command without a recipe, which means the recipe of the command that failed."""


def complete(error: TrnflowError, options: Namespace) -> TrnflowError:
    """Insert the recipe and the overrides of the failed command into commands such as `trnflow run` in the error's fix
    (its advice to the user), and return the error, which is changed in place. Overrides with secrets are masked.

    options: the parsed command line of the failed command; without a recipe, nothing is changed."""
    recipe = getattr(options, "recipe", None)
    if recipe is not None:
        given = shlex.join([recipe, *map(hide_override, options.overrides)])
        error.fix = _OWN.sub(lambda found: f"`trnflow {found[1]} {given}{found['rest']}`", error.fix)
    return error
