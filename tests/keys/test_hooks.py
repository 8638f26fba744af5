"""Hooks are checked by reading a user's files, and their code is in the key of the stage that calls it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import pytest

from trnflow.flows.recipes.files import RecipeTree
from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.config import NOT_KEYED, Hook, StageConfig, hooks_in
from trnflow.tasks.documents import KeyDocument
from trnflow.tasks.errors import CodeError, ConfigError, DataError
from trnflow.tasks.keys.allowed_files import permit_for
from trnflow.tasks.keys.explain import difference
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import check_hook, code_source
from trnflow.tasks.keys.key_document import key_document
from trnflow.tasks.keys.own_functions import own_errors
from trnflow.tasks.stage import Workdir, stage, stage_of

FORMATS = """from functools import partial
from pathlib import Path
from mine_of_hooks.helper import deep as far
Path(__file__).with_name("ran").touch()
def ticket(row): return far(row)
def two(row, more): return ""
def needs(row, *, more): return ""
def defaults(row, more=1, *, other=2): return ""
short = lambda row: ""
bound = partial(two, more=1)
class Maker: ...
async def later(row): ...
def outer():
    def inner(row): return ""
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "mine_of_hooks"
    folder.mkdir()
    (tmp_path / "conf").mkdir()
    (folder / "formats.py").write_text(FORMATS)
    (folder / "helper.py").write_text("import mine_of_hooks.low\ndef deep(row):\n    return row['subject']\n")
    (folder / "low.py").write_text("LOW = 1\n")
    (folder / "broken.py").write_text("A = 1\ndef x(:\n")
    return tmp_path


