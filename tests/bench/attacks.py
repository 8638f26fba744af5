"""What input that is made to take memory, disk or time takes: a line for each attack, of the real command in a process.

    python -m tests.bench.attacks [NAME ...]

`MiB` is the most that the command's processes held together, without mapped files; `disk` the most in its home. Both are
looked at twenty times a second. Each attack has a project of its own, in a temporary folder (at most some 2 GB).
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.data.load import test_attacks
from tests.helpers.command_line import Shell, write_project
from tests.helpers.s3_proxy import proxy_of
from tests.helpers.s3_server import new_bucket, start_server
from tests.helpers.serving import address_of, serving
from tests.prediction.test_limited_templates import GIB, LATER
from tests.prediction.test_tokenizing import LATER as LETTERS
from tests.prediction.test_tokenizing import model_of, split
from tests.sources.test_model_sizes import LLAMA, shapes_of, write_weights
from tests.sources.test_remote import Handler, Server
from trnflow.tasks.launch.guard import Held

MIB = 1 << 20
SECONDS = 600
SHARED = Path(os.environ.get("TRNFLOW_SHARED", "../shared"))
LOAD = ["run", "mine.yaml", "--direct", "--until", "load_data", "tracking.enabled=false"]
CSV = b"text,label\n" + b"".join(b"row %d,%s\n" % (n, (b"pos", b"neg")[n % 2]) for n in range(60))
RECIPE = """
extends: classify
data: {source: rows, text: text, label: label}
model: {source: model}
"""


class Place:
    """A project to write an attack into. environ: variables of its command; held: what ends after it."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self.folder, self.held, self.environ = write_project(folder), held, dict[str, str]()
        self.rows, self.model = folder / "rows", folder / "model"

    def train(self, name: str, content: bytes = b"") -> Path:
        """Write a file in the place of the rows of train."""
        (self.rows / "train.jsonl").unlink(missing_ok=True)
        (self.rows / name).write_bytes(content)
        return self.rows / name

    def config(self, **fields: object) -> list[str]:
        """Write a model's folder with these fields of config.json; return the command that looks at it."""
        write_weights(self.model / "model.safetensors", shapes_of(LLAMA))
        (self.model / "config.json").write_text(json.dumps({**LLAMA, **fields}))
        (self.folder / "with_model.yaml").write_text(RECIPE)
        return ["plan", "with_model.yaml"]

    def predict(self, text: str, change: dict[str, object], template: str = "") -> list[str]:
        """Write a model's folder whose tokenizer has this change; return the command that predicts a text with it."""
        _, artifact = model_of(self.folder, SHARED, change, template)
        return ["predict", artifact.digest, text, "--max-new-tokens", "2", "--store", str(self.folder / "store")]


def packed(place: Place, name: str, begin: bytes, part: bytes, end: bytes = b"", times: int = 200) -> list[str]:
    """A gzip file of one part many times."""
    member = gzip.compress(part)
    place.train(name, gzip.compress(begin) + member * times + gzip.compress(end))
    return LOAD


def rows_of(build: Callable[[Path], None], place: Place) -> list[str]:
    build(place.rows)
    return LOAD


def zipped(place: Place, method: int) -> list[str]:
    with zipfile.ZipFile(place.train("train.zip"), "w", method) as archive, archive.open("a.csv", "w") as member:
        for _ in range(20):
            member.write(bytes(100 * MIB))
    (place.rows / "train.zip").rename(place.folder / "set.zip")
    return [*LOAD, "data.source=set.zip"]


def many_names(place: Place) -> list[str]:
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\x01\x02", 20, 3, 20, *[0] * 4, 33, 0, 0, 0, 8, *[0] * 6) + b"name.bin"
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 10**6 * len(entry), 0, 0)
    (place.folder / "set.zip").write_bytes(entry * 10**6 + end)
    return [*LOAD, "data.source=set.zip"]


def numbers(place: Place) -> list[str]:
    lists = pa.ListArray.from_arrays([0, 10**8], pa.nulls(10**8, pa.int8()))
    pq.write_table(pa.table({"text": ["a"], "label": ["a"], "more": lists}), place.train("train.parquet"))
    return [*LOAD, "data.columns={more: more}"]


def columns(place: Place) -> list[str]:
    names = ",".join(f"c{number}" for number in range(2_000_000))
    (place.folder / "wide.csv").write_text(f"{names}\n{'1,' * 1_999_999}1\n")
    return ["new", "wide.csv"]


