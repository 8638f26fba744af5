"""The shards of a stage on Prefect's task runners: real processes, a real local Ray and Dask, a real S3 server between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.flows.prefect_api import PROJECT, Api
from tests.flows.runner.shelf import Shelf, sentences
from tests.helpers.command_line import Shell
from tests.helpers.products import few
from tests.helpers.s3_server import downloads, s3_endpoint, s3_root  # noqa: F401 - fixtures
from tests.helpers.waiting import wait_for
from tests.launch.processes import marked
from trnflow.flows.recipes.sections import TaskRunnerConfig
from trnflow.flows.runner.context import refuse_task_runners
from trnflow.flows.runner.parts.worker_process import make_part_apart
from trnflow.flows.services.task_runners import _unreachable
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import CodeError, ConfigError, StoreError
from trnflow.tasks.launch.call import Call
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import SHARD, blob_name
from trnflow.tasks.store.verify import verify

QUICK = ["data.limit=60", "tokenize.shard_bytes=12000", "task_runner.workers=2", "tracking.enabled=false"]


def prepare(house: Api, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environ = house.environ | {"TRNFLOW_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "trnflow", "prepare", "demo", "--json", *QUICK, *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=1500)


def made(done: subprocess.CompletedProcess[str]) -> dict[str, Meta]:
    assert done.returncode == 0, done.stderr
    return {stage["stage"]: stage for stage in json.loads(done.stdout)["stages"]}


@pytest.fixture(scope="module")
def alone(api: Api, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Meta]:
    """What one thread makes, in a store of its own, in one shard a split."""
    return made(
        prepare(
            api, tmp_path_factory.mktemp("alone"), "--direct", "task_runner.workers=1", "tokenize.shard_bytes=10000000"
        )
    )


@pytest.mark.parametrize("kind", few(["ray", "threads", "processes", "dask"], 1))
def test_any_worker_takes_any_part_and_the_bytes_are_the_same(
    kind: str,
    api: Api,
    alone: dict[str, Meta],
    s3_root: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    direct = ["--direct"] if kind == "threads" else []
    found = made(prepare(api, tmp_path / "flow", f"task_runner.kind={kind}", f"store.root={s3_root}", *direct))
    assert {name: stage["artifact"] for name, stage in found.items()} == {
        name: stage["artifact"] for name, stage in alone.items()
    }
    shards = found["tokenize_text"]["figures"]["shards_made"]
    assert shards > 3
    if kind != "threads":
        run = api.newest_run(f"task_runner.kind={kind}", *QUICK)
        tasks = api.post("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
        names = [task["name"] for task in tasks if ".shard " in task["name"]]
        counted = Counter(name.partition(".")[0] for name in names)
        assert counted["tokenize_text"] == shards
        assert counted["pack_chunks"] == found["pack_chunks"]["figures"]["shards_made"] > 0
        assert len(names) == len({*names})
        assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    read = {Path(name).name for name in downloads(s3_root)}
    store = Store(s3_root, tmp_path / "look")
    assert verify(store.backend).ok
    cached = {path.name for path in (tmp_path / "flow/home/cache/blobs").rglob("*") if path.is_file()}
    parts, of_stages = of_parts(store), outputs(store)
    assert len(parts) > shards
    assert of_stages <= cached
    assert not cached & (parts - of_stages)
    assert not read & (parts | of_stages)


def of_parts(store: Store) -> set[str]:
    stages = [name for name in store.backend.folders("records") if name.endswith(SHARD)]
    return files_of(store, [record["artifact"] for name in stages for record in store.records(name)])


def outputs(store: Store) -> set[str]:
    """The names of the blobs with the files of all stages' outputs."""
    stages = [name for name in store.backend.folders("records") if not name.endswith(SHARD)]
    return files_of(store, [record["artifact"] for name in stages for record in store.records(name)])


def files_of(store: Store, artifacts: Iterable[str]) -> set[str]:
    return {Path(blob_name(file.digest)).name for digest in artifacts for file in store.artifact(digest).files}


def test_a_flow_that_is_killed_leaves_no_worker(api: Api, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "trnflow",
        "prepare",
        "demo",
        "task_runner.kind=processes",
        "tokenize.shard_bytes=2000",
    ]
    mark = uuid.uuid4().hex
    environ = api.environ | {"TRNFLOW_HOME": str(tmp_path / "home"), "TEST_MARK": mark}
    flow = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    records = tmp_path / "home/store/records/tokenize_text.shard"
    wait_for(lambda: records.is_dir() and len(list(records.iterdir())) > 1, 120)
    assert len(marked(f"TEST_MARK={mark}")) >= 3
    flow.send_signal(signal.SIGKILL)
    flow.wait()
    wait_for(lambda: not marked(f"TEST_MARK={mark}"), 30)


# --- who may use a local cluster

LOCAL_RAY = """
import contextlib, sys
from trnflow.flows.recipes.sections import TaskRunnerConfig
from trnflow.flows.services.task_runners import _ray
with contextlib.ExitStack() as stack:
    with _ray(TaskRunnerConfig(kind="ray", workers=1), stack):
        import os, ray
        print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"], flush=True)
        sys.stdin.readline()
"""
CLIENT = "import sys, ray; ray.init(address=sys.argv[1]); print('connected', len(ray.nodes()))"


