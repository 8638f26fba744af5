"""Folders with any settings that a tokenizer may bring: training reads the ids that the programs read which serve the model."""

from __future__ import annotations

import json
import os
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from tests.clients.answers import HOW, LIVE
from tests.clients.conftest import RunClient
from tests.data.tokenization.test_pair_encoder import SPECIAL
from tests.helpers.data_stages import Bench, loaded_rows, new_bench
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.model_folder.settings_files import write_tokenizer
from trnflow.tasks.model_folder.tokenizer_check import settle_tokenizer
from trnflow.tasks.stage import read_json, write_json

POSITIONS = 256
SIDES, FLAG = st.sampled_from(["left", "right"]), st.booleans()
OWN: dict[str, st.SearchStrategy[Any]] = {
    "truncation_side": SIDES, "padding_side": SIDES, "model_max_length": st.sampled_from([5, 64, 512, 10**30]),
    "clean_up_tokenization_spaces": FLAG, "do_lower_case": FLAG, "strip_accents": st.none() | FLAG,
    "tokenize_chinese_chars": FLAG, "add_bos_token": FLAG, "add_eos_token": FLAG,
    "max_length": st.just(8), "truncation_strategy": st.just("only_first"),
}  # fmt: skip
DIRECTION = st.sampled_from(["Left", "Right"])
TRUNCATION: dict[str, st.SearchStrategy[Any]] = {
    "direction": DIRECTION, "max_length": st.sampled_from([7, 90]), "strategy": st.just("LongestFirst"), "stride": st.just(0),
}  # fmt: skip
PADDING: dict[str, st.SearchStrategy[Any]] = {
    "strategy": st.sampled_from(["BatchLongest", {"Fixed": 33}]), "direction": DIRECTION, "pad_to_multiple_of": st.just(8),
    "pad_id": st.just(0), "pad_type_id": st.just(0), "pad_token": st.just("<pad>"),
}  # fmt: skip
CLASSES = {
    "words": ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast", None),
    "bytes": ("PreTrainedTokenizerFast", "LlamaTokenizerFast", None),
}
TASKS = {"words": ("classification", "reranker", "embedding"), "bytes": ("classification", "reranker", "text")}


def folders_of(family: str) -> st.SearchStrategy[Meta]:
    return st.fixed_dictionaries(
        {
            "family": st.just(family),
            "tokenizer_class": st.sampled_from(CLASSES[family]),
            "config": st.fixed_dictionaries({}, optional=OWN),
            "lowercase": FLAG,
            "truncation": st.none() | st.fixed_dictionaries(TRUNCATION),
            "padding": st.none() | st.fixed_dictionaries(PADDING),
            "max_length": st.sampled_from([6, 21, 64, 250]),
            "task": st.sampled_from(TASKS[family]),
        }
    )


# no "[", with which special tokens begin: a text's own are letters in training
TEXT = st.text(st.sampled_from("aÉîß 你好\n\t.,'🙂ሰ0Z"), min_size=1, max_size=60).filter(str.strip)


class Case(NamedTuple):
    """A published folder, the texts (or pairs) that a program is asked for, and training's ids of each."""

    folder: Path
    given: Meta
    asked: list[list[str]]
    ids: list[list[int]]

    @property
    def cut(self) -> Meta:
        """How a program cuts; a language model's folder does not say at which length its rows were cut."""
        most = {"max_length": self.given["max_length"]} if self.given["task"] == "text" else {}
        return {"truncation": True, **most}


@cache
def vocabulary(shared: Path) -> dict[str, int]:
    words = (shared / "assets/bert-base-uncased/vocab.txt").read_text(encoding="utf-8").split("\n")
    return {word: at for at, word in enumerate([*SPECIAL.values(), *words[1000:6000], "É", "##É"])}


@cache
def reviews(shared: Path) -> list[str]:
    rows = pq.read_table(shared / "data/imdb/train.parquet", columns=["text"]).column("text")
    return [rows[at].as_py().replace("[", "(") for at in (0, 12600, 24999)]