def objects(place: Place) -> list[str]:
    command = place.config()
    text = (place.model / "config.json").read_text()
    (place.model / "config.json").write_text(f'{text[:-1]}, "a": [{"[{}]," * 2_700_000}[]]}}')
    return command


def headers(place: Place) -> list[str]:
    command = place.config()
    (place.model / "model.safetensors").unlink()
    header = b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"__metadata__":{"a":"%s"}}' % (b"x" * (15 * MIB))
    (place.model / "0.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    names = [f"{number}.safetensors" for number in range(1000)]
    for name in names[1:]:
        (place.model / name).hardlink_to(place.model / names[0])
    (place.model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {n: n for n in names}}))
    return command


def index(place: Place) -> list[str]:
    command = place.config()
    (place.model / "model.safetensors").unlink()
    (place.model / "model.safetensors.index.json").write_text('{"weight_map": {"a": [' + "[]," * (20 * MIB) + "[]]}}")
    return command


def endless(place: Place, name: str, device: str = "") -> list[str]:
    """A pipe, or a link to a device, as a file of a model."""
    command = place.config()
    (place.model / name).unlink(missing_ok=True)
    (place.model / name).symlink_to(device) if device else os.mkfifo(place.model / name)
    return command


def normalizer(place: Place) -> list[str]:
    grows = {"type": "Replace", "pattern": {"String": "e"}, "content": "eeee"}
    return place.predict("where", {"normalizer": {"type": "Sequence", "normalizers": [grows] * 16}})


def served(place: Place, body: bytes, **says: object) -> list[str]:
    server = place.held.enter_context(serving(Server(("127.0.0.1", 0), Handler)))
    server.logins, server.body = [], body
    for name, value in says.items():
        setattr(server, name, value)
    return [*LOAD, f"data.source={address_of(server)}/set.csv", "data.split={test: 0.2, validation: 0.2}"]


