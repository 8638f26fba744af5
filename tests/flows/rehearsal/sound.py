"""Sound recipes: twenty-one on real data, and a grid of task, model, file, split and settings of about two hundred."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tests.flows.rehearsal.faults import MODEL, WORDS, talk, texts, write_sound
from tests.helpers.chats import chat_template, tokenizer_in

ENCODER = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}
# null takes away what the recipe demo, which these extend, sets for its BERT
NOT_BERT = {"hidden_dropout_prob": None, "attention_probs_dropout_prob": None}
BERT = {"model_type": "bert", "num_hidden_layers": 2, **ENCODER}
DISTILBERT = {
    **NOT_BERT, **dict.fromkeys(ENCODER), "model_type": "distilbert", "num_hidden_layers": None,
    "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip
MODERNBERT = {**NOT_BERT, **ENCODER, "model_type": "modernbert", "num_hidden_layers": 4}
QWEN = MODEL | {"model_type": "qwen3", "head_dim": 8}
SMOLLM = MODEL | {"model_type": "smollm3", "num_hidden_layers": 8}


class Sound(NamedTuple):
    """A sound recipe on real data.

    Attributes:
        kind: The recipe of tests.flows.rehearsal.faults that it changes.
        overrides: SHARED stands for the folder of real data and models.
        config: Of the model, if it is another.
        write: Writes files into the recipe's folder. Takes the shared folder and that one.
    """

    kind: str
    overrides: tuple[str, ...]
    config: dict[str, Any] | None = None
    write: Callable[[Path, Path], None] = lambda shared, folder: None


def write_table(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows in the format that the file's name shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, (suffix, *compressed) = list(rows), path.suffixes
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    text = io.StringIO()
    if suffix in (".csv", ".tsv"):
        table = csv.DictWriter(text, list(rows[0]), delimiter="\t" if suffix == ".tsv" else ",")
        table.writeheader()
        table.writerows(rows)
    elif suffix == ".json":
        json.dump(rows, text, ensure_ascii=False)
    elif suffix == ".txt":
        text.writelines(row["text"] + "\n" for row in rows)
    else:
        text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if compressed else content)


def converted(
    source: str, file: str, change: Callable[[dict[str, Any]], dict[str, Any]], count: int = 400
) -> Callable[[Path, Path], None]:
    """Return a function that writes the first rows of a Parquet file, changed, in another format."""

    def write(shared: Path, folder: Path) -> None:
        rows = pq.read_table(shared / "data" / source).slice(0, count).to_pylist()
        write_table(folder / file, map(change, rows))

    return write


def _write_comments(shared: Path, folder: Path, *, several: bool = False) -> None:
    """GoEmotions' comments with one emotion, of which the rarest has 39 rows; several: all, a cell holds names."""
    names, column = (shared / "data/goemotions/labels.txt").read_text().split(), "emotions" if several else "label"
    for split in ("train", "dev", "test"):
        lines = (shared / f"data/goemotions/{split}.tsv").read_text(encoding="utf-8").splitlines()
        cells = ((text, label.split(",")) for text, label, _ in (line.split("\t") for line in lines))
        rows = (
            {"text": text, column: ", ".join(names[int(label)] for label in labels)}
            for text, labels in cells
            if several or len(labels) == 1
        )
        write_table(folder / f"comments/{split}.csv", rows)


def _write_pairs(shared: Path, folder: Path) -> None:
    """STS benchmark's pairs, whose files have no header."""
    names = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
    for split in ("train", "dev", "test"):
        lines = (shared / f"data/stsbenchmark/sts-{split}.csv").read_text(encoding="utf-8").splitlines()
        write_table(
            folder / f"pairs/{split}.jsonl", (dict(zip(names, line.split("\t"), strict=False)) for line in lines)
        )


def _write_tweets(shared: Path, folder: Path) -> None:
    """WNUT 2017's sentences as lines of text."""
    blocks = (shared / "data/wnut17/train.conll").read_text(encoding="utf-8").replace("\n\t\n", "\n\n").split("\n\n")
    tokens = ([line.split("\t")[0] for line in block.splitlines()] for block in blocks[:600])
    write_table(folder / "tweets.txt", ({"text": " ".join(words)} for words in tokens if words))


def _with_template(name: str) -> Callable[[Path, Path], None]:
    def write(shared: Path, folder: Path) -> None:
        tokenizer_in(folder / "chat", chat_template(name))

    return write


FROM_FILES = "data.split={}"
REVIEWS = ("data.source=SHARED/data/amazon_books", "data.text=[title, review_text]", "data.label=rating >= 4")
DOLLY = ("data.source=SHARED/data/dolly15k", "data.limit=400")
LONG = ("tokenize.max_length=64", "pack.chunk_length=64")
NO_EXPORT = "export.target=none"
STORIES = (
    "model.source=SHARED/assets/stories260K-hf", "model.config={}", "tokenize.train=null",
    "pack.chunk_length=256", "train.method=lora",
)  # fmt: skip
STOPPING = ("train.keep_best=true", "train.early_stopping_patience=2", "train.eval_every=4")