def write_folder(folder: Path, shared: Path, given: Meta) -> None:
    """Write a model's folder as others publish them: tokenizer.json, its config, and config.json."""
    special = SPECIAL if given["family"] == "words" else {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    if given["family"] == "words":
        made = Tokenizer(models.WordPiece(vocabulary(shared), unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=given["lowercase"])
        made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    else:
        letters = [*special.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
        made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        single, pair = ("<s> $A", "<s> $A <s>:1 $B:1") if given["lowercase"] else ("$A", "$A $B:1")
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special.values()])
    ids = [(text, made.token_to_id(text)) for text in special.values()]
    made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    document = json.loads(made.to_str()) | {"truncation": given["truncation"], "padding": given["padding"]}
    write_json(folder / "tokenizer.json", document)
    named = {"tokenizer_class": given["tokenizer_class"]} if given["tokenizer_class"] else {}
    write_json(folder / "tokenizer_config.json", {**special, **named, **given["config"]})
    write_json(folder / "config.json", {"model_type": "bert", "max_position_embeddings": POSITIONS})


def trained(bench: Bench, texts: list[str], given: Meta) -> tuple[Input, list[list[str]], list[list[int]]]:
    """Return the tokens of rows of these texts, what a program is asked for them, and the ids of each."""
    task, turned = given["task"], [*texts[1:], texts[0]]
    two = {"text_pair": turned} if task in ("reranker", "embedding") else {}
    numbers = {"label": [at % 2 for at in range(len(texts))]} if task in ("classification", "reranker") else {}
    named = {"text": ["text"], "labels": ["a", "b"] if task == "classification" else None}
    model = {"source": str(bench.root / "base")}
    formed = bench.texts(
        loaded_rows(bench.root, {"text": texts, **two, **numbers}, **named),
        model,
        task=task,
        **dict.fromkeys(two, "text_pair"),
    )
    tokens = bench.tokens(formed, model, max_length=given["max_length"], add_eos=False)
    ids, offsets = (np.load(tokens.path / f"train/{name}.npy") for name in ("input_ids", "offsets"))
    rows = [ids[start:end] for start, end in pairwise(offsets)]
    if task != "embedding":
        asked = [[*row] for row in zip(texts, *two.values(), strict=True)]
        kept = np.load(tokens.path / "train/source_row.npy")  # one token teaches a language model nothing
        return tokens, [asked[row] for row in kept], [row.tolist() for row in rows]
    types = np.load(tokens.path / "train/token_types.npy")
    which = [types[start:end] for start, end in pairwise(offsets)]
    apart = [row[kinds == text].tolist() for text in (0, 1) for row, kinds in zip(rows, which, strict=True)]
    return tokens, [[text] for text in [*texts, *turned]], apart


def made(root: Path, shared: Path, given: Meta, more: list[str]) -> Case:
    """Train's tokens by a folder with the settings, and publish their tokenizer as consolidate does."""
    bench = new_bench(root)
    write_folder(root / "base", shared, given)
    tokens, asked, ids = trained(bench, [*reviews(shared), *more], given)
    published = root / "published"
    write_json(published / "config.json", read_json(root / "base/config.json"))
    write_tokenizer(tokens.path / "tokenizer", published, POSITIONS)
    settle_tokenizer(published, bench.workdir())
    said = " ".join(str(text) for event in bench.said for name, text in event.items() if name in ("info", "warn"))
    assert "transformers reads texts otherwise" not in said
    ours, own = read_json(published / "tokenizer_config.json"), given["config"]
    for name in ("truncation_side", "padding_side", "clean_up_tokenization_spaces"):
        assert ours.get(name, own.get(name)) == own.get(name) or name not in own or f"{name} " in said
    for name in ("truncation", "padding"):
        assert (f"{name} of tokenizer.json" in said) == bool(given[name])
    return Case(published, given, asked, ids)


READ = """
import json, sys, transformers
def ids(folder, asked, cut):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return [tokenizer(*texts, **cut)["input_ids"] for texts in asked]
print(json.dumps([transformers.__version__, [ids(*each) for each in json.load(open(sys.argv[1]))]]))
"""
SENTENCES = """
import json, sys, torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers import BertConfig, BertForSequenceClassification, BertModel
def ids(folder, asked, cut):
    is_pair = len(asked[0]) == 2
    config = BertConfig(vocab_size=6000, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
                        max_position_embeddings=256, num_labels=1)
    (BertForSequenceClassification if is_pair else BertModel)(config).save_pretrained(folder)
    model = (CrossEncoder if is_pair else SentenceTransformer)(folder, device="cpu")
    given = model.preprocess(asked if is_pair else [texts[0] for texts in asked])
    assert given["attention_mask"][:, 0].all()
    return [row[mask.bool()].tolist() for row, mask in zip(given["input_ids"], given["attention_mask"])]
print(json.dumps(["", [ids(*each) for each in json.load(open(sys.argv[1]))]]))
"""
PROGRAMS = {"": READ, "transformers-4.57": READ, "sentence-transformers": SENTENCES}


@pytest.mark.slow
def test_any_folder_gives_the_ids_of_training_in_the_programs_that_serve(
    tmp_path: Path, shared: Path, run_client: RunClient
) -> None:
    cases, number = list[Case](), count()

    # no shrinking: all cases are asked of each program at once
    @settings(
        max_examples=10,
        derandomize=os.environ.get(HOW) != LIVE,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(st.sampled_from([*CLASSES]).flatmap(folders_of), st.lists(TEXT, min_size=1, max_size=3))
    def make(given: Meta, more: list[str]) -> None:
        root = tmp_path / str(next(number))
        root.mkdir()
        cases.append(made(root, shared, given, more))

    make()
    for program, script in PROGRAMS.items():
        served = [case for case in cases if script is READ or case.given["task"] in ("reranker", "embedding")]
        write_json(tmp_path / "asked.json", [[str(case.folder), case.asked, case.cut] for case in served])
        _, found = run_client(program, script, tmp_path / "asked.json", kept=bool(program))
        for case, ids in zip(served, found, strict=True):
            assert ids == case.ids, (program, case.given)
