"""Find the inputs of a pipeline that none of its stages makes: sources (the data and the pretrained model, outside the
store) and the model in the store that training starts from (`train.warm_start_from`).

`Runner` and `Planner` share this code, so that a plan computes the same
keys as a run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnflow.flows.runner.call import Call, Function, Unknown, Value, bind
from trnflow.flows.runner.vocabulary import check_vocabulary
from trnflow.flows.runner.warm_start import EarlierModel, earlier_model, starting_model
from trnflow.tasks.artifact import Artifact, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.keys.key_document import key_document
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.store import Store


class Inputs:
    """Base class of `Runner` and `Planner`: finds the sources of a pipeline (its data and its pretrained model, which
    lie outside the store) and the model that training starts from.

    Args:
        store: The store in which models are looked up.
        resolver: Finds out which exact bytes a path, URL or hub name stands for.

    Attributes:
        sources: The sources found so far, by kind ("data" or "model").
        notes: Sentences to show to the user when the run or plan ends.
        start: The model in the store that training starts from, set by `starting_model`; None if there is none, or if
            a plan does not know yet which one.
    """

    def __init__(self, store: Store, resolver: Resolver) -> None:
        self.store = store
        self.resolver = resolver
        self.sources: dict[str, Source] = {}
        self.notes: list[str] = []
        self.start: Artifact | None = None

    def resolve(self, find: Callable[[Any, Resolver], Source], config: StageConfig) -> Source:
        """Return the source (the data or the pretrained model, outside the store) that a config names, with the
        identity of its exact bytes. Add the source to `sources`, and its note for the user, if it has one, to `notes`.

        Args:
            find: Finds the source, such as `data_source` or `model_source`.
            config: The section of the recipe that names the source, such as `data` or `model`.
        """
        source = find(config, self.resolver)
        self.sources[source.kind] = source
        if source.note:
            self.notes.append(f"{source.kind}: {source.note}")
        return source

    def find_model(self, text: str | None, setting: str) -> EarlierModel | None:
        """Find in the store the model that a setting names.

        Args:
            text: The value of the setting: a digest, the beginning of a digest, a recipe's name, or a champion, a
                promoted model of a recipe (`NAME@champion` for the last, `NAME@N` for number N); None for no model.
            setting: The name of the setting, such as train.warm_start_from, for error messages.

        Returns:
            The model; None if `text` is None, or names the champion of a recipe that has no champion yet.

        Raises:
            ConfigError: The store has no such model.
        """
        return None if text is None else earlier_model(self.store, text, setting, self.resolver.folder(setting))

    def check_vocabulary(self, start: EarlierModel | None, tokens: Artifact | Unknown) -> None:
        """Raise ConfigError if a token id stands for one token in the tokenizer of the model `start`, and for another
        one in the tokenizer of `tokens`.

        tokens: the artifact of tokenize_text, which contains the tokenizer of this run. Nothing is checked if `start`
        is None, or in a plan in which tokenize_text has yet to run.
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
        """Return the model that a training starts from, usually `earlier`; None if the training starts from no model in
        the store.

        A repeated training is an exception: if `earlier` was made by a training with the same code, config and inputs,
        the model from which that training started is returned (`trnflow.flows.runner.warm_start.starting_model` has the
        details). The key of the training, the hash of everything that decides its result, is then the same as before,
        and the run finds the result in the store. In a plan in which an input is not known yet, `earlier` is returned
        without this check, and the attribute `start` is not set.

        Args:
            earlier: The model that the setting names, or None.
            function: The training stage's function.
            config: The config with which the training stage will be called.
            inputs: The inputs with which it will be called, with None in place of the model that this method returns.
            after: The call of a stage that must run first, such as precompile, or None.
        """
        call = bind(function, config, inputs, after)
        if earlier is None or call.unknown:
            return earlier.artifact if earlier else None
        document = key_document(call.stage, call.config, call.inputs, self.store.memo)
        self.start, note = starting_model(self.store, earlier, document)
        if note and note not in self.notes:
            self.notes.append(note)
        return self.start