def test_a_local_ray_refuses_a_client_without_its_token() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

    def client(address: str, **token: str) -> str:
        command = [sys.executable, "-c", CLIENT, address]
        done = subprocess.run(command, env=environ | token, capture_output=True, text=True, timeout=180)
        return done.stdout + done.stderr

    command = [sys.executable, "-c", LOCAL_RAY]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=PROJECT, env=environ, text=True, **pipes) as cluster:
        assert cluster.stdin and cluster.stdout
        address, token = cluster.stdout.readline().split()
        try:
            assert "connected 1" in client(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token)
            said = client(address)
            assert "connected" not in said
            assert "AuthenticationError" in said or "Unauthenticated" in said, said
        finally:
            cluster.stdin.write("end\n")
            cluster.stdin.flush()


# --- what a worker refuses


@pytest.fixture
def call(tmp_path: Path) -> Meta:
    """That of a real part, made by this process, whose record was taken away."""
    caught: list[Call] = []

    class Here:
        def make(self, calls: Iterable[Call]) -> Iterator[Meta]:
            for call in calls:
                caught.append(call)
                yield make_part_apart(call.to_json())

    Shelf(str(tmp_path / "store"), tmp_path).run(sentences(30), part_maker=Here())
    (tmp_path / "store/records/tokenize_text.shard").rename(tmp_path / "taken")
    return caught[0].to_json()


def test_a_worker_publishes_what_it_makes(call: Meta, tmp_path: Path) -> None:
    done = make_part_apart(call)
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    (record,) = store.records("tokenize_text.shard")
    assert record["artifact"] == done["artifact"] == done["made"]
    assert store.artifact(done["artifact"]).meta["rows"] == call["phase"]["arguments"]["count"]


def test_a_worker_that_sees_no_store_says_so(call: Meta, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"this worker sees no store at .*use one that all workers reach"):
        make_part_apart({**call, "root": str(tmp_path / "elsewhere")})


def test_a_worker_with_another_library_refuses(call: Meta) -> None:
    document = {**call["document"], "env": {**call["document"]["env"], "tokenizers": "0.1"}}
    with pytest.raises(CodeError, match=r"this worker has tokenizers .*, the flow 0\.1"):
        make_part_apart({**call, "document": document})


def test_a_worker_with_other_code_refuses(call: Meta) -> None:
    code = {**call["document"]["code"], "trnflow.tasks.data.tokenization.encoders": f"sha256:{'0' * 64}"}
    with pytest.raises(CodeError, match="trnflow.tasks.data.tokenization.encoders"):
        make_part_apart({**call, "document": {**call["document"], "code": code}})


# --- settings


def test_a_run_without_prefect_has_threads_alone() -> None:
    refuse_task_runners(TaskRunnerConfig(workers=3))
    with pytest.raises(ConfigError, match="task_runner.kind: ray is one of Prefect's task runners.*--direct"):
        refuse_task_runners(TaskRunnerConfig(kind="ray"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["task_runner.kind=threads", "task_runner.address=tcp://127.0.0.1:1"], "is of a Ray or Dask cluster"),
        (["task_runner.kind=spark"], "task_runner.kind"),
    ],
)
def test_bad_settings(settings: list[str], said: str, trnflow: Shell) -> None:
    assert said in trnflow.error("prepare", "demo", *settings, code=2)


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_named(api: Api, tmp_path: Path) -> None:
    done = prepare(api, tmp_path, "task_runner.kind=dask", "task_runner.address=tcp://127.0.0.1:1")
    assert done.returncode == 2
    assert "dask can't be used on tcp://127.0.0.1:1" in done.stderr


LOCAL = """
import contextlib, json, os, sys
from trnflow.flows.recipes.sections import TaskRunnerConfig
from trnflow.flows.services.task_runners import _made

if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        runner = _made(TaskRunnerConfig(kind="dask", workers=1), stack)
        client = stack.enter_context(runner).client
        assert client.submit(os.getpid).result()
        scheduler = runner._cluster.scheduler
        workers = [place for worker in scheduler.workers.values() for place in (worker.address, worker.nanny)]
        print(json.dumps([scheduler.address, *workers]), flush=True)
        sys.stdin.read()
"""
STRANGER = """
import asyncio, sys
from distributed import Security
from distributed.core import rpc

async def ask(address, **given):
    async with rpc(address, timeout=3, **given) as there:
        return await there.identity()

for address in sys.argv[1:]:
    for given in ({}, {"connection_args": Security.temporary().get_connection_args("client")}):
        try:
            asyncio.run(asyncio.wait_for(ask(address, **given), 5))
        except Exception:
            continue
        print(f"{address} answered")
"""


def test_a_local_dask_runs_nothing_of_the_machine_s_other_users(tmp_path: Path) -> None:
    """Who reaches a port of Dask has it run a pickle: on the loopback that was every user of the machine."""
    (tmp_path / "local.py").write_text(LOCAL)  # a worker imports its parent's main module
    command = [sys.executable, str(tmp_path / "local.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
        assert cluster.stdout and cluster.stdin
        listening = json.loads(cluster.stdout.readline())
        assert len(listening) == 3
        tried = [f"{scheme}://{place.partition('://')[2]}" for place in listening for scheme in ("tcp", "tls")]
        done = subprocess.run([sys.executable, "-c", STRANGER, *tried], capture_output=True, text=True)
        cluster.stdin.close()
    assert done.returncode == 0 and not done.stdout, done.stdout


@pytest.mark.parametrize(
    ("address", "where"), [(None, "this machine"), ("tcp://me:hunter22@scheduler:8786", "tcp://***@scheduler:8786")]
)
def test_a_cluster_that_can_not_be_used_is_named_without_its_password(address: str | None, where: str) -> None:
    error = _unreachable(TaskRunnerConfig(kind="dask", address=address), OSError("no\n  route"))
    assert error.message == f"task_runner: dask can't be used on {where}: no route"
