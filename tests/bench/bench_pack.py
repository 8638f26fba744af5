"""Packing beside what one would use instead, on Dolly's lengths; padding beside what tutorials do, on emotion's.

    python -m tests.bench.bench_pack [--rows 15011,1501100] [--without-trl]

Ours is the whole stage, `pack_chunks`, four columns written to disk, and `placing` the part of it that decides what goes
where. Theirs is TRL's `pack_dataset(strategy="bfd")`, as it is called (which packs by thousands) and with all rows at once;
it writes the ids alone, unpadded. TRL comes without its dependencies into an environment of its own, which borrows ours.
Rows longer than a chunk are dropped before both, and counted. Each measure has a process of its own; lengths are of BERT's
vocabulary, and the many rows are Dolly's over and over.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import PROJECT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

SHARED = Path(os.environ.get("TRNFLOW_SHARED", PROJECT.parent / "shared"))
TRL = "trl==1.16.0"
GOALS = {512: 0.985, 2048: 0.997}
SHORT, LONG = 2, 512


def lengths_of(folder: str, columns: list[str], split: str = "train") -> Ints:
    """Tokens of each row, its columns one after another, special tokens included."""
    import numpy as np
    import pyarrow.parquet as pq

    from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer

    tokenizer = read_tokenizer(SHARED / "assets/bert-base-uncased").tokenizer
    files = sorted((SHARED / "data" / folder).glob(f"{split}*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, columns=columns).to_pylist()]
    found = tokenizer.encode_batch_fast(["\n\n".join(row[name] for name in columns if row[name]) for row in rows])
    return np.array([len(encoded) for encoded in found])


def write_tokens(folder: Path, sizes: Ints) -> None:
    """A `tokens` artifact of rows with these sizes; the last half of each is trained on."""
    import numpy as np

    (folder / "train").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    ends = np.cumsum(sizes)
    place = np.arange(ends[-1], dtype=np.int64) - np.repeat(ends - sizes, sizes)
    np.save(folder / "train/offsets.npy", np.concatenate([[0], ends]))
    np.save(folder / "train/source_row.npy", np.arange(len(sizes)))
    np.save(folder / "train/source_tokens.npy", sizes.astype(np.int32))
    np.save(folder / "train/loss_mask.npy", (2 * place >= np.repeat(sizes, sizes)).astype(np.uint8))
    np.save(folder / "train/input_ids.npy", (place * 7919 % 30000).astype(np.int32))


# --- each in a process of its own


def ours(folder: Path, length: int, out: Path) -> dict[str, Any]:
    import numpy as np
    import pyarrow  # noqa: F401 - in a pipeline the stages before it have imported it

    from trnflow.tasks.artifact import Input
    from trnflow.tasks.data.pack.packers import best_fit, whole_rows
    from trnflow.tasks.launch.phases import run_phase
    from trnflow.tasks.pack_chunks import PackConfig, pack_chunks
    from trnflow.tasks.stage import Workdir

    sizes = np.diff(np.load(folder / "train/offsets.npy"))
    meta = {"task": "causal_lm", "labels": None, "splits": {"train": len(sizes)}, "longest": int(sizes.max())}
    tokens = Input(folder, "tokens", {**meta, "pad_id": 0, "dropped": {}}, "sha256:tokens")
    del sizes
    out.mkdir()
    with measured() as found:
        workdir = Workdir(out, out / "scratch", lambda event: None)
        packed = run_phase(pack_chunks, PackConfig(chunk_length=length), {"tokens": tokens}, workdir)
    pieces = whole_rows(np.load(folder / "train/offsets.npy"))
    began = time.process_time()
    best_fit(pieces, length)
    placing = time.process_time() - began
    chunks = packed["rows"]["train"][str(length)]
    return {
        **found,
        "placing": placing,
        "chunks": chunks,
        "efficiency": packed["real_tokens"]["train"] / chunks / length,
    }


def theirs(folder: Path, length: int, out: Path, *, at_once: bool) -> dict[str, Any]:
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset, disable_progress_bars
    from trl import pack_dataset

    disable_progress_bars()
    offsets, ids = np.load(folder / "train/offsets.npy"), np.load(folder / "train/input_ids.npy")
    column = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids))
    Dataset(pa.table({"input_ids": column})).save_to_disk(str(out), num_shards=1)
    rows = Dataset.load_from_disk(str(out))
    del column, ids
    options = {"batch_size": len(rows), "writer_batch_size": len(rows)} if at_once else {}
    with measured() as found:
        packed = pack_dataset(rows, length, "bfd", map_kwargs=options)
    return {**found, "chunks": len(packed), "efficiency": int(offsets[-1]) / len(packed) / length}


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """wall, cpu: seconds; memory: MiB at the most, of what is not a mapped file, more than at the start."""
    found: dict[str, float] = {}
    over = threading.Event()
    seen = [anonymous()]
    watch = threading.Thread(target=lambda: [seen.append(anonymous()) for _ in iter(lambda: over.wait(0.005), True)])
    watch.start()
    began, busy = time.perf_counter(), time.process_time()
    yield found
    found |= {"wall": time.perf_counter() - began, "cpu": time.process_time() - busy}
    over.set()
    watch.join()
    found["memory"] = (max(seen) - seen[0]) / 1024


def anonymous() -> int:
    """KiB of this process that no file holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


