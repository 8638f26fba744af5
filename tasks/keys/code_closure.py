"""The table `code` of key documents: a hash of each module in a stage's closure, or its SCHEMA number (PLUMBING).

A hash leaves out docstrings, comments, layout and the texts of `raise`. Third-party distributions count by version.
Costs about 1 ms a stage with a warm hash cache.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.hash_cache import Memo, Stamp, stamp

# Python 3.11 counts the depth of a syntax tree for all threads together: parsing may fail while another thread parses.
ATTEMPTS = 5

# Modules of every stage: an upgrade of this project must not make all results obsolete. Each has a SCHEMA number; raise
# it when a change of the module changes results.
PLUMBING = frozenset(
    {
        "trnflow", "trnflow.tasks", "trnflow.tasks.artifact",
        "trnflow.tasks.config", "trnflow.tasks.errors", "trnflow.tasks.stage",
        "trnflow.tasks.keys", "trnflow.tasks.keys.canonical_json", "trnflow.tasks.keys.code_closure",
        "trnflow.tasks.keys.hash_cache", "trnflow.tasks.keys.key_document",
        "trnflow.tasks.sources", "trnflow.tasks.system",
        "trnflow.tasks.sources.download_cache", "trnflow.tasks.sources.hub_errors",
        "trnflow.tasks.sources.model_source", "trnflow.tasks.sources.paths",
        "trnflow.tasks.sources.remote_errors", "trnflow.tasks.sources.resolver",
        "trnflow.tasks.system.private_files", "trnflow.tasks.system.redaction", "trnflow.tasks.system.threads",
    }
)  # fmt: skip

# Distributions that move or check bytes and can't change a result: in no key.
TRANSPORT = frozenset({"pydantic", "typing-extensions", "fsspec", "huggingface-hub", "rich", "s3fs"})

DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "torch_xla": "torch-xla",
    "huggingface_hub": "huggingface-hub",
}
"""{package that is imported: distribution of another name}"""

# {distribution: others that do part of its work}. transformers needs none: a stage that tokenizes imports tokenizers
# itself, and safetensors returns the same bits in every version.
FRIENDS = {"datasets": ("pyarrow",)}

# Kind of `analyse`'s values in the hash cache. Rename it when `code_hash` changes: an unchanged file would keep its old
# hash.
ANALYSIS = "code without raised texts"

# Strings in these expressions of a `raise` count: they decide what is formatted in, and are no text.
FORMATTED = (ast.FormattedValue, ast.Subscript, ast.Compare)

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""The fields of a statement that hold statements."""


def project_folder(package: str) -> Path:
    """Import a top-level package and return the folder that contains it: a checkout or site-packages."""
    # Links are not resolved: a package may hold links to its folders, and modules have the names below it.
    return Path(next(iter(import_module(package).__path__))).parent


def closure(module: str, memo: Memo, stamp_of: Callable[[str], Stamp] = stamp) -> tuple[dict[str, str], dict[str, str]]:
    """Return the tables (code, env) of the key document of a stage in `module`.

    stamp_of: returns a path's stamp; keys that are made together may look at each file once.
    code: {module: `sha256:<hex>`, or `schema:<number>`}; env: {distribution: version, "python": such as `3.12`}.
    Raises CodeError when the stage's module has no file.
    """
    folders = {root: project_folder(root) for root in (module.split(".")[0], "trnflow")}
    # the hash cache keeps the whole closure as long as each of its files and of their folders has its stamp
    where = f"{module} in {' and '.join(map(str, folders.values()))}"
    known = memo.get("closure", where, ANALYSIS)
    if known is None or not _are_unchanged(known["stamps"], stamp_of):
        code, foreign, stamps = _find_closure(module, memo)
        known = {"code": code, "foreign": sorted(foreign), "stamps": stamps}
        memo.put("closure", where, ANALYSIS, known)
    return known["code"], _environment(set(known["foreign"]), memo)


def _are_unchanged(stamps: dict[str, Stamp], stamp_of: Callable[[str], Stamp]) -> bool:
    try:
        return all(stamp_of(path) == then for path, then in stamps.items())
    except OSError:
        return False


def _find_closure(module: str, memo: Memo) -> tuple[dict[str, str], set[str], dict[str, Stamp]]:
    """Return the table code, the packages that are imported, and {path: stamp} of all that both depend on: files, and the
    folders in which names were looked up."""
    top = module.split(".")[0]
    locate = locator({top, "trnflow"})
    code: dict[str, str] = {}
    foreign: set[str] = set()
    stamps = {__file__: stamp(__file__)}  # which modules are PLUMBING
    seen = {module}
    pending = [module]
    while pending:
        name = pending.pop()
        # before each look: what changes meanwhile has another stamp later
        stamps.update((folder, stamp(folder)) for folder in _folders_of(name, top) if folder not in stamps)
        path = locate(name)
        if path is None:
            continue
        stamps[path] = stamp(path)
        if name in PLUMBING:
            code[name] = f"schema:{getattr(import_module(name), 'SCHEMA', 1)}"
            continue
        analysed = analyse(path, memo)
        code[name] = analysed["hash"]
        foreign.update(analysed["foreign"])
        modules = [*_parents(name), *analysed["imports"]]
        # `a` is located before `a.b`: if it is a file, `a.b` is no module, and the disk is not asked
        pending.extend(other for other in reversed(modules) if other not in seen)
        seen.update(modules)
    if module not in code:  # a key without the stage's own code would pass in silence
        raise CodeError(
            f"the code of {module} is not in its key: {project_folder(top)} has no file of this module",
            "move the stage into a file of its package, and import it from there",
        )
    return dict(sorted(code.items())), foreign, stamps


