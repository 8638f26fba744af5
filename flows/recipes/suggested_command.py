"""Complete the commands that errors suggest."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace

from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.system.redaction import hide_override

# A suggested command without a recipe means that of the failed command.
_OWN = re.compile(r"`trnflow (run|prepare|plan)(?P<rest>| --[^`]*)`")


def complete(error: TrnflowError, options: Namespace) -> TrnflowError:
    """Insert the failed command's recipe and overrides, secrets hidden, into the commands of the error's fix, in
    place."""
    recipe = getattr(options, "recipe", None)
    if recipe is not None:
        given = shlex.join([recipe, *map(hide_override, options.overrides)])
        error.fix = _OWN.sub(lambda match: f"`trnflow {match[1]} {given}{match['rest']}`", error.fix)
    return error