@pytest.mark.parametrize(
    ("named", "message", "fix"),
    [
        ("formats:two", "formats.py:6: two(row, more) can't be called as two(row: dict)", "let it take 1 argument"),
        ("formats:needs", "needs(row, *, more) can't be called", "defaults for all others"),
        ("formats:short", "formats.py:9: short is a lambda", "write `def short(...)` at the top of formats.py"),
        ("formats:bound", "is what partial(...) returns", "write `def bound(...)`"),
        ("formats:Maker", "is a class", "write `def"),
        ("formats:later", "is an async function", "write `def"),
        ("formats:inner", "formats.py:14: inner is inside a function", "move it to the top of formats.py"),
        (
            "formats:far",
            "is imported there from mine_of_hooks.helper",
            "name it where it is: mine_of_hooks.helper:deep",
        ),
        ("formats:tiket", "has no function tiket (it has ticket, ", "did you mean mine_of_hooks.formats:ticket?"),
        ("broken:x", "broken.py:2 is no Python: invalid syntax", "correct that line"),
        ("nowhere:x", "there is no module mine_of_hooks.nowhere in", "beside the recipe"),
    ],
)
def test_what_a_hook_can_not_call_is_refused_with_the_way_out(
    project: Path, named: str, message: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_hook("format.make", f"mine_of_hooks.{named}", project / "conf")
    assert caught.value.message.startswith("format.make: ") and message in caught.value.message
    assert fix in caught.value.fix
    assert not (project / "mine_of_hooks/ran").exists()


@pytest.mark.parametrize("named", ["json:loads", "os.path:join", "yaml:load", "trnflow.tasks.config:marked"])
def test_a_hook_is_never_a_function_of_another(project: Path, named: str) -> None:
    with pytest.raises(ConfigError, match="a hook is a function of your own"):
        check_hook("format.make", named, project)


def test_modules_are_found_beside_the_recipe_then_above_it_up_to_the_project(project: Path) -> None:
    check_hook("format.make", "mine_of_hooks.formats:ticket", project / "conf")
    check_hook("format.make", "mine_of_hooks.formats:defaults", project)
    deep = project / "conf/teams/a"
    deep.mkdir(parents=True)
    with pytest.raises(ConfigError, match="there is no module"):
        check_hook("format.make", "mine_of_hooks.formats:ticket", deep)
    (project / "pyproject.toml").touch()
    check_hook("format.make", "mine_of_hooks.formats:ticket", deep)
    (deep / "mine_of_hooks").mkdir()
    (deep / "mine_of_hooks/formats.py").write_text("def other(row): ...\n")
    with pytest.raises(ConfigError, match="has no function ticket"):  # the nearest counts
        check_hook("format.make", "mine_of_hooks.formats:ticket", deep)


class Inner(StageConfig):
    call: Annotated[Hook | None, NOT_KEYED] = None


class Config(StageConfig):
    make: Annotated[Hook | None, NOT_KEYED] = None
    each: Annotated[dict[str, Hook], NOT_KEYED] = {}
    several: Annotated[tuple[Inner, ...], NOT_KEYED] = ()
    limit: int = 1


class Root(StageConfig):
    format: Config = Config()


def test_hooks_are_found_in_tables_and_lists_and_no_override_sets_one() -> None:
    root = Root(format=Config(make="a:b", each={"x": "a:c"}, several=(Inner(), Inner(call="a:d"))))
    assert dict(hooks_in(root)) == {
        ("format", "make"): "a:b", ("format", "each", "x"): "a:c", ("format", "several", "1", "call"): "a:d",
    }  # fmt: skip
    tree = RecipeTree(Root, "mine", {"format": {"make": "a:b"}}, {})
    assert tree.with_overrides(["format.limit=2"]).tree["format"] == {"make": "a:b", "limit": 2}
    for override in (
        "format.make=os:system", "format={make: 'os:system'}", "format.each.x=a:b", "format.each={x: 'a:b'}",
        "format.several=[{call: 'a:b'}]", "format.several.0.call=a:b", "format.make=null",
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="it names a function to run, and stands in recipe files alone"):
            tree.with_overrides([override])


@stage(kind="texts")
def calls(config: Config, out: Workdir, code: Source | None = None) -> Meta:
    return {}


def test_the_code_of_a_hook_is_in_the_key_and_in_the_permit_of_the_stage_that_calls_it(project: Path) -> None:
    memo, described = Memo(project / "memo.db"), stage_of(calls)
    hooks = {"format.make": ("mine_of_hooks.formats:ticket", project / "conf")}

    def document() -> Meta:
        return key_document(described, Config(make="x:y"), {"code": code_source(hooks, project, memo)}, memo)

    before = document()
    assert before["inputs"] == {} and before["params"] == {"limit": 1}
    assert before["code"]["format.make"] == "mine_of_hooks.formats:ticket"
    low = project / "mine_of_hooks/low.py"
    permit = permit_for(described, before["code"], [code_source(hooks, project, memo)], [], memo)
    assert permit.refused(str(low)) is None and permit.refused(str(project / "conf")) is None
    (project / "mine_of_hooks/unknown.py").touch()
    assert permit.refused(str(project / "mine_of_hooks/unknown.py"))
    low.write_text("LOW = 1  # a comment\n")
    assert document() == before
    low.write_text("LOW = 2\n")
    assert [str(change) for change in difference(before, document())] == ["code of mine_of_hooks.low changed"]
    with pytest.raises(CodeError, match="was edited while this run was going"):
        permit_for(described, before["code"], [code_source(hooks, project, memo)], [], memo)
    low.write_text("LOW = 1\n")
    hooks["format.make"] = ("mine_of_hooks.formats:defaults", project / "conf")
    assert [str(change) for change in difference(before, document())] == [
        "format.make: mine_of_hooks.formats:ticket -> mine_of_hooks.formats:defaults"
    ]
    given = code_source(hooks, project, memo)
    low.unlink()
    with pytest.raises(CodeError, match="was edited"):
        permit_for(described, document()["code"] | before["code"], [given], [], memo)


@stage(kind="rows", role="rows")
def loads(config: Config, out: Workdir, code: Source | None = None) -> Meta:
    return {}


def test_the_kernel_holds_own_code_but_what_makes_rows(project: Path) -> None:
    """`data.make` reads what it likes: `data.version` tells its state."""
    memo, held = Memo(project / "memo.db"), list[bool]()
    for function, setting in ((calls, "format.make"), (loads, "data.make")):
        given = code_source({setting: ("mine_of_hooks.formats:ticket", project / "conf")}, project, memo)
        code = key_document(stage_of(function), Config(make="x:y"), {"code": given}, memo)["code"]
        held.append(permit_for(stage_of(function), code, [given], [], memo).held)
    assert held == [True, False]


def test_the_libraries_of_own_code_and_the_files_that_it_names_are_in_the_key(project: Path) -> None:
    memo, described, rates = Memo(project / "memo.db"), stage_of(calls), project / "rates.csv"
    rates.write_text("a,1\n")
    (project / "mine_of_hooks/low.py").write_text("import numpy\nLOW = open('rates.csv')\n")
    files = {"conf/rates.csv": rates, "conf/other.csv": rates}

    def document() -> KeyDocument:
        hooks = {"format.make": ("mine_of_hooks.formats:ticket", project / "conf")}
        return key_document(described, Config(), {"code": code_source(hooks, project, memo, files=files)}, memo)

    before = document()
    assert before["env"]["numpy"] == version("numpy")
    assert [name for name in before["code"] if name.startswith("own.files: ")] == ["own.files: conf/rates.csv"]
    rates.write_text("a,2\n")
    assert [str(change) for change in difference(before, document())] == ["code of own.files: conf/rates.csv changed"]


def test_own_code_may_run_beside_the_cache_of_compiled_kernels(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch names it to all processes that one which has compiled something starts."""
    cache = tmp_path_factory.mktemp("inductor")
    (cache / "lock").touch()
    memo, described = Memo(project / "memo.db"), stage_of(calls)
    given = code_source({"format.make": ("mine_of_hooks.formats:ticket", project / "conf")}, project, memo)
    code = key_document(described, Config(make="x:y"), {"code": given}, memo)["code"]
    assert permit_for(described, code, [given], [], memo).refused(str(cache / "lock"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    assert permit_for(described, code, [given], [], memo).refused(str(cache / "lock")) is None


def test_an_error_shows_the_users_own_line(project: Path) -> None:
    program = f"""
from pathlib import Path
from trnflow.tasks.errors import DataError
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import code_source
from trnflow.tasks.keys.own_functions import function_of, own_errors
code = code_source({{"format.make": ("mine_of_hooks.formats:ticket", Path({str(project)!r}))}}, Path("."), Memo(Path("memo.db")))
make = function_of(code, "format.make")
assert make({{"subject": "x"}}) == "x"
try:
    with own_errors(code, "at train row 17", "correct it"):
        make({{}})
except DataError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True)
    assert done.stdout == (
        "mine_of_hooks/helper.py:3 in deep: KeyError 'subject' at train row 17: `return row['subject']`. Fix: correct it\n"
    ), done.stderr


def test_a_module_of_the_same_name_that_is_loaded_already_is_not_taken_for_the_user_s(project: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from types import ModuleType
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import code_source
from trnflow.tasks.keys.own_functions import function_of
code = code_source({{"format.make": ("mine_of_hooks.formats:ticket", Path({str(project)!r}))}}, Path("."), Memo(Path("memo.db")))
function_of(code, "format.make")
sys.modules["mine_of_hooks.low"] = ModuleType("mine_of_hooks.low")
sys.modules["mine_of_hooks.low"].__file__ = "/elsewhere/low.py"
try:
    function_of(code, "format.make")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True)
    assert "CodeError format.make: mine_of_hooks.low is /elsewhere/low.py in this process, not " in done.stdout, (
        done.stderr
    )


def test_a_function_that_ends_its_process_is_named() -> None:
    code = Source("code", {}, {"files": {}, "functions": {"format.make": "mine:leaves"}, "search": []})
    told = pytest.raises(DataError, match="mine:leaves: SystemExit 0 at train row 1")
    with told, own_errors(code, "at train row 1", "correct it"):
        sys.exit(0)
