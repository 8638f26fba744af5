"""The table `code` of key documents: a hash of each module in a stage's closure, or its SCHEMA number (PLUMBING).

Installed distributions count by version. Costs about 1 ms a stage with a warm hash cache.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import resolve_name
from typing import NamedTuple, TypedDict

from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.code_hash import analyse
from trnflow.tasks.keys.distributions import distributions_of, installed_versions
from trnflow.tasks.keys.hash_cache import Memo, Stamp, stamp
from trnflow.tasks.keys.module_finder import ModuleFinder, import_path, project_folder, stamp_or_none

# Modules of every stage: an upgrade of this project must not make all results obsolete. Each has a SCHEMA number; raise
# it when a change of the module changes results.
PLUMBING = frozenset(
    {
        "trnflow", "trnflow.tasks", "trnflow.tasks.artifact",
        "trnflow.tasks.config", "trnflow.tasks.errors", "trnflow.tasks.stage",
        "trnflow.tasks.keys", "trnflow.tasks.keys.canonical_json", "trnflow.tasks.keys.code_closure",
        "trnflow.tasks.keys.code_hash", "trnflow.tasks.keys.distributions",
        "trnflow.tasks.keys.hash_cache", "trnflow.tasks.keys.key_document", "trnflow.tasks.keys.module_finder",
        "trnflow.tasks.sources", "trnflow.tasks.system",
        "trnflow.tasks.sources.download_cache", "trnflow.tasks.sources.hub_client",
        "trnflow.tasks.sources.hub_errors",
        "trnflow.tasks.sources.model_sizes", "trnflow.tasks.sources.model_source", "trnflow.tasks.sources.other_tokenizer",
        "trnflow.tasks.sources.paths",
        "trnflow.tasks.sources.remote_errors", "trnflow.tasks.sources.resolver",
        "trnflow.tasks.sources.sentence_files", "trnflow.tasks.sources.weight_files",
        "trnflow.tasks.system.disk", "trnflow.tasks.system.json_objects", "trnflow.tasks.system.private_files",
        "trnflow.tasks.system.redaction",
        "trnflow.tasks.system.terminal", "trnflow.tasks.system.threads",
    }
)  # fmt: skip

# Distributions that move or check bytes and can't change a result: in no key.
TRANSPORT = frozenset({"pydantic", "typing-extensions", "fsspec", "huggingface-hub", "rich", "s3fs", "aiohttp"})

# {distribution: others that do part of its work}. transformers needs none: a stage that tokenizes imports tokenizers
# itself, and safetensors returns the same bits in every version.
FRIENDS = {"datasets": ("pyarrow",)}

# Kind of closures in the hash cache. Rename it when what is found changes.
CLOSURE = "closure with own code"


class Closure(NamedTuple):
    """The code that a module may run.

    Attributes:
        code: {module: `sha256:<hex>`, or `schema:<number>`}.
        env: {distribution: version, "python": such as `3.12`}.
    """

    code: dict[str, str]
    env: dict[str, str]


class ClosureFiles(TypedDict):
    """A closure before versions are looked up. files: by module; stamps: {path: stamp} of all that the rest depends on."""

    code: dict[str, str]
    files: dict[str, str]
    distributions: list[str]
    stamps: dict[str, Stamp | None]


def closure(
    module: str, memo: Memo, stamp_of: Callable[[str], Stamp] = stamp, search: tuple[str, ...] | None = None
) -> Closure:
    """Return the tables code and env of a key document for code in `module`.

    memo: what was read of modules before. stamp_of: returns a path's stamp; keys that are made together may look at each file
    once. search: folders to look in before `sys.path`; None for a module that is imported. Raises CodeError when the module has
    no file.
    """
    known = _closure(module, memo, stamp_of, search)
    versions = installed_versions({*known["distributions"]}, memo)
    installed = {name: version for name, version in sorted(versions.items()) if version is not None}
    return Closure(known["code"], {"python": f"{sys.version_info.major}.{sys.version_info.minor}", **installed})


def closure_files(module: str, memo: Memo, search: tuple[str, ...] | None = None) -> dict[str, str]:
    """Return {module: file} of the modules in a `closure`."""
    return dict(_closure(module, memo, stamp, search)["files"])


def _closure(module: str, memo: Memo, stamp_of: Callable[[str], Stamp], search: tuple[str, ...] | None) -> ClosureFiles:
    if search is None:
        search = (str(project_folder(module.split(".")[0])),)
    # the hash cache keeps the whole closure as long as each of its files and of the folders looked in has its stamp
    where = f"{module} in {' and '.join((*search, str(project_folder('trnflow')), *import_path()))}"
    known: ClosureFiles | None = memo.get("closure", where, CLOSURE)
    if known is None or any(stamp_or_none(path, stamp_of) != then for path, then in known["stamps"].items()):
        known = _find_closure(module, ModuleFinder(search), memo)
        memo.put("closure", where, CLOSURE, known)
    return known


def _find_closure(module: str, finder: ModuleFinder, memo: Memo) -> ClosureFiles:
    code: dict[str, str] = {}
    files: dict[str, str] = {}
    distributions: set[str] = set()
    stamps: dict[str, Stamp | None] = {__file__: stamp(__file__)}  # which modules are PLUMBING
    seen, pending = {(module, False)}, [(module, False)]
    while pending:
        name, is_own_import = pending.pop()
        found = finder.find(name)
        if found is None or found.file is None or found.home == "standard":
            continue
        if found.home == "installed" and (owners := {*distributions_of(found.file, memo)}):
            distributions |= owners if is_own_import else owners - TRANSPORT
            pending.extend((parent, is_own_import) for parent in _parents(name))  # of another distribution, perhaps
            continue
        # before each look: what changes meanwhile has another stamp later
        stamps[found.file], files[name] = stamp(found.file), found.file
        if name in PLUMBING:
            code[name] = f"schema:{getattr(import_module(name), 'SCHEMA', 1)}"
            continue
        analysed = analyse(found.file, memo)
        code[name] = analysed["hash"]
        imports = [*_parents(name), *_absolute(analysed["imports"], name if found.folders else name.rpartition(".")[0])]
        modules = [(other, found.home != "trnflow") for other in imports]
        pending.extend(entry for entry in reversed(modules) if entry not in seen)
        seen.update(modules)
    if module not in code:  # a key without the stage's own code would pass in silence
        raise CodeError(
            f"the code of {module} is not in its key: {finder.path[0]} has no file of this module",
            "move the stage into a file of its package, and import it from there",
        )
    return {
        "code": dict(sorted(code.items())),
        "files": files,
        "distributions": sorted(distributions.union(*(FRIENDS.get(name, ()) for name in distributions)) - {"trnflow"}),
        "stamps": {**finder.consulted, **stamps},
    }


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _absolute(imports: list[str], package: str) -> Iterator[str]:
    """Yield the names that imports of a module in `package` mean."""
    for name in imports:
        with contextlib.suppress(ImportError):  # above the top-level package: the import would fail, too
            yield resolve_name(name, package) if name.startswith(".") else name
