"""Find what a pipeline takes from outside its stages: sources, and the model that training starts from.

`flows.runner.runner.Runner` and `flows.runner.planning.planner.Planner` share this code, so that a plan computes the same
keys as a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flows.runner.call import Call, Function, Unknown, Value, bind
from flows.runner.vocabulary import check_vocabulary
from flows.runner.warm_start import EarlierModel, earlier_model, starting_model
from tasks.artifact import Artifact, Source
from tasks.config import StageConfig
from tasks.keys.key_document import key_document
from tasks.sources.resolver import Resolver
from tasks.store import Store


class Inputs:
    """Base class of `Runner` and `Planner`: finds sources and the model that training starts from.

    Attributes:
        sources: The sources found so far, by kind ("model", for example).
        notes: Sentences to show to the user when the run or plan ends.
        start: The model that training starts from, set by `starting_model`; None if no model was named or the plan can't tell
            it.
    """

    def __init__(self, store: Store, resolver: Resolver) -> None:
        self.store = store
        self.resolver = resolver
        self.sources: dict[str, Source] = {}
        self.notes: list[str] = []
        self.start: Artifact | None = None

    def resolve(self, find: Callable[[Any, Resolver], Source], config: StageConfig) -> Source:
        """Return the source that `find` makes from a config, and add it to `sources` and its note, if any, to `notes`."""
        source = find(config, self.resolver)
        self.sources[source.kind] = source
        if source.note:
            self.notes.append(f"{source.kind}: {source.note}")
        return source

    def find_model(self, text: str | None, setting: str) -> EarlierModel | None:
        """Find in the store the model that a setting names.

        Args:
            text: The value of the setting: a digest, the beginning of one, or a recipe's name; None for no model.
            setting: The name of the setting, such as train.warm_start_from, for error messages.

        Raises:
            ConfigError: The store has no such model.
        """
        return None if text is None else earlier_model(self.store, text, setting)

    def check_vocabulary(self, start: EarlierModel | None, tokens: Artifact | Unknown) -> None:
        """Raise ConfigError if a token id means one word in the model `start` and another in `tokens`.

        Without a model, or in a plan whose tokens have yet to be made, nothing is checked.
        """
        if start is not None and isinstance(tokens, Artifact):
            check_vocabulary(self.store, start.artifact, tokens)

    def starting_model(
        self,
        earlier: EarlierModel | None,
        function: Function,
        config: StageConfig,
        *inputs: Value | None,
        after: Call | None,
    ) -> Artifact | None:
        """Return the model that a training starts from, or None if none was named.

        This is the model `earlier`, with one exception: if the very same training (config and inputs) made that model from
        another one, it is that other model, so that repeating a run repeats the key. In a plan some inputs may be unknown;
        then the exception is not looked for, and the attribute `start` is not set.

        Args:
            earlier: The model that the setting names, or None.
            function: The training stage's function, with its config, inputs and `after` as for `bind`, but without the
                model.
        """
        call = bind(function, config, inputs, after)
        if earlier is None or call.unknown:
            return earlier.artifact if earlier else None
        document = key_document(call.stage, call.config, call.inputs, self.store.memo)
        self.start, note = starting_model(self.store, earlier, document)
        if note and note not in self.notes:
            self.notes.append(note)
        return self.start
