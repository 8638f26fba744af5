"""Which edits of own code other tools miss: those of tests/keys/test_closure_mutations.py, each in a tree that a tool has run.

    python -m tests.bench.own_code_peers PYTHON     # of an environment with dvc, redun, sf-hamilton
    python -m tests.bench.own_code_peers PYTHON metaflow

Prints a line of JSON for each tool: stale hits and false misses. A tool gets the function as its users write it: redun a
task, Hamilton a node with a cache, DVC a stage that depends on the function's package (its own verdict, `status`, is taken),
Metaflow a step whose result `resume` takes over, since the step after it failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = ("redun", "hamilton", "dvc")
UNFIT = {"compiled module before the source", "compiled module rebuilt"}
"""Edits of compiled modules, whose files in the tests are no such modules: an import fails."""

CALL = 'from mine.formats import ticket\n\nprint(ticket({"subject": "a", "title": "b"}))\n'
STAGE = """stages:
  texts:
    cmd: %s run.py > texts.txt
    deps: [work/mine]
    outs: [texts.txt]
"""
FLOW = """from metaflow import FlowSpec, step


class Texts(FlowSpec):
    @step
    def start(self):
        from mine.formats import ticket

        self.text = ticket({"subject": "a", "title": "b"})
        self.next(self.end)

    @step
    def end(self):
        raise ValueError("for resume")


if __name__ == "__main__":
    Texts()
"""


def serve(tool: str) -> None:
    """Run the function in the tree of each line from stdin, in a child, and answer how often its body ran."""
    if tool == "redun":
        from redun import Scheduler
        from redun.config import Config
    elif tool == "hamilton":
        from hamilton import driver
    elif tool == "dvc":
        from dvc.repo import Repo

    def run(place: Path) -> None:
        os.chdir(place)
        work = [str(place / "work")]
        sys.path[:] = [*work, *sys.path, str(place / "env/site-packages"), str(place / "later")]
        if tool in ("dvc", "metaflow"):
            os.environ["PYTHONPATH"] = os.pathsep.join([*work, str(place / "env/site-packages"), str(place / "later")])
        if tool == "metaflow":
            os.environ |= {"METAFLOW_DATASTORE_SYSROOT_LOCAL": str(place), "METAFLOW_USER": "one", "USERNAME": "one"}
            how = "resume" if (place / ".metaflow").exists() else "run"
            subprocess.run([sys.executable, "flow.py", "--no-pylint", how], cwd=place)
            return
        if tool == "dvc":
            repo = Repo(str(place))
            if not (place / "dvc.lock").exists():
                repo.reproduce()
            elif repo.status():  # what `dvc repro` would run, without running it
                with (place / "ran").open("a") as stream:
                    stream.write("x")
            return
        import mine.formats  # type: ignore[import-not-found]

        if tool == "redun":
            backend = {"db_uri": f"sqlite:///{place}/redun.db", "automigrate": "True"}
            scheduler = Scheduler(config=Config({"backend": backend}))
            scheduler.load()
            scheduler.run(mine.formats.ticket({"subject": "a", "title": "b"}))
        else:
            made = driver.Builder().with_modules(mine.formats).with_cache(path=str(place / "cache")).build()
            made.execute(["ticket"], inputs={"row": {"subject": "a", "title": "b"}})

    for line in sys.stdin:
        place = Path(line.strip())
        before = len((place / "ran").read_text())
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)
            try:
                run(place)
            except BaseException as error:
                sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(0)
        os.waitpid(child, 0)
        print(len((place / "ran").read_text()) - before, flush=True)


def compared(tool: str, python: str) -> dict[str, object]:
    from tests.keys.test_closure_mutations import FILES, HIT, OWN, RUN, put, swap

    place = Path(tempfile.mkdtemp()) / "tree"
    decorated = {"redun": "@task()\ndef ticket(row):", "hamilton": "def ticket(row: dict) -> str:"}
    text = FILES[OWN].replace("import mine.built\n", "import ran\n").replace("from ..mine import near as again\n", "")
    if tool == "redun":
        text = text.replace("import ran\n", "import ran\nfrom redun import task\nredun_namespace = 'mine'\n")
    text = text.replace('    """Return the prompt."""\n', '    """Return the prompt."""\n    ran.note()\n')
    text = text.replace("def ticket(row):", decorated.get(tool, "def ticket(row):"))
    helper = FILES["work/mine/helper.py"] + "\ndef decorate(function):\n    return function\n"
    note = f"def note():\n    with open({str(place / 'ran')!r}, 'a') as stream:\n        stream.write('x')\n"
    files = {**FILES, OWN: text, "work/mine/helper.py": helper, "env/site-packages/ran.py": note, "ran": ""}
    files |= {"run.py": CALL, "dvc.yaml": STAGE % python, "flow.py": FLOW}
    for name, content in files.items():
        put(name, content.replace("ELSEWHERE", str(place / "elsewhere/src/editable")))(place)
    (place / "later/fast.py").unlink()
    # the finder of an editable installation, as setuptools would start it
    (place / "env/site-packages/editable").symlink_to(place / "elsewhere/src/editable")
    if tool == "dvc":
        subprocess.run([python, "-m", "dvc", "init", "--no-scm", "-q"], cwd=place, check=True)
    edits = {**RUN, **HIT, "decorator": swap(OWN, "def ticket", "@helper.decorate\ndef ticket")}
    if tool == "hamilton":
        edits["default of a parameter"] = swap(OWN, "row: dict)", "row: dict, most: int = 3)")
    server = subprocess.Popen(
        [python, __file__, "serve", tool], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=(place.parent / "log").open("w"), text=True,
    )  # fmt: skip
    assert server.stdin and server.stdout

    def runs() -> int:
        assert server.stdin and server.stdout
        server.stdin.write(f"{place}\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    first, second = runs(), runs()
    assert (first, second) == (1, 0), f"{tool}: ran {first}, then {second} times: {place.parent}/log"
    kept = place.with_name("kept")
    shutil.copytree(place, kept, symlinks=True)
    stale, missed = [], []
    for name, edit in edits.items():
        if name in UNFIT:
            continue
        shutil.rmtree(place)
        shutil.copytree(kept, place, symlinks=True)
        edit(place)
        ran = runs()
        if name in RUN and not ran:
            stale.append(name)
        if name in HIT and ran:
            missed.append(name)
    server.stdin.close()
    server.wait()
    shutil.rmtree(place.parent)
    tried = [len([name for name in table if name not in UNFIT]) for table in (RUN, HIT)]
    return {"tool": tool, "must run": tried[0], "stale": stale, "must hit": tried[1], "missed": missed}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        for tool in sys.argv[2:] or TOOLS:
            print(json.dumps(compared(tool, sys.argv[1])), flush=True)
