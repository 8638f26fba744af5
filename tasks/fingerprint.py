"""What a stage key is made of: canonical JSON of values, and the hash of the code that turns inputs into outputs.

The *key document* is typed canonical JSON, kept in the record; the key is its sha256, so explaining a miss is a diff of
two documents. Code counts as the transitive closure of first-party imports, per module, as AST without docstrings,
comments and positions. Plumbing modules carry a schema number instead, so that an upgrade does not retrain the world.
Costs about 1 ms a stage once memoised.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tasks.artifact import Json, Meta
from tasks.config import StageConfig
from tasks.errors import ConfigError
from tasks.memo import Memo, stamp
from tasks.stage import Keyed, Stage

SCHEMA = 1

PLUMBING = frozenset(
    {
        "tasks", "tasks.artifact", "tasks.config", "tasks.errors", "tasks.fingerprint", "tasks.memo",
        "tasks.hub", "tasks.model_source", "tasks.resolve", "tasks.stage",
    }
)  # fmt: skip
"""Modules whose code is not hashed: each states its meaning in a SCHEMA number that is bumped when results change."""

TRANSPORT = frozenset({"pydantic", "typing-extensions", "fsspec", "huggingface-hub", "rich", "s3fs"})
"""Distributions that carry or check, but can't change the bytes of a result."""

DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "torch_xla": "torch-xla",
    "huggingface_hub": "huggingface-hub",
}
"""Import names whose distribution is called otherwise."""

FRIENDS = {"datasets": ("pyarrow",)}
"""Distributions that do part of another's work. transformers' own are none: who tokenizes imports tokenizers itself, and
safetensors reads tensors to the bit."""


def canonical(value: Json) -> str:
    """Canonical JSON: sorted keys, no spaces; 1, 1.0, "1" and true differ; any depth. TypeError for all that is not JSON."""
    parts: list[str] = []
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, _Raw):
            parts.append(item.text)
        elif (text := _flat(item)) is not None:
            parts.append(text)
        elif isinstance(item, dict):
            pending.extend(reversed(list(_dict_parts(item))))
        elif isinstance(item, list | tuple):
            pending.extend(reversed(list(_list_parts(item))))
        else:
            parts.append(_scalar(item))
    return "".join(parts)


_TEXT = frozenset((str,))
_PLAIN = frozenset((str, int, bool, float, type(None)))
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def _flat(item: Json) -> str | None:
    """The JSON of a table or list of plain values, at C's speed; None for all else."""
    if isinstance(item, dict):
        is_flat = _TEXT.issuperset(map(type, item)) and _PLAIN.issuperset(map(type, item.values()))
    else:
        is_flat = isinstance(item, list | tuple) and _PLAIN.issuperset(map(type, item))
    with contextlib.suppress(ValueError):  # not finite: said below, where it stands
        return _encode(item) if is_flat else None
    return None


class _Raw:
    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _dict_parts(value: dict[Any, Json]) -> Iterator[Json]:
    for key in value:
        if type(key) is not str:
            raise TypeError(f"a key document can't hold the key {key!r} of type {type(key).__name__}: only strings")
    yield _Raw("{")
    for index, key in enumerate(sorted(value)):
        yield _Raw(("," if index else "") + json.dumps(key) + ":")
        yield value[key]
    yield _Raw("}")


def _list_parts(value: list[Json] | tuple[Json, ...]) -> Iterator[Json]:
    yield _Raw("[")
    for index, item in enumerate(value):
        if index:
            yield _Raw(",")
        yield item
    yield _Raw("]")


def _scalar(value: Json) -> str:
    if type(value) in (str, bool, int, type(None)):
        return json.dumps(value)
    if type(value) is float:
        if not math.isfinite(value):
            raise TypeError(f"a key document can't hold {value}: numbers must be finite")
        return repr(value)
    raise TypeError(f"a key document can't hold a value of type {type(value).__name__}: {value!r}")


def digest_of(value: Json) -> str:
    """`sha256:<hex>` of the canonical JSON of `value`."""
    return f"sha256:{hashlib.sha256(canonical(value).encode()).hexdigest()}"


def key_document(stage: Stage, config: StageConfig, inputs: Keyed, memo: Memo) -> Meta:
    """The typed document whose digest is the stage's key for this config and these inputs."""
    code, env = closure(stage.function.__module__, memo)
    return {
        "schema": SCHEMA,
        "stage": stage.name,
        "code": code | _assets(stage, memo),
        "params": stage.params(config),
        "inputs": stage.inputs(config, inputs),
        "env": env,
        "accel": _accel(stage, config, memo),
    }


def key_of(document: Meta) -> str:
    """The stage key, 64 hexadecimal digits."""
    return digest_of(document).removeprefix("sha256:")


def code_of(stage: Stage, memo: Memo) -> dict[str, str]:
    """What the key says of code: {module: hash or schema}, and {path: digest} of the declared assets. ConfigError without one."""
    return closure(stage.function.__module__, memo)[0] | _assets(stage, memo)