# --- and what is told of it


def apart(python: str, which: str, tokens: Path, length: int, out: Path) -> dict[str, Any]:
    command = [python, "-m", "tests.bench.bench_pack", "--inner", which, str(tokens), str(length), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    shutil.rmtree(out, ignore_errors=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def borrow(folder: Path) -> str:
    """The python of an environment that holds TRL and borrows the rest from ours; empty if it can't be had."""
    import numpy as np

    python = folder / "bin/python"
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    try:
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(folder)], capture_output=True, check=True)
        install = [uv, "pip", "install", "-q", "--no-deps", "--python", str(python), TRL]
        subprocess.run(install, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{TRL} can't be installed: {error}")
        return ""
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{Path(np.__file__).parent.parent}\n")
    return str(python)


def compare(counts: list[int], peer: str, folder: Path) -> None:
    dolly = lengths_of("dolly15k", ["instruction", "context", "response"])
    print(f"{'':<38}{'wall s':>8}{'cpu s':>8}{'placing':>9}{'MiB':>7}{'chunks':>9}{'efficiency':>12}")
    for length, goal in GOALS.items():
        fitting = dolly[(dolly >= SHORT) & (dolly <= length)]
        for count in counts:
            import numpy as np

            sizes = np.resize(fitting, round(count * len(fitting) / len(dolly)))
            tokens = folder / f"{length}-{count}"
            write_tokens(tokens, sizes)
            print(
                f"{length}: {len(sizes)} rows, {sizes.sum()} tokens, {count - len(sizes)} too long, goal {goal:.1%}, "
                f"at the very best {-(-sizes.sum() // length)} chunks"
            )
            runs = [("trnflow", sys.executable, "ours")]
            if peer:
                runs += [("TRL bfd", peer, "by-thousands"), ("TRL bfd, all rows at once", peer, "at-once")]
            for name, python, which in runs:
                show(name, apart(python, which, tokens, length, folder / "out"))
            shutil.rmtree(tokens)


def show(name: str, run: dict[str, Any]) -> None:
    placing = f"{run['placing']:9.2f}" if "placing" in run else " " * 9
    figures = f"{run['wall']:8.2f}{run['cpu']:8.2f}{placing}{run['memory']:7.0f}{run['chunks']:9}"
    print(f"  {name:<36}{figures}{run['efficiency']:12.2%}", flush=True)


def padding() -> None:
    """Tokens through the model in an epoch of emotion, padding included, and how many shapes a compiler meets."""
    import numpy as np

    from trnflow.tasks.data.pack.packers import bucket_lengths

    sizes = lengths_of("emotion", ["text"])
    shuffled = np.random.default_rng(0).permutation(sizes)
    print(f"\nemotion, train: {len(sizes)} rows, {sizes.sum()} tokens, the longest {sizes.max()}")
    print(f"{'':<38}{'tokens':>10}{'real':>8}{'shapes':>8}")

    def line(name: str, total: int, shapes: int) -> None:
        print(f"  {name:<36}{total:>10}{sizes.sum() / total:>8.1%}{shapes:>8}")

    line(f"pad to {LONG}", len(sizes) * LONG, 1)
    line("pad to the longest of the split", int(len(sizes) * sizes.max()), 1)
    for batch in (32, 16):
        parts = [shuffled[start : start + batch] for start in range(0, len(sizes), batch)]
        total = sum(int(len(part) * part.max()) for part in parts)
        line(f"pad to the longest of a batch of {batch}", total, len({int(part.max()) for part in parts}))
    for buckets in (1, 2, 4, 8):
        chosen = bucket_lengths(sizes, LONG, buckets)
        total = int(np.array(chosen)[np.searchsorted(chosen, sizes)].sum())
        line(f"bucket {buckets}: {','.join(map(str, chosen))}", total, len(chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="15011,1501100", help="how many rows to pack, with commas")
    parser.add_argument("--without-trl", action="store_true")
    parser.add_argument("--inner", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner:
        which, tokens, length, out = arguments.inner
        paths = Path(tokens), int(length), Path(out)
        found = ours(*paths) if which == "ours" else theirs(*paths, at_once=which == "at-once")
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as name:
        peer = "" if arguments.without_trl else borrow(Path(name) / "peer")
        compare([int(count) for count in arguments.rows.split(",")], peer, Path(name))
    padding()


if __name__ == "__main__":
    main()