def _folders_of(name: str, top: str) -> Iterator[str]:
    """Yield the folders whose entries decide which file a name is."""
    root, *rest = name.split(".")
    path = f"{project_folder(root)}/{root}" if root in (top, "trnflow") else ""
    while os.path.isdir(path):
        yield path
        if not rest:
            return
        path = f"{path}/{rest.pop(0)}"


def locator(roots: set[str]) -> Callable[[str], str | None]:
    """Return a function from a dotted name to the module's file, or None if it is no module of the packages `roots`."""
    folders = {root: f"{project_folder(root)}/{root}" for root in roots}
    plain: dict[str, str] = {}

    def locate(name: str) -> str | None:
        # looked up on disk, not imported
        root, _, rest = name.partition(".")
        if root not in folders or name.rpartition(".")[0] in plain:
            return None  # foreign, or a name inside a file: `from trnflow.tasks.errors import DataError`
        base = f"{folders[root]}/{rest.replace('.', '/')}" if rest else folders[root]
        if os.path.isfile(f"{base}/__init__.py"):  # first, as Python does where there is a file of the same name, too
            return f"{base}/__init__.py"
        return plain.setdefault(name, f"{base}.py") if rest and os.path.isfile(f"{base}.py") else None

    return locate


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def analyse(path: str, memo: Memo) -> Meta:
    """Return {"hash", "imports": names that may be modules, "foreign": third-party packages} of a Python file."""
    now = stamp(path)
    known = memo.get(ANALYSIS, path, now)
    if known is None:
        tree = _parsed(Path(path))
        imports = sorted(set(_imports(tree)))
        known = {
            "hash": code_hash(tree),
            "imports": imports,
            "foreign": sorted({name.split(".")[0] for name in imports} - sys.stdlib_module_names),
        }
        memo.put(ANALYSIS, path, now, known)
    return dict(known)


def hash_file(path: Path) -> str:
    """Return the `code_hash` of a Python file, which is always read."""
    return code_hash(_parsed(path))


def _parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    text = path.read_text(encoding="utf-8")
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(SystemError):
            return ast.parse(text, str(path))
    return ast.parse(text, str(path))


def code_hash(tree: ast.Module) -> str:
    """Return `sha256:<hex>` of a module without docstrings, texts of `raise` and TYPE_CHECKING. Changes `tree`."""
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            # a string as a statement has no effect: a docstring, or the text below a constant
            kept = [line for line in node.body if not _is_text(line) and not _is_type_checking(line)]
            node.body = kept or [ast.Pass()]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            _drop_texts(node.exc)
    return f"sha256:{hashlib.sha256(ast.dump(tree).encode()).hexdigest()}"


def _statements(tree: ast.Module, leave_out: Callable[[ast.AST], bool] = lambda node: False) -> Iterator[ast.AST]:
    """Yield the module and all statements in it, but those that `leave_out` names and what is in them."""
    # expressions, most of a tree, are not looked at: half the time for the same hashes
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if not leave_out(node):
            yield node
            for block in BLOCKS:
                pending.extend(getattr(node, block, ()))


def _drop_texts(expression: ast.AST) -> None:
    """Remove the string constants of an expression, but those of FORMATTED."""
    for name, value in ast.iter_fields(expression):
        if isinstance(value, list):
            value[:] = [entry for entry in value if not _is_string(entry)]
        elif _is_string(value):
            setattr(expression, name, None)
    for below in ast.iter_child_nodes(expression):
        if not isinstance(below, FORMATTED):
            _drop_texts(below)


def _is_string(node: object) -> bool:
    if isinstance(node, ast.JoinedStr):  # an f-string that formats nothing in
        return all(_is_string(part) for part in node.values)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is_string(node.value)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield each name that an import statement may load."""
    for node in _statements(tree, leave_out=_is_type_checking):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            # `from a import b` may load the module a.b
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _environment(foreign: set[str], memo: Memo) -> dict[str, str]:
    names = {DISTRIBUTIONS.get(name, name) for name in foreign}
    names.update(friend for name in list(names) for friend in FRIENDS.get(name, ()))
    versions = installed_versions(names - TRANSPORT - {"trnflow"}, memo)
    installed = {name: version for name, version in sorted(versions.items()) if version is not None}
    return {"python": f"{sys.version_info.major}.{sys.version_info.minor}", **installed}


def installed_versions(names: set[str], memo: Memo) -> dict[str, str | None]:
    """Return {distribution: version, or None if not installed}."""
    folders = [folder for folder in sys.path if os.path.isdir(folder) and "packages" in folder]
    now = digest_of([stamp(folder) for folder in folders])
    where = "|".join(folders)
    known: dict[str, str | None] = memo.get("versions", where, now) or {}
    missing = names - known.keys()
    if missing:
        # takes 50 ms, so the hash cache keeps versions until a packages folder changes
        from importlib.metadata import PackageNotFoundError, version

        for name in missing:
            try:
                known[name] = version(name)
            except PackageNotFoundError:
                known[name] = None
        memo.put("versions", where, now, known)
    return {name: known[name] for name in names}
