from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.helpers.data_stages import Bench, files, table
from trnflow.tasks.artifact import Artifact, Input, Source
from trnflow.tasks.data.tokenization.arrays import GrowingArray
from trnflow.tasks.data.tokenization.config import TokenizeConfig
from trnflow.tasks.data.tokenization.encoders import trained_tokens
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.errors import ConfigError, DataError, ModelError
from trnflow.tasks.stage import stage_of, write_json
from trnflow.tasks.tokenize_text import tokenize_text

LLAMA = "assets/stories260K-hf"
BERT = "assets/bert-base-uncased"
SCRATCH = {"config": {"model_type": "bert"}}


def texts_of(bench: Bench, columns: dict[str, list], splits: dict[str, list] | None = None, **format) -> Input:
    """Texts made by the stages before from a few rows; further splits as columns too."""
    folder = bench.workdir().path
    for split, content in {"train": columns, **(splits or {})}.items():
        rows = [dict(zip(content, values, strict=True)) for values in zip(*content.values(), strict=True)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    label = {"label": "label"} if "label" in columns else {}
    return bench.texts(bench.rows(source=str(folder), **label), **format)


def instructions(bench: Bench, *pairs: tuple[str, str]) -> Input:
    columns = {"instruction": [a for a, _ in pairs], "response": [b for _, b in pairs]}
    return texts_of(bench, columns, task="instruction")


def rows(tokens: Input, split: str, name: str = "input_ids") -> list[list[int]]:
    offsets = np.load(tokens.path / split / "offsets.npy")
    values = np.load(tokens.path / split / f"{name}.npy", allow_pickle=False)
    return [values[a:b].tolist() for a, b in pairwise(offsets)]


def tokenizer_of(tokens: Input) -> Tokenizer:
    return Tokenizer.from_file(str(tokens.path / "tokenizer/tokenizer.json"))


# --- classification


def test_emotion_with_a_bare_vocabulary(bench, shared):
    texts = bench.texts(bench.rows(source=str(shared / "data/emotion"), label="label", limit=1500))
    tokens = bench.tokens(texts, {**SCRATCH, "tokenizer": str(shared / BERT)}, max_length=128)
    meta = tokens.meta
    assert (meta["pad_id"], meta["bos_id"], meta["eos_id"], meta["vocab_size"]) == (0, None, None, 30522)
    assert meta["splits"] == {"train": 1500, "validation": 1500, "test": 1500}
    made = rows(tokens, "train")
    assert all(row[0] == 101 and row[-1] == 102 for row in made)
    assert meta["tokens"]["train"] == sum(map(len, made))
    assert meta["longest"] == max(len(row) for split in meta["splits"] for row in rows(tokens, split))

    source = table(texts, "train")
    assert np.load(tokens.path / "train/labels.npy").tolist() == source["label"]
    assert tokenizer_of(tokens).decode(made[7]) == source["text"][7]


def test_cut_texts_keep_their_frame_and_are_counted(bench, shared):
    texts = texts_of(bench, {"text": ["one two three four five", "one"], "label": ["a", "b"]})
    tokens = bench.tokens(texts, {**SCRATCH, "tokenizer": str(shared / BERT)}, max_length=4)
    assert [[row[0], row[-1], len(row)] for row in rows(tokens, "train")] == [[101, 102, 4], [101, 102, 3]]
    assert tokens.meta["overlong"] == {"train": 1}
    assert tokens.meta["longest"] == 4


def test_overlong_texts_dropped_refused_or_not_split(bench, shared):
    model = {**SCRATCH, "tokenizer": str(shared / BERT)}
    texts = texts_of(bench, {"text": ["one two three", "one"], "label": ["a", "b"]})
    tokens = bench.tokens(texts, model, max_length=3, overlong="drop")
    assert tokens.meta["splits"] == {"train": 1}
    assert tokens.meta["dropped"] == {"overlong": 1}
    assert np.load(tokens.path / "train/labels.npy").tolist() == [1]
    with pytest.raises(DataError, match=r"split train row 1: 5 tokens, more than tokenize\.max_length 3"):
        bench.tokens(texts, model, max_length=3, overlong="error")
    with pytest.raises(ConfigError, match="can't be split"):
        bench.tokens(texts, model, max_length=3, overlong="split")
    with pytest.raises(DataError, match="the split train is empty"):
        bench.tokens(texts, model, max_length=2, overlong="drop")


# --- causal


def test_dolly_tokenises_as_at_inference_and_trains_on_the_answer(bench, shared):
    texts = bench.texts(bench.rows(source=str(shared / "data/dolly15k"), limit=300), task="instruction")
    tokens = bench.tokens(texts, {"source": str(shared / LLAMA)}, max_length=4096)
    assert (tokens.meta["pad_id"], tokens.meta["bos_id"], tokens.meta["eos_id"]) == (2, 1, 2)
    tokenizer = tokenizer_of(tokens)

    made = zip(table(texts, "train")["parts"], rows(tokens, "train"), rows(tokens, "train", "loss_mask"), strict=True)
    for (prompt, answer), ids, mask in made:
        assert ids == [*tokenizer.encode(prompt["text"] + answer["text"]).ids, 2]
        trained = [token for token, train in zip(ids, mask, strict=True) if train]
        assert trained[-1] == 2 and mask == sorted(mask)
        assert tokenizer.decode(trained) == answer["text"]


def test_a_prompt_that_fills_the_row_teaches_nothing(bench, shared):
    texts = instructions(bench, ("long " * 100, "yes"), ("a", "b"))
    tokens = bench.tokens(texts, {"source": str(shared / LLAMA)}, max_length=48)
    assert tokens.meta["dropped"] == {"unsupervised": 1}
    assert tokens.meta["splits"] == {"train": 1}
    assert "dropped: 1 (1 of the 2 of train;" in bench.warnings()[-1]
    assert (tokens.meta["truncated"], tokens.meta["unsupervised"]) == ({"train": 1}, {"train": 1})
    assert tokens.meta["metrics"]["rows_truncated"] == tokens.meta["metrics"]["rows_unsupervised"] == 1


@pytest.mark.parametrize(
    ("overlong", "truncated", "unsupervised"), [("truncate", 2, 1), ("drop", 0, 0), ("split", 0, 0)]
)
def test_rows_that_are_lost_are_counted_by_split(bench, shared, overlong: str, truncated: int, unsupervised: int):
    columns = {"instruction": ["long " * 100, "a", "why"], "response": ["yes", "b", "because " * 100]}
    texts = texts_of(bench, columns, {"test": {"instruction": ["a"], "response": ["b"]}}, task="instruction")
    tokens = bench.tokens(texts, {"source": str(shared / LLAMA)}, max_length=48, overlong=overlong)
    assert tokens.meta["truncated"] == {"train": truncated, "test": 0}
    assert tokens.meta["unsupervised"] == {"train": unsupervised, "test": 0}
    assert ("rows_truncated" in tokens.meta["metrics"]) == (truncated > 0)


def test_eos_only_when_asked(bench, shared):
    texts = instructions(bench, ("a", "b"))
    tokens = bench.tokens(texts, {"source": str(shared / LLAMA)}, add_eos=False)
    assert 2 not in rows(tokens, "train")[0]


def character_tokenizer(folder: Path, special: dict[str, str], bos: bool = False) -> Path:
    """One token a character; the special ones that are asked for."""
    folder.mkdir()
    characters = [chr(code) for code in range(32, 127)] + ["\n"]
    names = list(special.values())
    tokenizer = Tokenizer(models.WordLevel({name: n for n, name in enumerate([*names, *characters])}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(names)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", special)
    return folder


def test_no_bos_where_the_tokenizer_puts_none(bench, tmp_path):
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    texts = instructions(bench, ("a", "b"))
    for bos in (False, True):
        folder = character_tokenizer(tmp_path / str(bos), special, bos)
        tokens = bench.tokens(texts, {**SCRATCH, "tokenizer": str(folder)})
        assert (rows(tokens, "train")[0][0] == 0) is bos
        assert rows(tokens, "train")[0][-1] == tokens.meta["pad_id"] == tokens.meta["eos_id"] == 1


def test_neither_pad_nor_eos(bench, tmp_path):
    folder = character_tokenizer(tmp_path / "bare", {"bos_token": "<s>"})
    with pytest.raises(ModelError, match=r"the tokenizer bare has neither a pad nor an eos token.*Fix: name one"):
        bench.tokens(instructions(bench, ("a", "b")), {**SCRATCH, "tokenizer": str(folder)})


def test_folders_without_a_readable_tokenizer(bench, tmp_path):
    texts = instructions(bench, ("a", "b"))
    with pytest.raises(ModelError, match="has no tokenizer"):
        bench.tokens(texts, SCRATCH)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/tokenizer.model").write_bytes(b"sentencepiece")
    with pytest.raises(ModelError, match=r"neither tokenizer\.json nor vocab\.txt"):
        bench.tokens(texts, {**SCRATCH, "tokenizer": str(tmp_path / "odd")})
    (tmp_path / "odd/tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"odd/tokenizer\.json can't be read"):
        read_tokenizer(tmp_path / "odd")


def test_own_truncation_and_padding_of_a_tokenizer_are_not_ours(bench, tmp_path):
    folder = character_tokenizer(tmp_path / "short", {"eos_token": "</s>"})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = bench.tokens(instructions(bench, ("a", "b" * 30)), {**SCRATCH, "tokenizer": str(folder)})
    assert len(rows(tokens, "train")[0]) == len("### Instruction\na\n\n### Answer\n") + 31


# --- the key


def test_key_takes_the_tokenizer_alone():
    texts = Artifact("sha256:texts", "texts", {}, ())
    model = Source(
        "model", {"config": {"a": 1}, "tokenizer": {"files": {"tokenizer.json": "sha256:t"}}, "weights": "w"}
    )
    inputs = {"texts": texts, "model": model}
    expected = {"texts": "sha256:texts", "model": {"tokenizer": {"files": {"tokenizer.json": "sha256:t"}}}}
    assert stage_of(tokenize_text).inputs(TokenizeConfig(), inputs) == expected
    trained = stage_of(tokenize_text).inputs(TokenizeConfig(train={"kind": "bpe"}), inputs)
    assert trained["model"] == {"tokenizer": None}
    inputs["model"] = Source("model", {**model.identity, "config": {"pretrained": {"vocab_size": 9}, "overrides": {}}})
    assert stage_of(tokenize_text).inputs(TokenizeConfig(), inputs)["model"] == {**expected["model"], "vocab_size": 9}


def test_more_ids_than_the_model_takes(bench, tmp_path):
    folder = character_tokenizer(tmp_path / "model", {"eos_token": "</s>"})
    texts = instructions(bench, ("a", "b"))
    padded = {"vocab_size": 128}
    for config, fits in (({"vocab_size": 97}, True), (padded, True), ({"text_config": {"vocab_size": 96}}, False)):
        write_json(folder / "config.json", {"model_type": "llama", **config})
        if fits:
            assert bench.tokens(texts, {"source": str(folder)}).meta["vocab_size"] == 97
        else:
            with pytest.raises(ModelError, match=r"the tokenizer model has ids up to 96, and the model takes 96"):
                bench.tokens(texts, {"source": str(folder)})


# --- what is told


def test_an_overlong_row_is_told_with_its_text(bench, shared):
    texts = instructions(bench, ("a", "b"), ("Why?", "because " * 500), ("Who?", "me " * 900))
    for overlong, verb in (("truncate", "cut"), ("drop", "dropped")):
        tokens = bench.tokens(texts, {"source": str(shared / LLAMA)}, overlong=overlong)
        said = f"rows longer than 512 tokens, {verb}: 2 of train (the first: split train row 2:"
        assert sum(said in warning for warning in bench.warnings()) == 1
        example = tokens.meta["examples"]["overlong"]
        assert (example["split"], example["row"]) == ("train", 2)
        assert example["text"].startswith("### Instruction Why? ### Answer because") and example["text"].endswith("...")
        assert int(example["what"].split()[0]) > 512


def test_lengths_are_counted_in_bins_that_double(bench, shared):
    texts = instructions(bench, *(("a", "b " * count) for count in (1, 1, 1, 40, 400)))
    tokens = bench.tokens(texts, {"source": str(shared / LLAMA)}, max_length=4096)
    sizes = [len(row) for row in rows(tokens, "train")]
    histogram = tokens.meta["row_lengths"]["train"]["rows"]
    for most, count in histogram.items():
        assert count == sum(int(most) / 2 < size <= int(most) for size in sizes)
    assert sum(histogram.values()) == 5
    assert tokens.meta["metrics"]["length_p50"] == sorted(sizes)[2]


# --- determinism

PROGRAM = """
import json, sys
from pathlib import Path
from trnflow.tasks.artifact import Input
from tests.helpers.data_stages import new_bench
root, folder, meta, train = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
model = json.loads(sys.argv[5])
new_bench(root).tokens(Input(folder, "texts", meta, "sha256:texts"), model, max_length=64, train=train)
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


def in_processes(texts: Input, root: Path, train: dict | None, model: dict) -> list[dict[str, bytes]]:
    """The stage's files, made in processes that differ in threads and hash seeds."""
    results = []
    for threads in (1, 4):
        home = root / f"process-{threads}"
        home.mkdir(parents=True)
        arguments = [str(home), str(texts.path), *map(json.dumps, (texts.meta, train, model))]
        environ = {**os.environ, "RAYON_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(threads)}
        project = Path(__file__).parents[3]
        subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=True, env=environ, cwd=project)
        results.append(files(home / "out-1"))
    return results


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_a_trained_tokenizer_is_the_same_in_every_process(bench, shared, kind):
    texts = bench.texts(bench.rows(source=str(shared / "data/emotion"), label="label", limit=1500))
    results = in_processes(texts, bench.root / kind, {"kind": kind, "vocab_size": 1500, "lowercase": True}, SCRATCH)
    assert results[0] == results[1]
    assert len(json.loads(results[0]["tokenizer/tokenizer.json"])["model"]["vocab"]) == 1500


def test_bytes_do_not_depend_on_the_number_of_cores(bench, shared):
    texts = bench.texts(bench.rows(source=str(shared / "data/dolly15k"), limit=1200), task="instruction")
    results = in_processes(texts, bench.root / "cores", None, {"source": str(shared / LLAMA)})
    assert results[0] == results[1]


def test_each_row_of_tokens_knows_the_row_that_it_was_read_from(bench):
    """Also where rows lie in several shards, and some were dropped."""
    texts = texts_of(bench, {"text": ["a b " * (n % 7) + "a" for n in range(400)], "label": ["x", "y"] * 200})
    train = {"kind": "bpe", "vocab_size": 300}
    tokens = bench.tokens(texts, SCRATCH, train=train, max_length=14, overlong="drop", shard_bytes=1024)
    kept = [n for n in range(400) if n % 7 < 6]
    assert np.load(tokens.path / "train/source_row.npy").tolist() == kept
    read = tokenizer_of(tokens).decode_batch(rows(tokens, "train"))
    assert read == [table(texts, "train")["text"][n] for n in kept]


# --- training tokenizers


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_trained_tokenizer_loads_in_transformers(bench, shared, kind):
    from transformers import PreTrainedTokenizerFast

    rows_ = bench.rows(source=str(shared / "data/dolly15k"), limit=500)
    texts = bench.texts(rows_, task="instruction")
    tokens = bench.tokens(texts, SCRATCH, train={"kind": kind, "vocab_size": 1500}, max_length=2048)
    loaded = PreTrainedTokenizerFast.from_pretrained(tokens.path / "tokenizer")
    meta = tokens.meta
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (
        meta["pad_id"],
        meta["bos_id"],
        meta["eos_id"],
    )
    assert meta["pad_id"] == 0
    assert len(loaded) == meta["vocab_size"] == 1500
    first = rows(tokens, "train")[0]
    assert first[0] == meta["bos_id"] and first[-1] == meta["eos_id"]
    if kind == "bpe":
        assert loaded("What is this?").input_ids == tokenizer_of(tokens).encode("What is this?").ids

        parts = table(texts, "train")["parts"][0]
        assert loaded.decode(first, skip_special_tokens=True) == "".join(part["text"] for part in parts)


@pytest.mark.parametrize(("kind", "frame"), [("wordpiece", "[CLS] {} [SEP]"), ("bpe", "<s>{}</s>")])
def test_a_class_is_read_between_the_ends_of_its_text(bench, kind, frame):
    texts = texts_of(bench, {"text": ["aa bb", "bb aa"], "label": ["x", "y"]})
    tokens = bench.tokens(texts, SCRATCH, train={"kind": kind, "vocab_size": 300})
    read = tokenizer_of(tokens).decode(rows(tokens, "train")[0], skip_special_tokens=False)
    assert read == frame.format("aa bb")


def test_only_train_is_learned_from(bench):
    train = {"text": ["aa bb aa bb"] * 3, "label": ["x", "y", "x"]}
    test = {"text": ["zzzz qqqq"] * 3, "label": ["x", "y", "x"]}
    tokens = bench.tokens(texts_of(bench, train, {"test": test}), SCRATCH, train={"vocab_size": 20})
    entries = set(tokenizer_of(tokens).get_vocab())
    assert {"a", "##a", "b", "aa", "bb"} <= entries
    assert not any("z" in entry or "q" in entry for entry in entries)


def test_a_vocabulary_too_small_for_the_characters(bench):
    texts = texts_of(bench, {"text": ["abcdefgh", "abcdefgh"], "label": ["x", "y"]})
    with pytest.raises(ConfigError, match=r"tokenize\.train\.vocab_size: 10 entries.*Fix: set at least 21"):
        bench.tokens(texts, SCRATCH, train={"vocab_size": 10})


def test_special_tokens_are_special_in_a_trained_wordpiece(bench):
    texts = texts_of(bench, {"text": ["a ##b b", "b a"], "label": ["x", "y"]})
    tokens = bench.tokens(texts, SCRATCH, train={"vocab_size": 30})
    added = json.loads((tokens.path / "tokenizer/tokenizer.json").read_text())["added_tokens"]
    assert [item["content"] for item in added] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


# --- pure parts


@settings(derandomize=True, max_examples=80)
@given(st.lists(st.tuples(st.text("ab", max_size=4), st.booleans()), min_size=1, max_size=6), st.data())
def test_mask_follows_characters(spans, data):
    parts = [{"text": text, "train": train} for text, train in spans]
    flags = [train for text, train in spans for _ in text]
    edges = [0, *sorted(data.draw(st.lists(st.integers(0, len(flags)), max_size=8))), len(flags)]
    tokens = list(pairwise(edges))
    expected = [any(flags[start:end] if start < end else flags[max(end - 1, 0) :][:1]) for start, end in tokens]
    assert trained_tokens(parts, len(tokens), lambda token: tokens[token]).tolist() == expected


@settings(derandomize=True, max_examples=30)
@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), max_size=6))
def test_growing_array_is_a_plain_npy(tmp_path_factory, blocks):
    path = tmp_path_factory.mktemp("grow") / "a.npy"
    with GrowingArray(path, "<i4") as array:
        for block in blocks:
            array.append(np.array(block, dtype=np.int32))
    loaded = np.load(path, mmap_mode="r" if any(blocks) else None, allow_pickle=False)
    assert loaded.dtype == np.int32
    assert loaded.tolist() == [*chain(*blocks)]