def _assets(stage: Stage, memo: Memo) -> dict[str, str]:
    found = {}
    folder = project_folder(stage.function.__module__.split(".")[0])
    for asset in stage.assets:
        if not (folder / asset).is_file():
            raise ConfigError(
                f"{stage.name} declares the asset {asset}, and {folder} has no such file", "mend its @stage"
            )
        found[asset] = memo.digest(folder / asset)
    return found


def _accel(stage: Stage, config: StageConfig, memo: Memo) -> Meta:
    accel = stage.accel(config)
    if isinstance(accel.get("versions"), list):
        accel["versions"] = _versions(set(accel["versions"]), memo)
    return accel


def project_folder(package: str) -> Path:
    """The folder that holds a top-level package: that of a checkout, or site-packages."""
    return Path(next(iter(import_module(package).__path__))).parent


def closure(module: str, memo: Memo) -> tuple[dict[str, str], dict[str, str]]:
    """({first-party module: code hash or schema}, {distribution: version}) of all that `module` imports, at any depth."""
    top = module.split(".")[0]
    locate = locator({top, "tasks"})
    code: dict[str, str] = {}
    foreign: set[str] = set()
    seen: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        path = locate(name) if name not in seen else None
        seen.add(name)
        if path is None:
            continue
        if name in PLUMBING:
            code[name] = f"schema:{_schema(name)}"
            continue
        analysed = analyse(path, memo)
        code[name] = analysed["hash"]
        foreign.update(analysed["foreign"])
        pending.extend(analysed["imports"])
        pending.extend(_parents(name))
    return dict(sorted(code.items())), _environment(foreign, memo)


def locator(roots: set[str]) -> Callable[[str], Path | None]:
    folders = {root: f"{project_folder(root)}/{root}" for root in roots}

    def locate(name: str) -> Path | None:
        """The file of a first-party module, or None: found on disk, nothing is imported."""
        root, _, rest = name.partition(".")
        if root not in folders:
            return None
        base = "/".join((folders[root], *rest.split("."))) if rest else folders[root]
        for path in (f"{base}.py", f"{base}/__init__.py") if rest else (f"{base}/__init__.py",):
            if os.path.isfile(path):
                return Path(path)
        return None

    return locate


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _schema(name: str) -> int:
    return int(getattr(import_module(name), "SCHEMA", 1))


def analyse(path: Path, memo: Memo) -> Meta:
    """{"hash", "imports" (dotted names that may be modules), "foreign" (top-level names)} of one file."""
    now = stamp(path)
    known = memo.get("code", path, now)
    if known is None:
        tree = _parsed(path)
        imports = sorted(set(_imports(tree)))
        known = {
            "hash": code_hash(tree),
            "imports": imports,
            "foreign": sorted({name.split(".")[0] for name in imports} - sys.stdlib_module_names),
        }
        memo.put("code", path, now, known)
    return dict(known)


def hash_file(path: Path) -> str:
    """`code_hash` of a file as it is now."""
    return code_hash(_parsed(path))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def code_hash(tree: ast.Module) -> str:
    """`sha256:<hex>` of the code itself: docstrings, comments, positions and type-checking imports do not count."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            # a bare string is no statement with an effect, at the top (a docstring) or below a constant
            kept = [line for line in node.body if not _is_text(line) and not _is_type_checking(line)]
            node.body = kept or [ast.Pass()]
    return f"sha256:{hashlib.sha256(ast.dump(tree).encode()).hexdigest()}"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imports(node: ast.AST) -> Iterator[str]:
    """Every dotted name an import statement may load, wherever it stands; `from a import b` may mean the module a.b."""
    if _is_type_checking(node):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def _environment(foreign: set[str], memo: Memo) -> dict[str, str]:
    names = {DISTRIBUTIONS.get(name, name) for name in foreign}
    names.update(friend for name in list(names) for friend in FRIENDS.get(name, ()))
    versions = _versions(names - TRANSPORT - {"tasks", "flows"}, memo)
    found = {name: version for name, version in sorted(versions.items()) if version is not None}
    return {"python": f"{sys.version_info.major}.{sys.version_info.minor}", **found}


def _versions(names: set[str], memo: Memo) -> dict[str, str | None]:
    """Installed versions; remembered until a folder on sys.path changes, for importlib.metadata costs 50 ms to import."""
    folders = [folder for folder in sys.path if os.path.isdir(folder) and "packages" in folder]
    now = digest_of([stamp(folder) for folder in folders])
    where = "|".join(folders)
    known: dict[str, str | None] = memo.get("versions", where, now) or {}
    missing = names - known.keys()
    if missing:
        from importlib.metadata import PackageNotFoundError, version

        for name in missing:
            try:
                known[name] = version(name)
            except PackageNotFoundError:
                known[name] = None
        memo.put("versions", where, now, known)
    return {name: known[name] for name in names}