def bucket(place: Place) -> list[str]:
    import boto3

    endpoint = start_server()
    name = new_bucket(endpoint)
    boto3.client("s3", endpoint_url=endpoint).put_object(Bucket=name, Key="set.csv", Body=CSV)
    (place.folder / "troubles").write_text(json.dumps([{"methods": "HEAD", "part": "set.csv", "size": "9" * 15}]))
    place.environ |= {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    place.environ["AWS_ENDPOINT_URL"] = place.held.enter_context(proxy_of(endpoint, place.folder / "troubles"))
    return [*LOAD, f"data.source=s3://{name}/set.csv", "data.split={test: 0.2, validation: 0.2}"]


def document(place: Place, name: str, content: bytes | None) -> list[str]:
    """A document of the store that is nested a million deep, or leads to a device."""
    file = place.folder / ".trnflow/store" / name
    file.parent.mkdir(parents=True)
    (place.folder / ".trnflow/store/FORMAT.json").write_text('{"format": 2, "hash": "sha256"}')
    file.symlink_to("/dev/zero") if content is None else file.write_bytes(content)
    return ["champions", "mine"]


def recipes(place: Place) -> list[str]:
    for number in range(40):
        (place.folder / f"r{number}.yaml").write_text(f"extends: [{', '.join([f'r{number + 1}.yaml'] * 3)}]\n")
    (place.folder / "r40.yaml").write_text("extends: classify\n")
    return ["plan", "r0.yaml"]


def hole(place: Place) -> list[str]:
    with (place.folder / "large.yaml").open("wb") as file:
        file.truncate(8 << 30)
    return ["plan", "large.yaml"]


def window(place: Place) -> list[str]:
    content = bytearray(lzma.compress(b"text,label\na,pos\n"))
    header = slice(12, 12 + (content[12] + 1) * 4)  # of the first block
    block = content[header]
    block[block.index(b"\x21\x01") + 2] = 40  # keep 4 GiB of what was unpacked
    content[header] = block[:-4] + struct.pack("<I", zlib.crc32(block[:-4]))
    place.train("train.csv.xz", bytes(content))
    return LOAD


CHAT = "{% for message in messages %}{{ message.content }}{% endfor %}"
ATTACKS: dict[str, Callable[[Place], list[str]]] = {
    "num_labels 1e9": lambda place: place.config(num_labels=10**9),
    "num_hidden_layers 1e9": lambda place: place.config(num_hidden_layers=10**9),
    "config.json of 16 MB of objects": objects,
    "config.json of 17 MiB": lambda place: place.config(note="x" * (17 * MIB)),
    "index.json of 60 MiB": index,
    "1,000 links to a header of 15 MiB": headers,
    "config.json is a pipe": partial(endless, name="config.json"),
    "weights are /dev/zero": partial(endless, name="model.safetensors", device="/dev/zero"),
    "a tokenizer's pattern without end": lambda place: place.predict(LETTERS, {"pre_tokenizer": split("(a|aa){20}c")}),
    "a normalizer that writes 4 GB": normalizer,
    "a template that takes 1 GB": lambda place: place.predict("now", {}, GIB + CHAT),
    "a template that computes for ever": lambda place: place.predict("now", {}, LATER + CHAT),
    "gzip: 10 GiB in one line": partial(rows_of, test_attacks.bomb),
    "a cell of 200 MB": partial(rows_of, test_attacks.cell),
    "Parquet: a text of 300 kB 12,000 times": partial(rows_of, test_attacks.repeated),
    "Parquet: a list of 1e8 nulls": numbers,
    "gzip: 20,000,000 objects {}": partial(packed, name="train.jsonl.gz", begin=b"", part=b"{}\n" * 100_000),
    "gzip: an array of 20,000,000 {}": partial(
        packed, name="train.json.gz", begin=b"[{}", part=b",{}" * 100_000, end=b"]"
    ),
    "gzip: an open quote over 20,000,000 lines": partial(
        packed, name="train.csv.gz", begin=b'text,label\n"', part=b"a\n" * 100_000
    ),
    "gzip: 60,000,000 blank lines": partial(
        packed, name="train.csv.gz", begin=b"text,label\n", part=b"\n" * 100_000, times=600
    ),
    "JSON nested 1,000,000 deep": lambda place: [*LOAD, f"data.source={place.train('a.jsonl', b'[' * 10**6)}"],
    "xz that wants 4 GiB": window,
    "zip: 2 GB by Deflate": partial(zipped, method=zipfile.ZIP_DEFLATED),
    "zip: 2 GB by LZMA": partial(zipped, method=zipfile.ZIP_LZMA),
    "zip: 1,000,000 names": many_names,
    "new: 2,000,000 columns": columns,
    "HTTP: HEAD says 1e18 bytes": lambda place: served(place, CSV, size="9" * 18),
    "HTTP: 600 MB compressed unasked": lambda place: served(place, gzip.compress(bytes(600 * MIB)), packed=True),
    "S3: HEAD says 1e15 bytes": bucket,
    "a ledger entry nested 1,000,000 deep": partial(document, name="roots/ledger/mine/1.json", content=b"[" * 10**6),
    "a ledger entry is /dev/zero": partial(document, name="roots/ledger/mine/1.json", content=None),
    "recipes that extend three each, 40 deep": recipes,
    "a recipe of 8 GB": hole,
    "a setting of 100 kB": lambda place: ["plan", "mine.yaml", "description=http://x?" + "token" * 20_000],
}
"""{attack: writes it into a project, and returns the command}"""


def size_of(folder: Path) -> int:
    """Return the bytes of the disk that a folder's files take."""
    found = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                found += os.lstat(f"{above}/{name}").st_blocks * 512
    return found


def measured(name: str) -> str:
    """Run an attack; return its line."""
    with tempfile.TemporaryDirectory() as root, ExitStack() as held:
        place = Place(Path(root) / "project", held)
        command = ATTACKS[name](place)
        shell, home = Shell(place.folder), place.folder / ".trnflow"
        shell.environ |= place.environ
        before, most, begun = size_of(home), 0, time.monotonic()
        run = shell.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, memory = list[str](), Held(run.pid)
        assert run.stdout is not None
        reading = threading.Thread(target=lambda stream=run.stdout: said.append(stream.read()))
        reading.start()
        while run.poll() is None and time.monotonic() < begun + SECONDS:
            memory.measure()
            most = max(most, size_of(home) - before)
            time.sleep(0.05)
        seconds = time.monotonic() - begun
        run.kill()
        reading.join()
        lines = [line.strip() for line in "".join(said).splitlines() if line.strip()]
        last = next((line for line in lines if line.startswith("error")), lines[-1] if lines else "")
        figures = f"{run.returncode} | {seconds:.1f} | {memory.most / MIB:,.0f} | {most / MIB:,.0f}"
        return f"| {name} | {figures} | {last.replace(root, '')[:160]} |"


def main() -> None:
    print("| attack | exit | seconds | MiB | disk | said |\n|---|---|---|---|---|---|")
    for name in sys.argv[1:] or ATTACKS:
        print(measured(name), flush=True)


if __name__ == "__main__":
    main()
