"""The user's own code on workers that see neither the recipe's folder nor an earlier run's code."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.flows.champions.conftest import RECIPE
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes.recipe import load
from trnflow.flows.runner.context import context_of
from trnflow.flows.runner.parts.carried_code import packed_code, refuse_foreign
from trnflow.flows.runner.parts.worker_process import make_part_apart
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import run
from trnflow.tasks.artifact import Artifact, File, Meta, Source
from trnflow.tasks.errors import CodeError
from trnflow.tasks.events import EventLog
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import FILES, code_source
from trnflow.tasks.launch.call import Call
from trnflow.tasks.store import Store

FORMATS = """from pathlib import Path

from mine.words import PREFIX


def priced(row):
    return f"{PREFIX} {row['text']} {Path(__file__).parents[1].joinpath('prices.csv').read_text().strip()}"
"""


class Elsewhere:
    """Workers that live on over runs, and to which the folder of the user's code is hidden."""

    def __init__(self, own: Path, pool: ProcessPoolExecutor) -> None:
        self.own, self.pool = own, pool

    def make(self, calls: Iterable[Call]) -> Iterator[Meta]:
        documents = [call.to_json() for call in calls]
        hidden = self.own.rename(self.own.with_name("hidden"))
        try:
            yield from list(self.pool.map(make_part_apart, documents))
        finally:
            hidden.rename(self.own)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    own = tmp_path / "project"
    (own / "mine").mkdir(parents=True)
    (own / "mine/formats.py").write_text(FORMATS)
    (own / "mine/words.py").write_text("PREFIX = 'first'\n")
    (own / "prices.csv").write_text("12\n")
    rows = [json.dumps({"text": f"a {n}", "label": ("pos", "neg")[n % 2]}) for n in range(40)]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/train.jsonl").write_text("\n".join(rows))
    recipe = RECIPE.replace("source: rows", f"source: {tmp_path / 'rows'}")
    recipe = recipe.replace("task: classification}", "task: classification, make: 'mine.formats:priced'}")
    (own / "own.yaml").write_text(f"{recipe}own: {{files: [prices.csv]}}\ntask_runner: {{kind: processes}}\n")
    return own


def texts(project: Path, store: Store, pool: ProcessPoolExecutor) -> str:
    recipe = load(str(project / "own.yaml"))
    opened = context_of(recipe, store).for_run(EventLog(), run="r", part_maker=Elsewhere(project, pool))
    result = run(finetune(recipe), opened, Options("format_prompts", record=False))
    assert result.error is None, result.error
    artifact = next(step.artifact for step in result.steps if step.name == "format_prompts")
    assert artifact is not None
    store.copy_files(artifact, folder := project.parent / artifact.digest[7:19])
    return str(pq.read_table(folder / "train.parquet")["text"][0])


@pytest.mark.slow
def test_workers_without_the_code_have_it_and_never_an_old_one(project: Path) -> None:
    store = Store(str(project.parent / "store"), project.parent / "home")
    store.prepare()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert texts(project, store, pool).startswith("first a ")
        (project / "mine/words.py").write_text("PREFIX = 'second'\n")
        assert texts(project, store, pool).startswith("second a ")
        (project / "prices.csv").write_text("13\n")
        assert texts(project, store, pool).endswith(" 13")


def test_only_what_this_run_carried_is_taken(project: Path) -> None:
    store = Store(str(project.parent / "store"), project.parent / "home")
    store.prepare()
    hooks = {"format.make": ("mine.formats:priced", project)}
    files = {"prices.csv": project / "prices.csv"}
    code = code_source(hooks, project.parent, Memo(project.parent / "memo"), files=files)
    carried = packed_code(code, store, project.parent / "packed").location["carried"]
    assert sorted(carried["files"].values()) == ["0/mine/formats.py", "0/mine/words.py"]
    artifact = store.artifact(carried["digest"])
    refuse_foreign(artifact, carried)
    for path in ("../up.py", "/etc/passwd", "0/other.py", "0/mine/formats.so"):
        added = File(path, 1, artifact.files[0].digest)
        with pytest.raises(CodeError, match="is not what this run carried"):
            refuse_foreign(replace(artifact, files=(*artifact.files, added)), carried)
    with pytest.raises(CodeError, match="is not what this run carried"):
        refuse_foreign(Artifact(artifact.digest, "code", {}, artifact.files[:1]), carried)


def test_modules_from_elsewhere_are_carried_and_what_no_worker_could_read_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    store.prepare()
    for name in ("own/mine.py", "own/words.txt", "apart/beside/__init__.py", "apart/beside/fast.so", "far/words.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    def carried(files: dict[str, str], read: str = "own/words.txt") -> Meta:
        location = {
            "search": [str(tmp_path / "own")],
            "files": {name: str(tmp_path / file) for name, file in files.items()},
            "program": {f"{FILES}: words.txt": str(tmp_path / read), "trnflow": "/nowhere"},
        }
        packed = packed_code(Source("code", {}, location), store, tmp_path / f"packed-{len(files)}")
        return dict(packed.location["carried"])

    found = carried({"mine": "own/mine.py", "beside": "apart/beside/__init__.py"})
    assert found["files"] == {"mine": "0/mine.py", "beside": "1/beside/__init__.py"}
    assert [*found["read"].values()] == ["0/words.txt"] and found["search"] == ["0", "1"]
    with pytest.raises(CodeError, match=r"beside.fast is fast.so: only .py files are carried"):
        carried({"beside.fast": "apart/beside/fast.so"})
    with pytest.raises(CodeError, match="words.txt lies beside no module that reads it"):
        carried({"mine": "own/mine.py"}, read="far/words.txt")
