"""Faults of recipes, data and machines, each planted into a small sound one: all thirty kinds of docs/rehearse.md."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.chats import tokenizer_in
from tests.helpers.s3_proxy import proxy_of
from tests.helpers.s3_server import new_bucket, start_server
from tests.helpers.small_disk import small_disk

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITHOUT_USER = "{% for m in messages if m.role != 'user' %}" + CHATML.split("%}", 1)[1]
LAST_QUESTION = "{% set messages = messages[-2:] if messages[-1].role == 'assistant' else messages[-1:] %}" + CHATML
USER_FIRST = "{% if messages[0].role != 'user' %}{{ raise_exception('must begin with the user') }}{% endif %}" + CHATML
SHORT_QUESTION = CHATML.replace("m.content }}", "m.content[:9] if m.role == 'user' else m.content }}")
MODEL = {
    "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 256,
}  # fmt: skip
SPLIT = {"validation": 0.2, "test": 0.2}
CLASSIFY = {
    "extends": ["demo", "base/hardware/cpu"],
    "data": {"source": "rows.csv", "name": None, "text": "text", "label": "label", "split": SPLIT},
    "model": {"config": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}},
    "tokenize": {"train": {"vocab_size": 300}},
    "train": {"global_batch": 8},
    "store": {"min_free_gb": 0},
}
INSTRUCT = {
    "extends": ["demo-llm", "base/hardware/cpu"],
    "data": {"source": "answers.jsonl", "name": None, "split": SPLIT},
    "model": {"config": MODEL},
    "tokenize": {"train": {"vocab_size": 400}, "max_length": 256},
    "pack": {"chunk_length": 256},
    "store": {"min_free_gb": 0},
}
CHAT = INSTRUCT | {
    "data": {"source": "chats.jsonl", "name": None, "split": SPLIT},
    "format": {"task": "chat"},
    "model": {"config": MODEL, "tokenizer": "tokenizer"},
    "tokenize": {"train": None, "max_length": 256},
}
RECIPES = {"classify": CLASSIFY, "chat": CHAT, "instruct": INSTRUCT}
WORDS = ("amber", "birch", "cedar", "dune", "ember", "fjord", "grove")


def texts(count: int) -> list[str]:
    return [f"number {n} is {WORDS[n % 7]} and {WORDS[n * n % 5]}" for n in range(count)]


def write_rows(
    folder: Path, rows: Iterable[Iterable[object]], name: str = "rows.csv", head: str = "text,label"
) -> None:
    (folder / name).write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")


def write_lines(folder: Path, name: str, rows: Iterable[object]) -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def talk(n: int, *turns: tuple[str, Any]) -> dict[str, Any]:
    turns = turns or (
        ("user", f"What is number {n}?"), ("assistant", f"It is {WORDS[n % 7]}."),
        ("user", f"And after {n}?"), ("assistant", f"Then {n + 1} comes."),
    )  # fmt: skip
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def write_sound(folder: Path, kind: str) -> None:
    """Write `mine.yaml` and its data: a recipe without a fault."""
    (folder / "mine.yaml").write_text(json.dumps(RECIPES[kind]))
    if kind == "classify":
        write_rows(folder, ((text, ("pos", "neg")[n % 2]) for n, text in enumerate(texts(60))))
    elif kind == "chat":
        tokenizer_in(folder / "tokenizer", CHATML)
        write_lines(folder, "chats.jsonl", map(talk, range(60)))
    else:
        write_lines(folder, "answers.jsonl", ({"instruction": text, "response": f"Yes, {text}."} for text in texts(60)))


def labels(label: Callable[[int], object], count: int = 60) -> Callable[[Path], None]:
    """Return a function that writes other labels."""
    return lambda folder: write_rows(folder, ((text, label(n)) for n, text in enumerate(texts(count))))


def rows(
    change: Callable[[list[tuple[str, str]]], Iterable[Iterable[object]]], head: str = "text,label"
) -> Callable[[Path], None]:
    return lambda folder: write_rows(
        folder, change([(text, ("pos", "neg")[n % 2]) for n, text in enumerate(texts(60))]), head=head
    )


def talks(change: Callable[[int], object]) -> Callable[[Path], None]:
    return lambda folder: write_lines(folder, "chats.jsonl", map(change, range(60)))


def answers(change: Callable[[int, str], object]) -> Callable[[Path], None]:
    return lambda folder: write_lines(folder, "answers.jsonl", (change(n, text) for n, text in enumerate(texts(60))))


def template(text: str | None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for file in (folder / "tokenizer").iterdir():
            file.unlink()
        tokenizer_in(folder / "tokenizer", text)

    return write


def without(*roles: str) -> Callable[[Path], None]:
    """Return a function that takes special tokens out of the tokenizer's settings."""

    def change(folder: Path) -> None:
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            file = folder / "tokenizer" / name
            if file.exists():
                settings = json.loads(file.read_text())
                file.write_text(json.dumps({key: value for key, value in settings.items() if key not in roles}))

    return change


