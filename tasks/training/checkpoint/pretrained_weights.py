"""Read a Hugging Face folder's weights one parameter or part at a time, by transformers' names.

Files may have other names (`embed_out` is `lm_head`), or several tensors a parameter (experts);
`from_pretrained`'s rules are applied one by one. Files are memory-mapped: a stored tensor takes no memory, a made one
its size, twice while it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.weight_files import INDEX, WHOLE, weight_files
from trnflow.tasks.stage import read_json

if TYPE_CHECKING:
    from torch import Tensor


class PretrainedWeights:
    """A model's parameters from a folder's safetensors. model: on "meta": names and rules.

    Attributes: `unused`, the stored tensors that are none of the model's. Raises ModelError when files can't be read, or
    tied parameters differ in them.
    """

    def __init__(self, folder: Path, model: Any) -> None:
        self._model = model
        self._converters: dict[str, Any] = {}
        self._sources: dict[str, list[tuple[str, str]]] = {}
        self._files = _stored(folder)
        self.unused: list[str] = []
        self._last: tuple[str, dict[str, Tensor]] = ("", {})
        self._list_sources()
        self._aliases = _aliases(model)
        self._check_tied()

    def has(self, name: str) -> bool:
        """Return whether the files hold a parameter, or one tied to it."""
        return self._held(name) is not None

    def stored_name(self, name: str) -> str | None:
        """Return the name of the stored tensor that is the parameter; None if it is made of several. Raises ModelError."""
        held = self._known(name)
        return None if held in self._converters else self._sources[held][0][1]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a parameter's shape in the files; of one made of several tensors the model's."""
        held = self._known(name)
        if held in self._converters:
            return tuple(self._model.state_dict()[held].shape)
        # a slice's header alone is read
        return tuple(self._opened(self._sources[held][0][1], lambda stored: stored.get_shape()))

    def tensor(self, name: str) -> Tensor:
        """Return a parameter in the file's type. Raises ModelError when it is missing or can't be read."""
        return self.part(name, ())

    def part(self, name: str, at: tuple[slice, ...]) -> Tensor:
        """Return the elements `at` of a parameter, as `tensor`; nothing else is read unless it is made of several."""
        held = self._known(name)
        if held not in self._converters:
            return self._read(self._sources[held][0][1], at)
        first = self._converters[held]
        if self._last[0] != first:
            self._last = ("", {})  # frees the memory before the next tensors are read
            self._last = (first, self._converted(first))
        return self._last[1][held][at]

    def _check_tied(self) -> None:
        """Raise ModelError if tied parameters differ in the files."""
        import torch

        # transformers trains with both, and a published model could have one
        for names in {tuple(names) for names in self._aliases.values()}:
            stored = [name for name in names if name in self._sources and name not in self._converters]
            if len(stored) > 1 and not torch.equal(*(self._read(self._sources[name][0][1]) for name in stored[:2])):
                raise ModelError(
                    f"the model ties {stored[0]} and {stored[1]}, and its files hold different values for them",
                    "set model.overrides.tie_word_embeddings=false",
                )

    def _list_sources(self) -> None:
        """Note which stored tensors each parameter is made of, as transformers' loader finds them."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        rules = get_model_conversion_mapping(self._model)
        renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        self._rules = {pattern: rule for rule in converters for pattern in rule.source_patterns}
        prefix, known = self._model.base_model_prefix, self._model.state_dict()
        for key in sorted(self._files, key=dot_natural_key):
            name, pattern = rename_source_key(key, renamings, converters, prefix, known)
            if name not in known and key in known:
                name, pattern = rename_source_key(key, [], [], prefix, known)
            if name in known:
                self._sources.setdefault(name, []).append((pattern or "", key))
                if pattern is not None:
                    targets = self._rules[pattern].target_patterns
                    names = {name.replace(targets[0], other, 1) for other in targets}
                    self._converters |= dict.fromkeys(names & known.keys(), name)
            else:
                self.unused.append(name)

    def _known(self, name: str) -> str:
        held = self._held(name)
        if held is None:
            raise ModelError(f"the weights lack {name}", "save the model anew")
        return held

    def _held(self, name: str) -> str | None:
        """Return the name, among those that share the values, whose tensors are stored."""
        return next(
            (alias for alias in self._aliases.get(name, [name]) if alias in self._sources or alias in self._converters),
            None,
        )

    def _converted(self, first: str) -> dict[str, Tensor]:
        """Return the parameters that a rule makes of stored tensors, of which `first` is the first."""
        rule = deepcopy(self._rules[self._sources[first][0][0]])
        for pattern, key in self._sources[first]:
            rule.add_tensor(first, key, pattern, partial(self._read, key))
        converted = rule.convert(first, model=self._model, config=self._model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in converted.items()}

    def _read(self, key: str, at: tuple[slice, ...] = ()) -> Tensor:
        value: Tensor = self._opened(key, lambda stored: stored[at])
        return value

    def _opened(self, key: str, read: Callable[[Any], Any]) -> Any:
        """Return what `read` takes from a stored tensor."""
        from safetensors import SafetensorError, safe_open

        file = self._files[key]
        try:
            with safe_open(file, framework="pt") as opened:
                return read(opened.get_slice(key))
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file.name} gives no {key}: {error}", "save the model anew") from error


def _stored(folder: Path) -> dict[str, Path]:
    """Return {name of a tensor: its file} of the folder's safetensors files."""
    from safetensors import SafetensorError, safe_open

    files: dict[str, Path] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                files |= dict.fromkeys(opened.keys(), file)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file.name} can't be read as safetensors: {error}", "save the model anew") from error
    index = folder / INDEX
    for name, promised in read_json(index)["weight_map"].items() if index.is_file() else ():
        if name not in files and not (folder / WHOLE).is_file():
            raise ModelError(f"{promised} lacks {name}, which {INDEX} says it holds", "save or download the model anew")
    return files


def _aliases(model: Any) -> dict[str, list[str]]:
    """Return for each parameter the names that share its values, the model's first."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return {name: names for names in groups.values() for name in names}
