"""Hub names, through the real client libraries against a hub on this machine."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.hub_server import COMMIT, hub_of, run_program, serve
from tests.helpers.serving import address_of

PROGRAM = """
import json, sys
from pathlib import Path
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.load_data import DataConfig
from tests.helpers.data_stages import new_bench
bench, answers = new_bench(Path(sys.argv[1])), []
for data in json.loads(sys.argv[2]):
    try:
        source = bench.source(DataConfig(**data))
        answers.append({"identity": source.identity, "meta": bench.rows(**data).meta})
    except TrnflowError as error:
        answers.append(error.to_json())
offline = bench.source(DataConfig(source="me/set"), offline=True)
answers.append({"identity": offline.identity, "note": offline.note})
assert "torch" not in sys.modules
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    cases = {
        "plain": {"source": "me/set", "label": "label"},
        "splits": {"source": "me/set", "text": "text", "splits": {"train": "test"}, "limit": 10},
        "split": {"source": "me/set", "splits": {"train": "train", "test": "tests"}},
        "name": {"source": "me/set", "name": "plain_text"},
        "column": {"source": "me/set", "text": "texts"},
        "revision": {"source": "me/set", "revision": "v9"},
        "unknown": {"source": "me/none"},
        "gated": {"source": "secret/set"},
    }
    root = tmp_path_factory.mktemp("hub")
    emotion = shared / "data/emotion"
    files = {
        f"data/{name}-00000-of-00001.parquet": (emotion / f"{name}.parquet").read_bytes() for name in ("train", "test")
    }
    return asked({**files, "README.md": b"---\nlicense: other\n---\n"}, cases, root)


def asked(files: dict[str, bytes], cases: dict[str, dict], root: Path) -> dict[str, dict]:
    root.mkdir(exist_ok=True)
    with serve(files) as address:
        told = run_program(PROGRAM, address, root / "hf", str(root), json.dumps(list(cases.values())))
    return dict(zip([*cases, "offline"], told, strict=True))


def test_a_hub_dataset_is_pinned_to_its_commit(answers):
    found = answers["plain"]
    assert found["identity"] == {"hub": "me/set", "name": None, "commit": COMMIT, "splits": {}}
    assert found["meta"]["splits"] == {"train": 16000, "test": 2000}
    assert found["meta"]["labels"] == ["sadness", "joy", "love", "anger", "fear", "surprise"]
    assert answers["offline"] == {"identity": found["identity"], "note": "last resolution"}


def test_splits_can_be_chosen(answers):
    assert answers["splits"]["identity"]["splits"] == {"train": "test"}
    assert answers["splits"]["meta"]["splits"] == {"train": 10}


