"""Where predictions may be written, and what other programs read there."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import math
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import PROJECT
from tests.helpers.small_disk import small_disk
from trnflow.tasks.errors import ConfigError, DataError, MachineError
from trnflow.tasks.prediction.outputs import new_rows
from trnflow.tasks.system.whole_file import written

TYPES = {"row": "long", "text": "string", "label": "string"}
ROWS = [{"row": 1, "text": "größer", "label": "a"}, {"row": 2, "text": 'two\nlines, "quoted"\r', "label": None}]
OLD = b"what was there"

# What stands at the path of `--out`: {name: makes it of an ending, and returns the plain file that is then written, if any}
Place = Callable[[Path], Path | None]


def plain(path: Path) -> Path:
    path.write_bytes(OLD)
    return path


def new(path: Path) -> Path:
    return path


def link(to: Place, name: str) -> Place:
    def make(path: Path) -> Path | None:
        target = path.with_name(f"{name}-of-{path.name}")
        made = to(target)
        path.symlink_to(target.name)
        return made

    return make


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    """A null device."""
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes a device")


def folder(path: Path) -> None:
    path.mkdir()


def circle(path: Path) -> None:
    path.symlink_to(path.name)


def socket_of(path: Path) -> None:
    os.mknod(path, 0o666 | stat.S_IFSOCK)


PLACES: dict[str, Place] = {
    "new": new, "plain": plain, "pipe": pipe, "device": device, "folder": folder, "circle": circle, "socket": socket_of,
    "link to plain": link(plain, "a"), "link to nothing": link(new, "a"), "link to pipe": link(pipe, "a"),
    "link to device": link(device, "a"), "link to folder": link(folder, "a"), "link to circle": link(circle, "a"),
    "link to link": link(link(plain, "b"), "a"),
}  # fmt: skip
REFUSED = {"folder", "circle", "socket", "link to folder", "link to circle"}
READ = {
    "": lambda data: [json.loads(line) for line in data.decode().splitlines()],
    ".jsonl": lambda data: [json.loads(line) for line in data.decode().splitlines()],
    ".csv": lambda data: records(pd.read_csv(io.BytesIO(data), keep_default_na=False, na_values={"label": [""]})),
    ".parquet": lambda data: records(pd.read_parquet(io.BytesIO(data))),
}


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def entries(root: Path) -> dict[str, tuple[int, str]]:
    """{path: its kind, and where a link leads}"""
    return {
        str(path.relative_to(root)): (stat.S_IFMT(path.lstat().st_mode), os.readlink(path) if path.is_symlink() else "")
        for path in root.rglob("*")
    }


@pytest.mark.parametrize("ending", [*READ])
@pytest.mark.parametrize("name", [*PLACES])
@pytest.mark.parametrize("fails", [False, True], ids=["", "an error"])
def test_what_is_no_plain_file_stays_and_what_is_one_is_whole(
    tmp_path: Path, name: str, ending: str, fails: bool
) -> None:
    out = tmp_path / f"out{ending}"
    target = PLACES[name](out)
    before = entries(tmp_path)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(out.read_bytes()), daemon=True)
    if name.endswith("pipe"):
        reader.start()
    refused = pytest.raises(ConfigError, match="--out: ") if name in REFUSED else None
    try:
        with new_rows(out, None, TYPES) as append:
            assert refused is None, "it should be refused"
            for row in ROWS:
                append(row)
                assert target is None or not target.exists() or target.read_bytes() == OLD
            if fails:
                raise DataError("row 3 is bad")
    except ConfigError:
        assert name in REFUSED
    except DataError:
        assert fails
    after = entries(tmp_path)
    made = {str(target.relative_to(tmp_path)): (stat.S_IFREG, "")} if target and not fails else {}
    assert after == before | made
    if target is not None and target.exists():
        assert target.read_bytes() == OLD if fails else READ[ending](target.read_bytes()) == ROWS
    if name.endswith("pipe"):
        reader.join(10)
        whole = READ[ending](received[0]) if received[0] else []
        assert whole == ROWS if not fails else whole in (ROWS, [])


@pytest.mark.parametrize("name", ["x.json", "x.txt", "x.tsv", "x.csv.gz", "x.xlsx", "v1.2"])
def test_another_ending_is_refused_of_a_plain_file_alone(tmp_path: Path, name: str) -> None:
    for make in (new, plain, link(new, "a"), link(plain, "a")):
        make(tmp_path / name)
        before = entries(tmp_path)
        with (
            pytest.raises(ConfigError, match="which is no format of predictions"),
            new_rows(tmp_path / name, None, TYPES),
        ):
            pass
        assert entries(tmp_path) == before
        for path in tmp_path.iterdir():
            path.unlink()
    device(tmp_path / name)
    with new_rows(tmp_path / name, None, TYPES) as append:
        append(ROWS[0])
    assert stat.S_ISCHR((tmp_path / name).stat().st_mode)


def test_a_link_s_own_ending_counts_then_its_target_s(tmp_path: Path) -> None:
    for name, target, format_ in (("a.csv", "blob", ".csv"), ("b", "b.csv", ".csv"), ("c.jsonl", "c.csv", ".jsonl")):
        (tmp_path / name).symlink_to(target)
        with new_rows(tmp_path / name, None, TYPES) as append:
            [append(row) for row in ROWS]
        assert READ[format_]((tmp_path / target).read_bytes()) == ROWS and (tmp_path / name).is_symlink()


def test_mode_and_owner_stay(tmp_path: Path) -> None:
    out = plain(tmp_path / "out.csv")
    out.chmod(0o600)
    if os.getuid() == 0:
        os.chown(out, 1234, 1234)
    before = out.stat()
    with new_rows(out, None, TYPES) as append:
        append(ROWS[0])
    assert (out.stat().st_mode, out.stat().st_uid, out.stat().st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_long_name_and_another_file_of_the_unfinished_one_s_name(tmp_path: Path) -> None:
    out = tmp_path / ("x" * 250)
    (tmp_path / ".out.partial").write_bytes(OLD)
    for path in (out, tmp_path / "out"):
        with new_rows(path, None, TYPES) as append:
            append(ROWS[0])
        assert json.loads(path.read_bytes()) == ROWS[0]
    assert (tmp_path / ".out.partial").read_bytes() == OLD


SCRIPT = """
import sys
from pathlib import Path
from trnflow.tasks.prediction.outputs import new_rows
print("before")
sys.stdout.flush()
with new_rows(Path(sys.argv[1]), None, {"row": "long", "text": "string"}) as append:
    append({"row": 1, "text": "gr\\u00f6\\u00dfer"})
    append({"row": 2, "text": "b"})