VARIANTS = {
    "emotions in three files": Sound("classify", ("data.source=SHARED/data/emotion", FROM_FILES)),
    "emotions by name, balanced": Sound(
        "classify",
        (
            "data.source=SHARED/data/emotion",
            "data.label=label_name",
            "data.splits={train: train, test: test}",
            "data.stratify=true",
            "data.dedupe=true",
            "train.class_weights=balanced",
            NO_EXPORT,
            *STOPPING,
        ),
    ),
    "reviews by a rule, in buckets": Sound("classify", (*REVIEWS, "pack.strategy=bucket", *LONG)),
    "films sorted by label": Sound(
        "classify",
        ("data.source=SHARED/data/imdb", "data.limit=300", "data.split={validation: 0.1}", NO_EXPORT, *LONG),
        DISTILBERT,
    ),
    "Amharic, byte pairs": Sound(
        "classify",
        (
            "data.source=SHARED/data/sentiment_amharic",
            FROM_FILES,
            "data.text=tweet",
            "tokenize.train.kind=bpe",
            "train.engine=xla",
            NO_EXPORT,
        ),
    ),
    "a vocabulary of BERT": Sound(
        "classify",
        (
            "data.source=rows.csv.gz",
            "model.tokenizer=SHARED/assets/bert-base-uncased",
            "tokenize.train=null",
            NO_EXPORT,
        ),
        BERT,
        converted(
            "emotion/train.parquet", "rows.csv.gz", lambda row: {"text": row["text"], "label": row["label_name"]}
        ),
    ),
    "categories of instructions": Sound(
        "classify", (*DOLLY, "data.text=instruction", "data.label=category", NO_EXPORT), MODERNBERT
    ),
    "comments of 28 emotions": Sound(
        "classify", ("data.source=comments", FROM_FILES, "train.label_smoothing=0.1", NO_EXPORT), write=_write_comments
    ),
    "comments of any number of emotions": Sound(
        "classify",
        (
            "data.source=comments",
            FROM_FILES,
            "data.label=null",
            "format.task=multi_label",
            "format.target=emotions",
            NO_EXPORT,
        ),
        write=partial(_write_comments, several=True),
    ),
    "pairs by a score": Sound(
        "classify",
        (
            "data.source=pairs",
            FROM_FILES,
            "data.text=[sentence1, sentence2]",
            "data.label=score >= 3",
            "data.ignore=[genre, file, year, id]",
            NO_EXPORT,
        ),
        write=_write_pairs,
    ),
    "a mixture of two sources": Sound(
        "classify",
        (
            "data.source=null",
            "data.text=text",
            "data.label=label",
            "data.labels=[neg, pos]",
            NO_EXPORT,
            "data.mix={films: {source: SHARED/data/imdb/test.parquet, weight: 3}, mine: {source: rows.csv, weight: 1}}",
            "data.limit=300",
        ),
    ),
    "Dolly": Sound("instruct", (*DOLLY, "data.ignore=[category]")),
    "Dolly as Alpaca, LoRA on stories": Sound(
        "instruct",
        ("data.source=rows.json", "format.style=alpaca", "format.response=output", NO_EXPORT, *STORIES),
        write=converted(
            "dolly15k/train.parquet",
            "rows.json",
            lambda row: {"instruction": row["instruction"], "input": row["context"], "output": row["response"]},
        ),
    ),
    "prompt and completion, in buckets": Sound(
        "instruct",
        (
            "data.source=rows.jsonl.gz",
            "format.prompt_template='{{ prompt }}'",
            "format.response=completion",
            "pack.strategy=bucket",
            NO_EXPORT,
        ),
        SMOLLM,
        converted(
            "dolly15k/train.parquet",
            "rows.jsonl.gz",
            lambda row: {"prompt": row["instruction"], "completion": row["response"]},
        ),
    ),
    "answers as plain texts, end to end": Sound(
        "instruct",
        (
            *DOLLY,
            "format.task=text",
            "data.text=response",
            "tokenize.overlong=split",
            "pack.strategy=concat",
            "train.optimizer=adafactor",
            NO_EXPORT,
        ),
    ),
    "a text file": Sound("instruct", ("data.source=tweets.txt", "format.task=text", NO_EXPORT), QWEN, _write_tweets),
    "four devices, tensor parallel": Sound(
        "instruct",
        (
            *DOLLY,
            "data.ignore=[category]",
            "train.engine=xla",
            "train.devices=4",
            "train.tensor_parallel_size=2",
            "train.zero1=true",
            "train.remat=true",
            NO_EXPORT,
        ),
    ),
    "bf16, accumulated": Sound(
        "instruct",
        (
            *DOLLY,
            "train.dtype=bfloat16",
            "train.micro_batch=2",
            "train.schedule=cosine",
            "pack.strategy=pad",
            NO_EXPORT,
        ),
    ),
    "calls of tools": Sound(
        "chat", ("data.source=SHARED/data/chat_tools", "format.messages=conversations", "format.chat_template=sections")
    ),
    "calls of tools by a template": Sound(
        "chat",
        (
            "data.source=SHARED/data/chat_tools",
            "format.messages=conversations",
            "model.tokenizer=chat",
            "tokenize.max_length=1024",
            "pack.chunk_length=1024",
            NO_EXPORT,
        ),
        QWEN | {"max_position_embeddings": 1024},
        _with_template("qwen3"),
    ),
    "answers marked good and bad": Sound(
        "chat",
        (
            "data.source=SHARED/data/preferences/kto_en_demo.json",
            "data.ignore=[label]",
            "format.turns=last",
            "format.bad_rows=drop",
            NO_EXPORT,
        ),
    ),
    "marked answers to whole conversations": Sound(
        "chat",
        (
            "data.source=SHARED/data/preferences/kto_en_demo.json",
            "data.columns={completion: messages, label: label}",
            "format.task=unpaired_preference",
            "format.bad_rows=drop",
            "train.objective=kto",
            "pack.chunk_length=512",
            NO_EXPORT,
        ),
        MODEL | {"max_position_embeddings": 512},
    ),
}


