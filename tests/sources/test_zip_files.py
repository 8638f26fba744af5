from __future__ import annotations

import stat
import struct
import zipfile
from pathlib import Path

import pytest

from tests.data.load.rows import REVIEWS, failure, write
from tests.helpers.data_stages import files, table
from trnflow.flows.authoring.look import look
from trnflow.tasks.data.load.config import SourceConfig
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.load_data import DataConfig
from trnflow.tasks.sources.resolver import Resolver

CSV = b"text,label\ngood,1\nbad,0\n"


def pack(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_zipped_file_is_the_same_data(bench, tmp_path, kind):
    plain = write(tmp_path / f"a.{kind}", REVIEWS)
    packed = pack(tmp_path / "packed.zip", {f"deep/reviews.{kind}": plain.read_bytes(), "__MACOSX/._x.csv": b"?"})
    sources = [bench.source(DataConfig(source=str(path), label="stars", split={})) for path in (plain, packed)]
    assert sources[0].identity == sources[1].identity
    assert files(bench.rows(source=str(packed), label="stars").path) == files(
        bench.rows(source=str(plain), label="stars").path
    )


def test_several_files_are_splits_by_their_names(bench, tmp_path):
    pack(tmp_path / "set.zip", {"train.csv": CSV, "test.csv": CSV, "README.md": b"about"})
    assert bench.rows(source=str(tmp_path / "set.zip"), text="text").meta["splits"] == {"train": 2, "test": 2}


def test_a_folder_of_zips(bench, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    pack(folder / "train.zip", {"part-1.csv": CSV, "part-2.csv": CSV})
    pack(folder / "test.zip", {"data.csv": CSV})
    assert bench.rows(source=str(folder), text="text").meta["splits"] == {"train": 4, "test": 2}
    named = bench.rows(source=str(folder), text="text", splits={"train": "test.zip", "validation": "train.zip"})
    assert named.meta["splits"] == {"train": 2, "validation": 4}


def test_a_zip_beside_other_data_stays_shut(bench, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.csv", REVIEWS)
    pack(folder / "train.csv.zip", {"train.csv": CSV})
    assert bench.rows(source=str(folder), text="text").meta["splits"] == {"train": 4}
    (folder / "train.csv").rename(folder / "test.csv")
    for named in ({}, {"train": "train.csv.zip"}):
        with pytest.raises(ConfigError, match="Fix: unpack the zip, or compress the file with gzip"):
            bench.rows(source=str(folder), text="text", splits=named)


def test_a_url_of_a_zip(bench, tmp_path):
    import fsspec

    content = pack(tmp_path / "set.zip", {"train.csv": CSV, "test.csv": CSV}).read_bytes()
    fsspec.filesystem("memory").pipe("/zipped/set.zip", content)
    assert bench.rows(source="memory://zipped/set.zip", text="text").meta["splits"] == {"train": 2, "test": 2}


def test_what_the_cache_lost_or_broke_is_unpacked_again(bench, tmp_path):
    path = pack(tmp_path / "set.zip", {"train.csv": CSV})
    place = Path(bench.source(DataConfig(source=str(path))).location["files"][0]["path"])
    place.write_bytes(b"text\nother\n")
    assert table(bench.rows(source=str(path), text="text"), "train") == {"text": ["good", "bad"]}
    place.unlink()
    assert table(bench.rows(source=str(path), text="text"), "train") == {"text": ["good", "bad"]}


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"../train.csv": CSV}, "names a file outside itself: ../train.csv"),
        ({"/etc/train.csv": CSV}, "names a file outside itself: /etc/train.csv"),
        ({"picture.png": b"png"}, "set.zip (.*) holds no data file"),
        ({"train.csv": bytes(1 << 27)}, "would grow from .* to 134,217,728 in 1 files"),
    ],
)
def test_no_honest_zip_of_data(bench, tmp_path, members, told):
    with pytest.raises(DataError, match=told):
        bench.source(DataConfig(source=str(pack(tmp_path / "set.zip", members))))
    assert not (tmp_path.parent / "train.csv").exists()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_method_that_unpacks_without_bound_is_refused(bench, tmp_path, method):
    """A zip of 3 kB, whose list said 100 bytes, took all memory."""
    with zipfile.ZipFile(tmp_path / "set.zip", "w", method) as archive:
        archive.writestr("train.csv", CSV)
    told = failure(bench, DataError, source=str(tmp_path / "set.zip"), text="text")
    assert "set.zip is packed by another method than Deflate" in told


def test_a_link_in_a_zip_is_no_data(bench, tmp_path):
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("train.csv", CSV)
        link = zipfile.ZipInfo("test.csv")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert bench.rows(source=str(tmp_path / "set.zip"), text="text").meta["splits"] == {"train": 2}


def test_broken_and_cut_zips(bench, tmp_path):
    whole = pack(tmp_path / "set.zip", {"train.csv": CSV * 1000}).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    assert "cut.zip can't be read" in failure(bench, DataError, source=str(tmp_path / "cut.zip"), text="text")
    hole = bytearray(whole)
    hole[60:70] = bytes(10)
    (tmp_path / "hole.zip").write_bytes(hole)
    assert "hole.zip can't be read" in failure(bench, DataError, source=str(tmp_path / "hole.zip"), text="text")
    encrypted = bytearray(whole)
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1  # the directory's flag
    (tmp_path / "secret.zip").write_bytes(encrypted)
    assert "secret.zip is encrypted" in failure(bench, DataError, source=str(tmp_path / "secret.zip"), text="text")


def test_a_zip_that_changes_meanwhile_is_refused(bench, tmp_path):
    from trnflow.tasks.load_data import load_data

    path = pack(tmp_path / "set.zip", {"train.csv": CSV})
    config = DataConfig(source=str(path), text="text", split={})
    source = bench.source(config)
    pack(path, {"train.csv": CSV * 2})
    with pytest.raises(DataError, match=r"train\.csv changed while"):
        load_data(config, source, out=bench.workdir())


def test_no_split_is_a_setting_to_mend(bench, tmp_path):
    path = pack(tmp_path / "set.zip", {"test.csv": CSV, "val.csv": CSV})
    assert "has no train split" in failure(bench, ConfigError, source=str(path), text="text")


@pytest.mark.parametrize("member", ["..\\..\\evil.csv", "a/./b.csv", ".hidden/x.csv"])
def test_a_zip_whose_data_are_all_hidden_holds_none(bench, tmp_path, member):
    path = pack(tmp_path / "set.zip", {member: CSV})
    assert "set.zip" in failure(bench, DataError, source=str(path))
    with pytest.raises(DataError, match="holds no data file"):
        look(SourceConfig(source=str(path)), Resolver(tmp_path / "home"))


def test_a_zip_with_a_million_names_is_refused_before_they_are_read(bench, tmp_path):
    """They took 40 s and 800 MB."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 3, 20, *[0] * 4, 33, 0, 0, 0, 8, *[0] * 6) + b"name.bin"
    count = 400_000
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, count * len(entry), 0, 0)
    (tmp_path / "set.zip").write_bytes(entry * count + end)
    assert "has a list of files of 21,600,000 bytes" in failure(bench, DataError, source=str(tmp_path / "set.zip"))
