"""Edits around own code, each with what must follow: `run` (the key moves) or `hit` (the key stays).

Every edit is judged twice: with the hash cache of before, which must not be believed, and without one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.code_closure import Closure, closure
from trnflow.tasks.keys.hash_cache import Memo

FILES = {
    "work/mine/__init__.py": '"""The package."""\n',
    "work/mine/formats.py": '''"""Say briefly what is asked."""
import json
from typing import TYPE_CHECKING
import by_hand
import single
import source
import mine.built
import mine.helper as helper
from mine.constants import LIMIT
from . import near
from .deep import inner
from ..mine import near as again
from beside.tool import clean
from plain.module import VALUE
from editable import made
from library import words
from spaces.first import one

if TYPE_CHECKING:
    from mine import typing_only
else:
    from mine import not_typing

try:
    import fast
except ImportError:
    fast = None

SETTINGS = {"a": 1}

def ticket(row):
    """Return the prompt."""
    from mine import late
    # the subject first
    return row["subject"] + __doc__ + helper.help()
''',
    "work/mine/helper.py": "from mine import below\n\ndef help():\n    return below.text()\n",
    "work/mine/below.py": "import mine.lowest\n\ndef text():\n    return mine.lowest.TEXT\n",
    "work/mine/lowest.py": "TEXT = 'a'\n",
    "work/mine/constants.py": "LIMIT = 3\n",
    "work/mine/near.py": "NEAR = 1\n",
    "work/mine/late.py": "LATE = 1\n",
    "work/mine/typing_only.py": "A = 1\n",
    "work/mine/not_typing.py": "A = 1\n",
    "work/mine/unrelated.py": "A = 1\n",
    "work/mine/deep/__init__.py": "from .. import up\n",
    "work/mine/deep/inner.py": "from . import innermost\n",
    "work/mine/deep/innermost.py": "A = 1\n",
    "work/mine/up.py": "A = 1\n",
    "work/mine/latin.py": "A = 1\n",
    f"work/mine/built{EXTENSION_SUFFIXES[0]}": "binary 1",
    "work/single.py": "def once():\n    return 1\n",
    "work/beside/__init__.py": "",
    "work/beside/tool.py": "from beside import other\n\ndef clean(text):\n    return text\n",
    "work/beside/other.py": "A = 1\n",
    "work/plain/module.py": "VALUE = 1\n",
    "work/prices.csv": "a,b\n",
    "work/library/notes.txt": "a folder that is no package\n",
    "elsewhere/src/editable/__init__.py": "from editable.part import made\n",
    "elsewhere/src/editable/part.py": "made = 1\n",
    "later/fast.py": "A = 1\n",
    "later/shadowed.py": "A = 1\n",
    "env/site-packages/library/__init__.py": "words = 1\n",
    "env/site-packages/library/part.py": "words = 1\n",
    "env/site-packages/library-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: Library\nVersion: 1.0\n",
    "env/site-packages/library-1.0.dist-info/RECORD": "library/__init__.py,,\nlibrary/part.py,,\n",
    "env/site-packages/spaces/first/__init__.py": "one = 1\n",
    "env/site-packages/space_one-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: space_one\nVersion: 1.0\n",
    "env/site-packages/space_one-1.0.dist-info/RECORD": "spaces/first/__init__.py,,\n",
    "env/site-packages/spaces/second/__init__.py": "two = 1\n",
    "env/site-packages/space_two-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: space_two\nVersion: 1.0\n",
    "env/site-packages/space_two-1.0.dist-info/RECORD": "spaces/second/__init__.py,,\n",
    "env/site-packages/unused-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: unused\nVersion: 1.0\n",
    "env/site-packages/unused-1.0.dist-info/RECORD": "unused.py,,\n",
    "env/site-packages/source.py": "A = 1\n",
    "env/site-packages/source-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: source\nVersion: 1.0\n",
    "env/site-packages/source-1.0.dist-info/direct_url.json": "{}",
    "env/site-packages/source-1.0.dist-info/RECORD": "source.py,sha256=a,1\n",
    "env/site-packages/unused.py": "A = 1\n",
    "env/site-packages/by_hand.py": "A = 1\n",
    "env/site-packages/__editable___editable_1_0_finder.py": "MAPPING: dict[str, str] = {'editable': 'ELSEWHERE'}\n",
}

Edit = Callable[[Path], object]


def put(name: str, text: str) -> Edit:
    def edit(at: Path) -> None:
        path = at / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return edit


def swap(name: str, old: str, new: str) -> Edit:
    def edit(at: Path) -> None:
        text = (at / name).read_text()
        assert old in text
        (at / name).write_text(text.replace(old, new))

    return edit


def upgrade(distribution: str, version: str = "2.0") -> Edit:
    def edit(at: Path) -> None:
        about = at / f"env/site-packages/{distribution}-1.0.dist-info"
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        about.rename(about.with_name(f"{distribution}-{version}.dist-info"))

    return edit


def reinstalled(digest: str) -> Edit:
    """Install another state of the distribution `source`, which keeps its version."""

    def edit(at: Path) -> None:
        about = at / "env/site-packages/source-1.0.dist-info"
        for file in about.iterdir():
            file.unlink()
        about.rmdir()
        put("env/site-packages/source-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: source\nVersion: 1.0\n")(
            at
        )
        put("env/site-packages/source-1.0.dist-info/direct_url.json", "{}")(at)
        put("env/site-packages/source-1.0.dist-info/RECORD", f"source.py,{digest},1\n../../bin/source,sha256={at},1\n")(
            at
        )

    return edit


OWN = "work/mine/formats.py"
RUN: dict[str, Edit] = {
    "statement": swap(OWN, "row[", "1 or row["),
    "helper": swap("work/mine/helper.py", "below.text()", "below.text() + 'x'"),
    "helper two below": swap("work/mine/below.py", "TEXT", "TEXT * 2"),
    "helper three below": swap("work/mine/lowest.py", "'a'", "'b'"),
    "constant": swap(OWN, '"a": 1', '"a": 2'),
    "constant of another module": swap("work/mine/constants.py", "3", "4"),
    "1 becomes 1.0": swap("work/mine/constants.py", "3", "3.0"),
    "1 becomes True": swap("work/mine/near.py", "1", "True"),
    "text": swap(OWN, '"subject"', '"title"'),
    "text of a raise": put("work/mine/near.py", "def f():\n    raise ValueError('a')\n"),
    "docstring of the module": swap(OWN, "briefly", "at length"),
    "docstring of the function": swap(OWN, "the prompt", "a prompt"),
    "docstring of the package": swap("work/mine/__init__.py", "The package", "Another"),
    "default of a parameter": swap(OWN, "def ticket(row)", "def ticket(row, most=3)"),
    "decorator": swap(OWN, "def ticket", "@helper.help\ndef ticket"),
    "relative import": swap("work/mine/near.py", "NEAR = 1", "NEAR = 2"),
    "package of a relative import": swap("work/mine/deep/__init__.py", "up", "up, near"),
    "relative import in a subpackage": swap("work/mine/deep/innermost.py", "1", "2"),
    "relative import of two dots": swap("work/mine/up.py", "1", "2"),
    "import in a function": swap("work/mine/late.py", "1", "2"),
    "import in else of TYPE_CHECKING": swap("work/mine/not_typing.py", "1", "2"),
    "sibling package": swap("work/beside/tool.py", "return text", "return text.strip()"),
    "helper of a sibling package": swap("work/beside/other.py", "1", "2"),
    "__init__ of a sibling package": put("work/beside/__init__.py", "import single\n"),
    "single file": swap("work/single.py", "return 1", "return 2"),
    "namespace folder": swap("work/plain/module.py", "1", "2"),
    "namespace folder becomes a package": put("work/plain/__init__.py", "A = 1\n"),
    "editable package": swap("elsewhere/src/editable/part.py", "1", "2"),
    "__init__ of an editable package": put("elsewhere/src/editable/__init__.py", "made = 2\n"),
    "new file shadows a package of its name": put("work/library.py", "words = 2\n"),
    "folder of its name becomes a package before it": put("work/library/__init__.py", "words = 2\n"),
    "new folder shadows a single file": put("work/single/__init__.py", "def once():\n    return 2\n"),
    "new file shadows an editable package": put("work/editable.py", "made = 2\n"),
    "new file of an import that failed": put("work/fast.py", "A = 1\n"),
    "library of an import that failed": put("env/site-packages/fast.py", "A = 1\n"),
    "module deleted": lambda at: (at / "work/mine/late.py").unlink(),
    "module becomes a package": lambda at: (
        (at / "work/mine/near.py").unlink(),
        put("work/mine/near/__init__.py", "NEAR = 2\n")(at),
    ),
    "compiled module before the source": put(f"work/single{EXTENSION_SUFFIXES[0]}", "binary"),
    "compiled module rebuilt": put(f"work/mine/built{EXTENSION_SUFFIXES[0]}", "binary 2"),
    "library's version": upgrade("library"),
    "library of a repository": reinstalled("sha256=b"),
    "version of a namespace's part": upgrade("space_one"),
    "file that was put beside installed packages": put("env/site-packages/by_hand.py", "A = 2\n"),
    "new import": swap(OWN, "import json", "import json\nimport unused"),
    "import removed": swap(OWN, "from plain.module import VALUE\n", ""),
}
HIT: dict[str, Edit] = {
    "nothing": lambda at: None,
    "comment": swap(OWN, "# the subject first", "# first the subject"),
    "layout": swap(OWN, 'row["subject"] + __doc__', '(row["subject"]\n        + __doc__)'),
    "quotes": swap(OWN, '"subject"', "'subject'"),
    "blank lines": swap(OWN, "\n\n", "\n\n\n\n"),
    "file's time": lambda at: os.utime(at / OWN, (1, 1)),
    "the same text again": lambda at: (at / OWN).write_text((at / OWN).read_text()),
    "comment in a helper": swap("work/mine/lowest.py", "TEXT", "# why\nTEXT"),
    "comment in a sibling": swap("work/beside/other.py", "A", "# why\nA"),
    "module that nothing imports": swap("work/mine/unrelated.py", "1", "2"),
    "module for types alone": swap("work/mine/typing_only.py", "1", "2"),
    "new module that nothing imports": put("work/mine/more.py", "A = 1\n"),
    "new file in the folder": put("work/notes.txt", "x"),
    "data file": put("work/prices.csv", "c\n"),  # the audit refuses to read it undeclared
    "bytecode": put("work/mine/__pycache__/near.cpython-311.pyc", "x"),
    "file further down the path": put("later/single.py", "A = 2\n"),
    "library of a repository, of the same files": reinstalled("sha256=a"),
    "other library's version": upgrade("unused"),
    "other part of a namespace": upgrade("space_two"),
    "new library": put("env/site-packages/more.py", "A = 1\n"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        put(name, text.replace("ELSEWHERE", str(tmp_path / "elsewhere/src/editable")))(tmp_path)
    # without the packages of these tests, whose lists of files take time to read
    standard = [folder for folder in sys.path if not folder.endswith("-packages")]
    monkeypatch.setattr(sys, "path", [*standard, str(tmp_path / "env/site-packages"), str(tmp_path / "later")])
    (tmp_path / "later/fast.py").unlink()
    return tmp_path


def closure_at(place: Path, memo: Path) -> Closure:
    cache = Memo(memo)
    found = closure("mine.formats", cache, search=(str(place / "work"),))
    cache.save()
    return found


@pytest.mark.parametrize("name", [*RUN, *HIT])
def test_an_edit_moves_the_key_if_it_can_change_what_the_code_returns(place: Path, name: str) -> None:
    before = closure_at(place, place / "memo.db")
    (RUN | HIT)[name](place)
    after = closure_at(place, place / "memo.db")
    assert after == closure_at(place, place / "cold.db")
    assert ("hit" if after == before else "run") == ("run" if name in RUN else "hit")


def test_another_folder_has_the_same_key(place: Path) -> None:
    before = closure_at(place, place / "memo.db")
    (place / "work").rename(place / "moved")
    assert closure("mine.formats", Memo(place / "memo.db"), search=(str(place / "moved"),)) == before


def test_a_closure_names_what_it_has(place: Path) -> None:
    code, env = closure_at(place, place / "memo.db")
    assert {name.split(".")[0] for name in code} == {"mine", "single", "beside", "plain", "editable", "by_hand"}
    assert not {"mine.unrelated", "mine.typing_only", "mine.latin"} & code.keys()
    assert env.keys() == {"python", "library", "source", "space-one"}


def test_nothing_of_the_code_is_run(place: Path) -> None:
    for file in (place / "work").rglob("*.py"):
        file.write_text(f"{file.read_text()}\nopen({str(place / 'ran')!r}, 'w')\n")
    closure_at(place, place / "memo.db")
    assert not (place / "ran").exists()
    assert not {"mine", "single", "beside", "editable"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("text", "where"), [("def f(:\n", r"near\.py:1 is no Python"), ("\0", r"near\.py.* is no Python")]
)
def test_a_module_that_is_no_python_is_named_with_its_line(place: Path, text: str, where: str) -> None:
    (place / "work/mine/near.py").write_text(text)
    with pytest.raises(CodeError, match=where):
        closure_at(place, place / "memo.db")
