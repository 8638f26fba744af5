"""What `new` knows of the model that it was given: positions, size, chat template, and how many bytes a token has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trnflow.flows.authoring.look import Column
from trnflow.flows.runner.expected_time import parameters_of
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.special_tokens import chat_templates
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer, read_tokenizer
from trnflow.tasks.errors import ModelError
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
    """

    positions: int | None
    parameters: int
    has_template: bool
    tokenizer: Path | None

    def describe(self) -> str:
        """Return a phrase such as `about 22 million parameters, 512 positions`."""
        million = self.parameters / 1e6
        size = f"about {million:.2g}" if million < 9.95 else f"about {million:,.0f}"
        return f"{size} million parameters" + (f", {self.positions:,} positions" if self.positions else "")

    def strange(self, column: Column) -> str | None:
        """Return a sentence if the tokenizer does not know the script of a column's texts."""
        found, ids = self._encoded(column)
        if found is None or not ids:
            return None
        import numpy as np

        return strange_script(unknown_share(found, np.bincount(ids)), column.name)

    def bytes_a_token(self, column: Column) -> float | None:
        """Return how many bytes a token of a column's texts has; None where the tokenizer is not at hand."""
        found, ids = self._encoded(column)
        return sum(len(text.encode()) for text in _texts(column)) / len(ids) if found and ids else None

    def _encoded(self, column: Column) -> tuple[FastTokenizer | None, list[int]]:
        """Return the tokenizer and the ids of a column's texts; (None, []) where it is not at hand."""
        if self.tokenizer is None:
            return None, []
        try:
            found = read_tokenizer(self.tokenizer)
        except ModelError:  # the stages say what is wrong with the file
            return None, []
        encoded = found.tokenizer.encode_batch_fast(_texts(column), add_special_tokens=False)
        return found, [number for each in encoded for number in each.ids]


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
    )