@pytest.mark.parametrize(
    ("case", "kind", "told"),
    [
        ("split", "ConfigError", "data.splits.test: me/set has no split tests (it has train, test)"),
        ("name", "ConfigError", "the dataset me/set: BuilderConfig 'plain_text' not found"),
        ("column", "ConfigError", "data.text: me/set train has no column texts"),
        ("revision", "ConfigError", "data.revision: the dataset me/set has no revision v9"),
        ("unknown", "DataError", "me/none is neither a file or folder here nor a dataset on the hub"),
        ("gated", "DataError", "secret/set is gated"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(answers, case, kind, told):
    assert answers[case]["type"] == kind
    assert told in answers[case]["message"]
    assert "\n" not in answers[case]["message"]
    assert answers[case]["fix"]


README = b"""---
dataset_info:
  features:
  - name: label
    dtype: {class_label: {names: {'0': neg, '1': pos}}}
---
"""


def test_json_of_the_hub_is_read_as_it_is_written(tmp_path: Path):
    """`datasets` itself gives 0.123456789 and a timestamp, or asks for a package that parses traces of agents."""
    call = {"name": "weather", "arguments": {"city": "Rome", "at": "2020-01-01", "x": 0.12345678901234}}
    plain = {"messages": [{"role": "user", "content": "hi"}], "day": "2020-01-01", "label": 0}
    told = [*[plain] * 50, {"messages": [{"role": "assistant", "tool_calls": [call]}], "day": "2020-01-02", "label": 1}]
    lines = "".join(json.dumps(row) + "\n" for row in told).encode()
    files = {"data/train.jsonl": lines, "data/test.jsonl.gz": gzip.compress(lines), "README.md": README}
    cases = {"all": {"source": "me/set"}, "labels": {"source": "me/set", "text": "day", "label": "label"}}
    found = asked(files, {**cases, "none": {"source": "me/set", "text": "texts"}}, tmp_path)
    assert found["all"]["meta"]["nested"] == ["messages"]
    assert found["all"]["meta"]["splits"] == {"train": 51, "test": 51}
    for split in ("train", "test"):
        rows = pq.read_table(tmp_path / f"out-1/{split}.parquet").to_pylist()
        assert [{**row, "messages": json.loads(row["messages"])} for row in rows] == told
    assert found["labels"]["meta"]["labels"] == ["neg", "pos"]
    assert "data.text: me/set data/train.jsonl has no column texts" in found["none"]["message"]


def test_csv_of_the_hub_is_text_unless_the_repository_says_how_it_is_read(tmp_path: Path):
    """`datasets` reads 007 as 7, and NA as null."""
    plain = {
        f"data/train.{kind}": f"text{end}label\n007{end}NA\n".encode() for kind, end in (("csv", ","), ("tsv", "\t"))
    }
    for name, content in plain.items():
        found = asked({name: content, "README.md": b""}, {"all": {"source": "me/set"}}, root := tmp_path / name[-3:])
        assert found["all"]["meta"]["splits"] == {"train": 1}
        assert pq.read_table(root / "out-1/train.parquet").to_pylist() == [{"text": "007", "label": "NA"}]
    told = b"---\nconfigs:\n- config_name: default\n  data_files: a.csv\n  sep: ';'\n---\n"
    asked(
        {"a.csv": b"text;label\nx, y;1\n", "README.md": told}, {"all": {"source": "me/set"}}, root := tmp_path / "told"
    )
    assert pq.read_table(root / "out-1/train.parquet").to_pylist() == [{"text": "x, y", "label": 1}]


def test_parquet_that_grows_too_much_is_not_copied(tmp_path):
    """datasets would write 100 MB for 150 KB."""
    text = "".join(random.Random(0).choices("0123456789abcdef", k=200_000))
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 500, pa.int32()), pa.array([text]))
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", compression="zstd", store_schema=False)
    files = {"data/train-00000-of-00001.parquet": (tmp_path / "a.parquet").read_bytes()}
    cases = {"refused": {"source": "me/set"}, "set": {"source": "me/set", "max_growth": 2000, "limit": 3}}
    told = asked(files, cases, tmp_path / "hub")
    assert "me/set data/train-00000-of-00001.parquet grows from " in told["refused"]["message"]
    assert told["set"]["meta"]["splits"] == {"train": 3}


def test_a_dataset_that_datasets_would_unpickle_is_refused(tmp_path: Path) -> None:
    """A tar of examples may hold `.pth` and `.pkl` files, which its reader loads."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in ("0.txt", "0.pth", "1.txt", "1.pth"):
            entry = tarfile.TarInfo(name)
            entry.size = 4
            archive.addfile(entry, io.BytesIO(b"harm"))
    told = asked({"train.tar": content.getvalue()}, {"tar": {"source": "me/set"}}, tmp_path / "hub")["tar"]
    assert "me/set is of the kind webdataset, and what can be read is parquet, csv, json" in told["message"]


def test_texts_of_the_hub_that_grow_too_much_are_not_copied(tmp_path: Path) -> None:
    files = {"train.txt.gz": gzip.compress(b"a\n" * 40_000_000)}
    told = asked(files, {"bomb": {"source": "me/set"}}, tmp_path / "hub")["bomb"]
    assert "me/set train.txt.gz grows from" in told["message"]
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 10_000_000


@pytest.mark.parametrize("name", ["data/train.csv", "data/train-00000-of-00001.parquet"])
def test_data_that_the_disk_has_no_room_for_is_not_downloaded(name: str, tmp_path: Path, shared: Path) -> None:
    emotion = (shared / "data/emotion/train.parquet").read_bytes()
    files = {name: emotion if name.endswith("parquet") else b"text,label\na,b\n", "README.md": b""}
    told = json.dumps([{"source": "me/set"}])
    with hub_of(files, "datasets", {name: 5 * 10**14}) as hub:
        refused, _ = run_program(PROGRAM, address_of(hub), tmp_path / "hf", str(tmp_path), told)
        assert name not in hub.asked
    assert "data.source: 500,000.0 GB of me/set are to be downloaded, and the disk of " in refused["message"]
    assert "HF_HOME" in refused["fix"]