def content(name: str, data: bytes) -> Callable[[Path], None]:
    """Return a function that writes a file."""

    def write(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return write


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def _with_pad(folder: Path) -> None:
    file = folder / "tokenizer/tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token": "<s>"}))


def pretrained(**settings: object) -> Callable[[Path], None]:
    """Return a function that writes a folder of a model whose weights are one tensor."""

    def write(folder: Path) -> None:
        import numpy as np
        from safetensors.numpy import save_file

        tokenizer_in(folder / "base", CHATML)
        (folder / "base/config.json").write_text(
            json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": 300, **MODEL, **settings})
        )
        save_file({"model.norm.weight": np.ones(16, np.float32)}, folder / "base/model.safetensors", {"format": "pt"})

    return write


def split_files(**splits: Mapping[str, object]) -> Callable[[Path], None]:
    """Return a function that writes a folder with one file a split: {text: label}."""

    def write(folder: Path) -> None:
        (folder / "files").mkdir()
        for name, found in splits.items():
            write_lines(folder, f"files/{name}.jsonl", ({"text": key, "label": value} for key, value in found.items()))

    return write


def named(values: Iterable[object], word: str = "") -> dict[str, object]:
    return {f"{word} number {n} is {WORDS[n % 7]}": value for n, value in enumerate(values)}