"""


@pytest.mark.parametrize(
    ("out", "locale"),
    [("-", "POSIX"), *((out, "C.UTF-8") for out in ("-", "/dev/stdout", "/dev/fd/1", "by link", "itself"))],
)
def test_standard_output_that_the_shell_sends_to_a_file_is_continued(tmp_path: Path, out: str, locale: str) -> None:
    (tmp_path / "by link").symlink_to("/dev/stdout")
    (tmp_path / "itself").write_bytes(b"earlier\n")
    environ = {
        **os.environ,
        "PYTHONPATH": str(PROJECT),
        "LC_ALL": locale,
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    number = (tmp_path / "itself").stat().st_ino
    with (tmp_path / "itself").open("ab") as stdout:
        subprocess.run([sys.executable, "-c", SCRIPT, out], stdout=stdout, cwd=tmp_path, env=environ, check=True)
    lines = (tmp_path / "itself").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["earlier", "before"] and [json.loads(line)["text"] for line in lines[2:]] == ["größer", "b"]
    assert (tmp_path / "itself").stat().st_ino == number
    piped = subprocess.run(
        [sys.executable, "-c", SCRIPT, out], capture_output=True, cwd=tmp_path, env=environ, check=True
    )
    if out != "itself":
        assert piped.stdout.decode().splitlines()[1:] == lines[2:]


def test_a_place_that_can_t_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    for place, source in (
        (tmp_path / "none/out", None), (tmp_path, None), (tmp_path / "file/x", None), (tmp_path / "file", tmp_path / "file"),
        (tmp_path / "linked", tmp_path / "file"),
    ):  # fmt: skip
        if place.name == "linked":
            place.symlink_to("file")
        with pytest.raises(ConfigError, match="--out"), new_rows(place, source, TYPES):
            pass
    assert (tmp_path / "file").read_bytes() == OLD and len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize("name", ["out", "out.csv", "out.parquet"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        (disk / name).write_bytes(OLD)
        texts = (os.urandom(50).hex() for _ in range(9000))
        with pytest.raises(MachineError, match="No space left on device"), new_rows(disk / name, None, TYPES) as append:
            for text in texts:
                append({"text": text})
        assert [path.name for path in disk.iterdir()] == [name] and (disk / name).read_bytes() == OLD


def test_a_reader_that_goes_away_is_an_error_of_the_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = threading.Thread(target=lambda: (tmp_path / "pipe").open("rb").close())
    reader.start()
    with (
        pytest.raises(MachineError, match="pipe failed: Broken pipe"),
        new_rows(tmp_path / "pipe", None, TYPES) as append,
    ):
        reader.join()
        for _ in range(1000):
            append(ROWS[0])


@given(st.lists(st.binary(max_size=20), max_size=4), st.booleans())
def test_a_file_holds_all_that_was_written_or_what_it_held(
    tmp_path_factory: Any, parts: list[bytes], fails: bool
) -> None:
    path = plain(tmp_path_factory.mktemp("x") / "file")
    try:
        with written(path) as file:
            for part in parts:
                file.write(part)
            if fails:
                raise KeyError
    except KeyError:
        pass
    assert path.read_bytes() == (OLD if fails else b"".join(parts)) and len([*path.parent.iterdir()]) == 1


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.floats(allow_nan=False, width=64)
PROBABILITIES = st.dictionaries(TEXT, NUMBER.filter(math.isfinite), max_size=3)
ENTITY = st.fixed_dictionaries(
    {"type": TEXT, "text": TEXT, "start": st.integers(0, 99), "end": st.integers(0, 99), "score": st.floats(0, 1)}
)
COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "id": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "name, \"first\"": (pa.string(), TEXT),
    "seen": (pa.timestamp("us"), st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))),
    "day": (pa.date32(), st.dates(datetime.date(1700, 1, 1), datetime.date(2200, 1, 1))),
    "price": (pa.decimal128(12, 2), st.decimals(-9999, 9999, places=2)),
    "amount": (pa.float64(), st.floats()),
    "flag": (pa.bool_(), st.booleans()),
    "kind": (pa.dictionary(pa.int32(), pa.string()), TEXT),
    "tags": (pa.list_(pa.string()), st.lists(TEXT, max_size=3)),
    "place": (pa.struct([("x", pa.int64()), ("y", pa.string())]), st.fixed_dictionaries({"x": st.integers(0, 9), "y": TEXT})),
    "meta": (pa.json_(pa.string()), st.dictionaries(TEXT, st.integers(0, 9), max_size=2)),
    "text": ("string", TEXT),
    "labels": ("list", st.lists(TEXT, max_size=2)),
    "probabilities": ("map", PROBABILITIES),
    "vector": ("numbers", st.lists(NUMBER.filter(math.isfinite), max_size=3)),
    "entities": ("entities", st.lists(ENTITY, max_size=2)),
    "ended": ("boolean", st.booleans()),
    "cut": ("long", st.integers(0, 10**6)),
}  # fmt: skip
ROW = st.fixed_dictionaries({}, optional={name: st.none() | values for name, (_, values) in COLUMNS.items()})


def as_json(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, decimal.Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, datetime.date) else value


def like_nan(value: Any) -> Any:
    """A value in which NaN equals NaN."""
    if isinstance(value, dict):
        return {name: like_nan(item) for name, item in value.items()}
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@settings(max_examples=40)
@given(st.lists(ROW, max_size=5))
def test_every_value_is_read_again_by_other_programs(tmp_path_factory: Any, rows: list[dict[str, Any]]) -> None:
    place = tmp_path_factory.mktemp("rows")
    types = {name: type_ for name, (type_, _) in COLUMNS.items()}
    for ending in READ:
        with new_rows(place / f"out{ending}", None, types) as append:
            for row in rows:
                append(row)
    lines = [json.loads(line) for line in (place / "out.jsonl").read_bytes().split(b"\n")[:-1]]
    assert lines == [{name: as_json(value) for name, value in row.items()} for row in rows]
    whole = [{name: row.get(name) for name in COLUMNS} for row in rows]

    read = pa.parquet.read_table(place / "out.parquet").to_pylist()
    for row, found in zip(whole, read, strict=True):
        expected = {**row, "meta": None if row["meta"] is None else json.dumps(row["meta"], ensure_ascii=False)}
        expected["probabilities"] = None if row["probabilities"] is None else [*row["probabilities"].items()]
        assert like_nan(found) == like_nan(expected)

    frame = pd.read_csv(place / "out.csv", dtype=str, keep_default_na=False, na_values=[])
    assert [*frame.columns] == [*COLUMNS] and len(frame) == len(rows)
    for row, found in zip(whole, frame.to_dict("records"), strict=True):
        for name, value in row.items():
            cell = found[name]
            if value is None:
                assert cell == ""
            elif isinstance(value, list | dict):
                assert json.loads(cell) == value
            elif isinstance(value, bool):
                assert cell == str(value).lower()
            elif isinstance(value, float):
                assert repr(float(cell)) == repr(value)
            else:
                assert cell == (value if isinstance(value, str) else str(as_json(value)))
