"""Bound what the tokenizer of a model from elsewhere may take while `trnflow predict` calls it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trnflow.tasks.errors import ModelError, TrnflowError
from trnflow.tasks.launch.memory_watch import limited_time

SECONDS = 60.0
"""Processor time of a call. The largest published tokenizers are read in 2 s."""
CHARACTERS = 20_000
"""Of a call's texts, for each of which it gets a second more. Honest tokenizers read 500,000 and more a second."""


@contextmanager
def tokenizing(name: str, characters: int = 0) -> Iterator[None]:
    """Call a tokenizer in this block. name: of the model's folder, for errors; characters: of its texts.

    In the command `predict` the process ends after SECONDS and more. Raises ModelError in place of the library's errors.
    """
    try:
        with limited_time(SECONDS + characters / CHARACTERS):
            yield
    except BaseException as error:
        # the first is no Exception, and can't be imported; the library raises the second bare
        if type(error).__name__ != "PanicException" and type(error) is not Exception:
            raise
        raise ModelError(
            f"the tokenizer of {name} can't read the text: {error}",
            "take another model, or get this one anew from where it was published",
        ) from None


@contextmanager
def computing(name: str) -> Iterator[None]:
    """Call a model in this block; its errors become ModelErrors. name: of its folder."""
    try:
        yield
    except IndexError as error:
        # of an id above the vocabulary that a tokenizer's post-processor adds, say
        raise ModelError(
            f"the tokenizer of {name} gives ids that the model has no embedding of: {error}",
            "take another model, or get this one anew from where it was published",
        ) from error
    except (TrnflowError, MemoryError):  # such as a signal's
        raise
    except Exception as error:  # a folder from elsewhere: fields of config.json end in errors of many kinds
        raise ModelError(
            f"the model {name} can't compute its outputs: {type(error).__name__}: {error}",
            "look at its config.json, or get the model anew from where it was published",
        ) from error