@contextmanager
def small_files(folder: Path) -> Iterator[None]:
    """Let no process write a file of more than 400 KB (`ulimit -f`)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    os.environ["TEST_FILES"] = "small"  # so that the stages are forked from a process that has the limit, too
    try:
        yield
    finally:
        del os.environ["TEST_FILES"]
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def disk(size: int, *options: str) -> Callable[[Path], AbstractContextManager[object]]:
    """Return a context in which `disk` in the folder is a disk of `size` bytes. options: to remount it with."""

    @contextmanager
    def mounted(folder: Path) -> Iterator[None]:
        with small_disk(folder / "disk", size) as place:
            if options:
                subprocess.run(["mount", "-o", ",".join(("remount", *options)), str(place)], check=True)
            yield

    return mounted


def denied(*troubles: dict[str, object]) -> Callable[[Path], AbstractContextManager[object]]:
    """Return a context in which S3 has the bucket `rehearsed` and answers as tests.helpers.s3_proxy says."""

    @contextmanager
    def refusing(folder: Path) -> Iterator[None]:
        import boto3
        import fsspec.config

        endpoint = start_server()
        new_bucket(endpoint, "rehearsed")
        boto3.resource("s3", endpoint_url=endpoint).Bucket("rehearsed").objects.delete()
        (folder / "troubles.json").write_text(json.dumps(troubles))
        before = dict(fsspec.config.conf)
        with proxy_of(endpoint, folder / "troubles.json") as url:
            fsspec.config.conf["s3"] = {"endpoint_url": url, "config_kwargs": {"retries": {"max_attempts": 1}}}
            os.environ["AWS_ENDPOINT_URL"] = url  # for the processes of the stages
            try:
                yield
            finally:
                os.environ["AWS_ENDPOINT_URL"] = endpoint
                fsspec.config.conf.clear()
                fsspec.config.conf.update(before)

    return refusing


@contextmanager
def dead_s3(folder: Path) -> Iterator[None]:
    """Let S3 be at a port where nothing listens."""
    import fsspec.config

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    before = dict(fsspec.config.conf)
    keys = {"key": "testing", "secret": "testing"}
    fsspec.config.conf["s3"] = {**keys, "endpoint_url": url, "config_kwargs": {"retries": {"max_attempts": 1}}}
    try:
        yield
    finally:
        fsspec.config.conf.clear()
        fsspec.config.conf.update(before)


class Fault(NamedTuple):
    """A planted fault.

    Attributes:
        number: Of the kind, as the list in docs/rehearse.md has it.
        kind: The sound recipe that it is planted in.
        overrides: Of the recipe.
        words: In the message that must tell it, or its fix.
        plant: Changes the sound files.
        around: Changes the machine while the recipe is rehearsed or run.
        remark: Whether it is a remark, and the exit code 0.
    """

    number: int
    kind: str
    overrides: tuple[str, ...]
    words: str
    plant: Callable[[Path], None] = lambda folder: None
    remark: bool = False
    around: Callable[[Path], AbstractContextManager[object]] = nullcontext


AB = [("a", "b")[n % 2] for n in range(40)]
FILES = ("data.source=files", "data.split={}", "tokenize.train.vocab_size=200")
BASE = ("model.source=base", "model.tokenizer=base", "model.config={}")
NONE = ("data.label=null", "data.text=null")

DATA = {
    "no test split": Fault(1, "classify", ("data.split={}",), "no rows in its test split"),
    "a folder without test": Fault(1, "classify", FILES, "no rows in its test split", split_files(train=named(AB))),
    "judged on a split that is not made": Fault(
        1, "classify", ("data.split.validation=null", "evaluate.split=validation"), "no rows in its validation split"
    ),
    "no validation for keep_best": Fault(
        2,
        "classify",
        ("data.split.validation=null", "train.keep_best=true"),
        "on the validation split, which has no rows",
    ),
    "no validation for early stopping": Fault(
        2,
        "instruct",
        ("data.split.validation=null", "train.early_stopping_patience=2", "train.keep_best=true"),
        "on the validation split",
    ),
    "a label misspelled": Fault(3, "classify", ("data.label=labl",), "no column labl"),
    "a rule on no column": Fault(3, "classify", ("data.label=rating >= 4",), "no column rating"),
    "no label": Fault(3, "classify", ("data.label=null",), "data.label"),
    "label in another case": Fault(3, "classify", ("data.label=Label",), "no column Label"),
    "fractions as classes": Fault(4, "classify", (), "is a fraction", labels(lambda n: n / 7)),
    "scores of 0 to 100": Fault(4, "classify", (), "as of a score", labels(lambda n: n % 30 + 20, 240)),
    "an id as the class": Fault(4, "classify", (), "most occur once", labels(lambda n: f"item-{n}")),
    "years as classes": Fault(4, "classify", (), "as of a score", labels(lambda n: 1960 + n % 25, 200)),
    "a class of one row": Fault(
        5,
        "classify",
        ("data.split={}", "data.source=files"),
        "c has one row in train",
        plant=split_files(train=named(["c", *AB]), test=named(AB, "test")),
    ),
    "two classes of one row": Fault(
        5,
        "classify",
        ("data.split={}", "data.source=files"),
        "c and d have one row each",
        plant=split_files(train=named(["c", "d", *AB]), test=named(AB, "test")),
    ),
    "only one class": Fault(5, "classify", (), "all rows of train are labelled pos", labels(lambda n: "pos")),
    "a test label of which train has no row": Fault(
        6,
        "classify",
        (*FILES, "data.labels=[a, b, c]"),
        "test has labels of which train has no row: c",
        remark=True,
        plant=split_files(train=named(AB), test=named(["c", *AB], "test")),
    ),
    "a test label outside the set": Fault(
        6, "classify", FILES, "is outside the label set", split_files(train=named(AB), test=named(["c", *AB], "test"))
    ),
    "an empty text": Fault(7, "classify", (), "row", rows(lambda r: [*r, ("", "pos")])),
    "a blank text": Fault(7, "classify", (), "row", rows(lambda r: [*r, ("   ", "pos")])),
    "a missing label": Fault(7, "classify", (), "row", rows(lambda r: [*r, ("a text", "")])),
    "a null in JSON": Fault(
        7, "classify", FILES, "row", split_files(train={**named(AB), "more": None}, test=named(AB, "test"))
    ),
    "identifiers as the text": Fault(
        8,
        "classify",
        ("data.text=id",),
        "holds identifiers",
        plant=rows(lambda r: [(f"ab-{n:04}", *row) for n, row in enumerate(r)], "id,text,label"),
    ),
    "numbers as the text": Fault(
        8,
        "classify",
        ("data.text=price",),
        "holds numbers",
        plant=rows(lambda r: [(n * 1.5, *row) for n, row in enumerate(r)], "price,text,label"),
    ),
    "the text as the label": Fault(8, "classify", ("data.label=text", "data.text=label"), "name of the label column"),
    "a text column misspelled": Fault(8, "classify", ("data.text=txt",), "no column txt"),
    "an answer column misspelled": Fault(8, "instruct", ("format.response=answer",), "no column answer"),
    "an input that nothing reads": Fault(
        9,
        "instruct",
        (),
        "column input is not used",
        remark=True,
        plant=answers(lambda n, text: {"instruction": text, "input": f"about {n}", "response": f"Yes, {n}."}),
    ),
    "tools under another name": Fault(
        9,
        "chat",
        (),
        "column actions is not used",
        remark=True,
        plant=talks(lambda n: {**talk(n), "actions": [{"name": f"f{n}"}]}),
    ),
    "rows of train in test": Fault(
        10, "classify", FILES, "texts shared by splits", split_files(train=named(AB), test=named(AB)), remark=True
    ),
    "a test file that repeats some of train": Fault(
        10,
        "classify",
        FILES,
        "texts shared by splits",
        remark=True,
        plant=split_files(train=named(AB), test={**named(AB, "test"), **named(AB[:3])}),
    ),
    "some empty answers": Fault(
        11,
        "instruct",
        (),
        "rows left out of the sample",
        remark=True,
        plant=answers(lambda n, text: {"instruction": text, "response": "" if n % 5 == 1 else f"Yes, {n}."}),
    ),
    "chats without an answer": Fault(
        11,
        "chat",
        (),
        "rows left out of the sample",
        remark=True,
        plant=talks(lambda n: talk(n, ("user", f"Hello {n}")) if n % 4 == 1 else talk(n)),
    ),
    "some blank answers in chats": Fault(
        11,
        "chat",
        (),
        "answers are blank in",
        talks(lambda n: talk(n, ("user", f"Is it {n}?"), ("assistant", " " if n % 4 == 1 else "Yes"))),
        remark=True,
    ),
    "all answers empty": Fault(
        11, "instruct", (), "is empty", answers(lambda n, text: {"instruction": text, "response": ""})
    ),
    "an unknown role": Fault(
        12,
        "chat",
        (),
        "has the role 'bot2'",
        talks(lambda n: talk(n, ("user", f"Hi {n}"), ("bot2" if n > 40 else "assistant", "Hi"))),
    ),
    "a chat that begins with the assistant": Fault(
        12,
        "chat",
        (),
        "must begin with the user",
        plant=both(
            template(USER_FIRST),
            talks(
                lambda n: talk(
                    n, *([("assistant", "Hello")] if n == 33 else []), ("user", f"{n}?"), ("assistant", "Yes")
                )
            ),
        ),
    ),
    "a role in capitals": Fault(
        12, "chat", (), "has the role 'User'", talks(lambda n: talk(n, ("User", f"Hi {n}"), ("assistant", "Hi")))
    ),
    "a turn that is a list": Fault(
        12,
        "chat",
        ("format.chat_template=sections",),
        "message",
        talks(lambda n: talk(n, ("user", [{"type": "text", "text": f"Hi {n}"}]), ("assistant", "Hi"))),
    ),
    "another encoding": Fault(
        13,
        "classify",
        (),
        "rows.csv",
        content("rows.csv", b"text,label\n" + "Größe ja,pos\nGröße nein,neg\n".encode("latin-1") * 20),
    ),
    "UTF-16": Fault(
        13,
        "classify",
        (),
        "rows.csv",
        content("rows.csv", ("text,label\n" + "some text,pos\nother text,neg\n" * 20).encode("utf-16")),
    ),
    "a file without rows": Fault(14, "classify", (), "rows.csv", content("rows.csv", b"text,label\n")),
    "an empty file": Fault(14, "classify", (), "rows.csv", content("rows.csv", b"")),
    "an empty JSON file": Fault(14, "instruct", (), "answers.jsonl", content("answers.jsonl", b"")),
}

TEXTS = {
    "no chat template": Fault(15, "chat", (), "no chat template", template(None)),
    "a template without the user's turns": Fault(16, "chat", (), "is missing in the text", template(WITHOUT_USER)),
    "a template of the last question alone": Fault(16, "chat", (), "format.chat_template", template(LAST_QUESTION)),
    "a template that cuts questions": Fault(16, "chat", (), "is missing in the text", template(SHORT_QUESTION)),
    "a tokenizer without pad and eos": Fault(
        17, "chat", (), "neither a pad nor an eos", without("eos_token", "pad_token")
    ),
    "a tokenizer without eos": Fault(
        17, "chat", ("format.chat_template=sections",), "has no eos token", plant=both(without("eos_token"), _with_pad)
    ),
    "rows that are too long": Fault(
        18,
        "instruct",
        ("tokenize.max_length=16", "pack.chunk_length=16"),
        "longer than tokenize.max_length",
        remark=True,
    ),
    "a text cut to its first words": Fault(
        18,
        "classify",
        ("tokenize.max_length=8", "tokenize.overlong=truncate"),
        "longer than tokenize.max_length",
        remark=True,
    ),
    "one row too long": Fault(
        18,
        "classify",
        ("tokenize.overlong=error",),
        "more than tokenize.max_length",
        rows(lambda r: [*r, ("amber " * 300, "pos")]),
    ),
    "more tokens than positions": Fault(
        19, "classify", ("pack.chunk_length=128", "tokenize.max_length=128"), "64 positions"
    ),
    "buckets above the positions": Fault(
        19,
        "instruct",
        ("pack.strategy=bucket", "pack.lengths=[128, 512]", "tokenize.max_length=512", "pack.chunk_length=512"),
        "256 positions",
        answers(lambda n, text: {"instruction": "Say it.", "response": text * 60}),
    ),
    "answers behind the cut": Fault(
        20,
        "instruct",
        ("tokenize.max_length=16", "pack.chunk_length=16"),
        "is empty",
        answers(lambda n, text: {"instruction": text * 9, "response": "Yes."}),
    ),
    "blank answers in chats": Fault(
        20, "chat", (), "are blank in all rows", talks(lambda n: talk(n, ("user", f"Is it {n}?"), ("assistant", " ")))
    ),
    "a template of a row that raises": Fault(
        21, "instruct", ("format.prompt_template='{{ instruction.foo.bar }}'",), "prompt_template"
    ),
    "a template that is no Jinja": Fault(
        21, "chat", ("format.chat_template='{% for m in %}'",), "format.chat_template"
    ),
}

NO_PROMPT = (
    CHATML.split("{% if add")[0] + "{% if add_generation_prompt %}{{ raise_exception('no prompt here') }}{% endif %}"
)
S3 = ("store.root=s3://rehearsed/store",)
ALL = "GET HEAD PUT POST DELETE"
PUT_DENIED = {"methods": "PUT POST", "status": 403, "code": "AccessDenied"}

RUNNING = {
    "a loss that is not finite": Fault(22, "classify", ("model.config.initializer_range=1.0e+30",), "loss nan"),
    "weights that lack tensors": Fault(25, "chat", BASE, "the largest tensor in its weights has 16 rows", pretrained()),
    "an architecture that nothing knows": Fault(25, "chat", BASE, "martian", pretrained(model_type="martian")),
    "an export that is not exact enough": Fault(24, "classify", ("export.tolerance=1.0e-12",), "export.tolerance"),
    "a checkpoint larger than files may be": Fault(
        23,
        "classify",
        ("model.config.hidden_size=128", "model.config.intermediate_size=256"),
        "File too large",
        around=small_files,
    ),
    "S3 that denies writing checkpoints": Fault(
        23, "classify", S3, "partial", around=denied({**PUT_DENIED, "part": "/partial/"})
    ),
    "S3 that denies reading checkpoints": Fault(
        23, "classify", S3, "partial", around=denied({**PUT_DENIED, "methods": "GET", "part": "/partial/"})
    ),
    "a template that raises for a prompt": Fault(
        26, "chat", ("evaluate.generation.prompts=0",), "no prompt here", template(NO_PROMPT)
    ),
    "a template that raises for an evaluation's prompt": Fault(26, "chat", (), "no prompt here", template(NO_PROMPT)),
    "a disk too small": Fault(28, "classify", ("store.root=disk",), "free on the disk", around=disk(500_000)),
    "a disk that must stay emptier than it is": Fault(
        28, "classify", ("store.min_free_gb=1.0e+9",), "store.min_free_gb"
    ),
    "too little memory": Fault(27, "classify", ("train.device_memory_gib=0.001",), "training needs about"),
    "a store that is a file": Fault(29, "classify", ("store.root=taken",), "taken", content("taken", b"x")),
    "a store that can only be read": Fault(29, "classify", ("store.root=disk",), "disk", around=disk(9_000_000, "ro")),
    "S3 that denies writing": Fault(29, "classify", S3, "AccessDenied", around=denied(PUT_DENIED)),
    "S3 that denies everything": Fault(
        29, "classify", S3, "s3://rehearsed", around=denied({**PUT_DENIED, "methods": ALL})
    ),
    "S3 that does not answer": Fault(29, "classify", S3, "s3://rehearsed", around=dead_s3),
    "no bucket": Fault(29, "classify", ("store.root=s3://nobodys/store",), "bucket", around=denied()),
    "no hub": Fault(
        30, "classify", ("model.source=nobody/nothing", "model.config={}", "tokenize.train=null"), "model.source"
    ),
    "a data set that the hub lacks": Fault(30, "classify", ("data.source=nobody/nothing",), "data.source"),
}

FAULTS = {**DATA, **TEXTS, **RUNNING}
