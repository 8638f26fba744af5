"""The data half on Dolly (15,011 rows) beside the tutorials' path: same rows, words, tokenizer; each in its own process.

    python -m tests.bench.bench_data [--length 2048] [--rounds 3]

Theirs maps a format, maps the tokenizer in batches, concatenates and cuts, and saves. Ours loads, formats, tokenizes and
packs by best fit into a content store, with every file hashed. The tokenizer is a byte-level BPE of 32,000 entries trained
on Dolly beforehand. Imports are not timed. Then 1 % of the rows are appended, and both run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.conftest import PROJECT

HELD_BACK = 0.01


def dolly() -> pa.Table:
    shared = Path(os.environ.get("TRNFLOW_SHARED", PROJECT.parent / "shared"))
    (file,) = sorted((shared / "data" / "dolly15k").glob("*.parquet"))
    return pq.read_table(file)


def make_tokenizer(folder: Path, table: pa.Table) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=32000, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    columns = [table[name].to_pylist() for name in ("instruction", "context", "response")]
    tokenizer.train_from_iterator((text for column in columns for text in column), trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    special = {"eos_token": "<|endoftext|>", "bos_token": None, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special}))


def theirs(file: Path, model: Path, out: Path, length: int) -> dict[str, Any]:
    from itertools import chain

    from datasets import Dataset, disable_caching, disable_progress_bars
    from transformers import PreTrainedTokenizerFast

    disable_caching()
    disable_progress_bars()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    began = time.perf_counter()

    def format_row(row: dict[str, str]) -> dict[str, str]:
        context = f"### Context\n{row['context']}" if row["context"] else None
        parts = [f"### Instruction\n{row['instruction']}", context, f"### Answer\n{row['response']}"]
        return {"text": "\n\n".join(part for part in parts if part is not None) + tokenizer.eos_token}

    def cut(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: list(chain(*batch[name])) for name in batch}
        whole = len(joined["input_ids"]) // length * length
        found = {name: [ids[at : at + length] for at in range(0, whole, length)] for name, ids in joined.items()}
        return {**found, "labels": [list(ids) for ids in found["input_ids"]]}

    rows = Dataset.from_parquet(str(file), cache_dir=str(out / "cache"))
    rows = rows.map(format_row, remove_columns=list(rows.features))
    tokens = rows.map(lambda batch: tokenizer(batch["text"]), batched=True, remove_columns=["text"])
    chunks = tokens.map(cut, batched=True)
    chunks.save_to_disk(str(out / "saved"))
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "chunks": len(chunks), "tokens": sum(len(ids) for ids in tokens["input_ids"])}


def ours(file: Path, model: Path, out: Path, length: int) -> dict[str, Any]:
    from trnflow.flows.finetune import finetune
    from trnflow.flows.recipes import recipe as settings
    from trnflow.flows.runner.context import context_of, open_store
    from trnflow.flows.runner.plan import Options
    from trnflow.flows.runner.run import run

    os.environ["TRNFLOW_HOME"] = str(out / "home")
    overrides = [f"data.source={file}", f"model.source={model}", "data.split={}", f"pack.chunk_length={length}"]
    recipe = settings.load("llama2-7b-dolly", [*overrides, f"tokenize.max_length={length}"])
    began = time.perf_counter()
    store = open_store(recipe)
    store.prepare()
    result = run(finetune(recipe), context_of(recipe, store), Options(until="pack_chunks"))
    seconds = time.perf_counter() - began
    if result.error:
        raise result.error
    meta = {step.name: step.artifact.meta for step in result.steps if step.artifact}
    return {
        "seconds": seconds,
        "chunks": meta["pack_chunks"]["rows"]["train"][str(length)],
        "tokens": meta["tokenize_text"]["tokens"]["train"],
        "efficiency": meta["pack_chunks"]["metrics"]["efficiency"],
        "stages": {step.name: round(step.seconds or 0, 2) for step in result.steps},
    }


def apart(which: str, *arguments: object) -> dict[str, Any]:
    """One of the two in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.bench_data", "--inner", which, *map(str, arguments)]
    environment = {**os.environ, "USE_TORCH": "0", "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(length: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, table = Path(name), dolly()
        make_tokenizer(folder / "model", table)
        kept = round(table.num_rows * (1 - HELD_BACK))
        pq.write_table(table.slice(0, kept), folder / "most.parquet")
        pq.write_table(table, folder / "all.parquet")
        found: dict[str, list[dict[str, Any]]] = {}
        for number in range(rounds):
            for which in ("ours", "theirs"):
                out = folder / f"{which}-{number}"
                for case, file in (("cold", "most"), ("1 % appended", "all")):
                    arguments = (folder / f"{file}.parquet", folder / "model", out, length)
                    found.setdefault(f"{which} {case}", []).append(apart(which, *arguments))
        report(found, length)


def report(found: dict[str, list[dict[str, Any]]], length: int) -> None:
    print(
        f"Dolly, chunks of {length}, {len(os.sched_getaffinity(0))} cores; medians of {len(found['ours cold'])} rounds"
    )
    for case in ("cold", "1 % appended"):
        mine, other = (median(run["seconds"] for run in found[f"{which} {case}"]) for which in ("ours", "theirs"))
        last, rest = found[f"ours {case}"][-1], found[f"theirs {case}"][-1]
        print(
            f"{case:<13} trnflow {mine:5.2f} s ({last['tokens'] / mine / 1e6:.2f} M tokens/s, {last['chunks']} chunks, "
            f"efficiency {last['efficiency']}, {last['stages']})"
        )
        print(f"{'':<13} tutorial {other:4.2f} s ({rest['chunks']} chunks), ratio {other / mine:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--inner", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inner is None:
        return compare(arguments.length, arguments.rounds)
    which, file, model, out, length = arguments.inner
    run = {"ours": ours, "theirs": theirs}[which]
    print(json.dumps(run(Path(file), Path(model), Path(out), int(length))))
    return None


if __name__ == "__main__":
    main()
