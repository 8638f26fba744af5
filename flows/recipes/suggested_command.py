"""Build the commands that error messages suggest, with recipe and overrides as the user gave them."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace

from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.system.redaction import hide_override

_OWN = re.compile(r"`trnflow (run|prepare|plan)(?P<rest>| --[^`]*)`")
"""A suggested command without a recipe: that of the failed command is meant."""


def complete(error: TrnflowError, options: Namespace) -> TrnflowError:
    """Insert the failed command's recipe and overrides into the commands of the error's fix, in place; secrets are
    masked."""
    recipe = getattr(options, "recipe", None)
    if recipe is not None:
        given = shlex.join([recipe, *map(hide_override, options.overrides)])
        error.fix = _OWN.sub(lambda found: f"`trnflow {found[1]} {given}{found['rest']}`", error.fix)
    return error