class Cell(NamedTuple):
    """A recipe of the grid. split: where the splits come from; model: its number; settings: what else it changes."""

    kind: str
    model: int
    suffix: str
    split: str
    settings: tuple[str, ...]

    def __str__(self) -> str:
        return "-".join((self.kind, str(self.model), self.suffix, self.split, *self.settings))


MODELS = {
    "classify": [BERT, DISTILBERT, MODERNBERT],
    **{kind: [MODEL, QWEN, SMOLLM] for kind in ("instruct", "chat", "text")},
}
FILES = {
    **dict.fromkeys(("classify", "instruct"), ("csv", "tsv", "jsonl", "json", "parquet", "csv.gz")),
    "text": ("csv", "txt", "jsonl", "txt.gz", "parquet", "tsv"),
    "chat": ("jsonl", "json", "parquet", "jsonl.gz"),
}
ENGINES = ("train.engine=native", "train.engine=xla")
EXPORTS = (NO_EXPORT, "export.target=stablehlo", NO_EXPORT)
METHODS = (
    "train.method=full",
    "train.schedule=cosine",
    "train.dtype=bfloat16",
    "train.optimizer=adafactor",
    "train.remat=true",
)
# of lengths without a common divisor, so that the product meets all combinations in turn


def _grid() -> list[Cell]:
    cells = []
    for kind, suffixes in FILES.items():
        strategies = ("pad", "bucket") if kind == "classify" else ("bfd", "concat", "pad", "bucket")
        for number, (model, suffix, split) in enumerate(product(range(3), suffixes, ("hash", "files", "none"))):
            settings = [
                ENGINES[number % 2], EXPORTS[number // 2 % 3], METHODS[number % 5],
                f"pack.strategy={strategies[number // 3 % len(strategies)]}",
            ]  # fmt: skip
            if split != "none" and number % 4 < 2:
                settings.append("train.keep_best=true")
            cells.append(Cell(kind, model, suffix, split, tuple(settings)))
    return cells


GRID = _grid()


def rows_of(kind: str, count: int, word: str) -> list[dict[str, Any]]:
    if kind == "classify":
        return [{"text": f"{word} {text}", "label": WORDS[n % 3]} for n, text in enumerate(texts(count))]
    if kind == "chat":
        return [talk(n, ("user", f"{word} {n}?"), ("assistant", f"It is {n}.")) for n in range(count)]
    if kind == "text":
        return [{"text": f"{word} {text}."} for text in texts(count)]
    return [{"instruction": f"{word} {text}", "response": f"Yes, {text}."} for text in texts(count)]


def write_variant(folder: Path, shared: Path, sound: Sound) -> list[str]:
    """Write a sound recipe on real data, `mine.yaml`; return its overrides."""
    write_sound(folder, sound.kind)
    sound.write(shared, folder)
    _change(folder, config=sound.config)
    return [override.replace("SHARED", str(shared)) for override in sound.overrides]


def write_cell(folder: Path, cell: Cell) -> list[str]:
    """Write a recipe of the grid, `mine.yaml`, and its rows; return its overrides."""
    base = "instruct" if cell.kind == "text" else cell.kind
    write_sound(folder, base)
    for name in ("train", "validation", "test") if cell.split == "files" else ("train",):
        write_table(folder / f"rows/{name}.{cell.suffix}", rows_of(cell.kind, 60, name))
    _change(folder, config=MODELS[cell.kind][cell.model])
    task = ["format.task=text"] if cell.kind == "text" else []
    split = [] if cell.split == "hash" else ["data.split=null"]  # {} would allow no test split
    return ["data.source=rows", *task, *split, *cell.settings]


def _change(folder: Path, config: dict[str, Any] | None) -> None:
    file = folder / "mine.yaml"
    recipe = json.loads(file.read_text())
    if config is not None:
        recipe["model"]["config"] = config
    file.write_text(json.dumps(recipe))
