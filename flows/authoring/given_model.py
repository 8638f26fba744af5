"""What `new` knows of the model that it was given: positions, size, chat template, and how many bytes a token has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trnflow.flows.authoring.look import Column
from trnflow.flows.runner.expected_time import parameters_of
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.limited_process import MEMORY, SECONDS, Timer, call_limited
from trnflow.tasks.data.special_tokens import chat_templates
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.errors import ConfigError, ModelError, ProcessFailed
from trnflow.tasks.evaluation.verdicts.script import strange_script, unknown_share
from trnflow.tasks.sources.hub_errors import is_out_of_reach
from trnflow.tasks.sources.model_source import ModelConfig, model_source, tokenizer_folder
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.training.refusals import positions_of

MOST_EXAMPLES = 200
"""Texts that are tokenised to count their tokens."""


@dataclass(frozen=True)
class GivenModel:
    """What is known of a model without loading it.

    Attributes:
        positions: The most tokens of a text; None if its config does not say.
        parameters: About how many.
        has_template: Whether its tokenizer has a chat template.
        tokenizer: The tokenizer's folder on this machine; None if it is elsewhere.
        note: What else is to be said of it, or "".
    """

    positions: int | None
    parameters: int
    has_template: bool
    tokenizer: Path | None
    note: str

    def describe(self) -> str:
        """Return a phrase such as `about 22 million parameters, 512 positions`."""
        million = self.parameters / 1e6
        size = f"about {million:.2g}" if million < 9.95 else f"about {million:,.0f}"
        return f"{size} million parameters" + (f", {self.positions:,} positions" if self.positions else "")

    def strange(self, column: Column) -> str | None:
        """Return a sentence if the tokenizer does not know the script of a column's texts."""
        counted = self._counted(column)
        return strange_script(counted["unknown"], column.name) if counted["tokens"] else None

    def bytes_a_token(self, column: Column) -> float | None:
        """Return how many bytes a token of a column's texts has; None where the tokenizer is not at hand."""
        tokens = self._counted(column)["tokens"]
        return sum(len(text.encode()) for text in _texts(column)) / tokens if tokens else None

    def _counted(self, column: Column) -> Meta:
        """Return what `count_tokens` does, of a column's texts; no tokens where the tokenizer is not at hand."""
        if self.tokenizer is None:
            return {"tokens": 0}
        asked = {"folder": str(self.tokenizer), "texts": _texts(column), "name": column.name}
        try:
            # a tokenizer from elsewhere may write a gigabyte for a letter, or look for a pattern without an end
            return call_limited(f"{__name__}:count_tokens", asked)
        except ModelError:  # the stages say what is wrong with the file
            return {"tokens": 0}
        except (ConfigError, ProcessFailed) as error:
            raise ModelError(
                f"{self.tokenizer}: its tokenizer takes more than {MEMORY >> 20} MiB or {SECONDS:g} s for the texts of "
                f"{column.name}",
                "take another model, or get this one anew from where it was published",
            ) from error


def count_tokens(arguments: Meta, limit: Timer) -> Meta:
    """Return {"tokens": of the texts, "unknown": the share of those that the tokenizer does not know}, in a limited process.

    arguments: folder (the tokenizer's), texts, name (the column's, for errors). Raises ModelError.
    """
    import numpy as np

    loaded = read_tokenizer(Path(arguments["folder"]))
    with limit(f"{arguments['folder']}: its tokenizer, on {arguments['name']}"):
        # one by one: its threads would each reserve memory
        encoded = [loaded.tokenizer.encode(text, add_special_tokens=False).ids for text in arguments["texts"]]
        numbers = [number for ids in encoded for number in ids]
        unknown = unknown_share(loaded, np.bincount(numbers)) if numbers else 0.0
    return {"tokens": len(numbers), "unknown": unknown}


def _texts(column: Column) -> list[str]:
    return [text for text in column.examples if isinstance(text, str)][:MOST_EXAMPLES]


def given_model(given: Meta, resolver: Resolver) -> GivenModel | None:
    """Return what is known of the model that the user named; None without one, or while its hub is out of reach.

    Raises ConfigError, ModelError for a model that is not there or can't be used.
    """
    from pydantic import ValidationError

    named = given.get("model", {})
    if not isinstance(named, dict) or not named.get("source"):
        return None
    try:
        source = resolver.ask_once(model_source, ModelConfig.model_validate(named))
        folder = tokenizer_folder(source)
    except ValidationError:  # the recipe that is written says it in our words
        return None
    except ModelError as error:
        if is_out_of_reach(error):
            return None
        raise
    config = source.identity["config"]
    if config["pretrained"] is None:
        raise ModelError(
            f"model.source: {named['source']} has no config.json", "give a folder that save_pretrained has written"
        )
    return GivenModel(
        positions=positions_of(config),
        parameters=parameters_of(config),
        has_template="default" in (chat_templates(folder) if folder else {}),
        tokenizer=folder,
        note=source.note,
    )
