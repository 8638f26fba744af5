"""The files beside the weights: generation, tokenizer and model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from tests.helpers.small_models import tokenizer, workdir
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.tokenization.tokenizer import BERT_SPECIAL, bert_pipeline, read_tokenizer
from trnflow.tasks.model_folder.model_card import CardSource, write_card
from trnflow.tasks.model_folder.settings_files import (
    generation_settings,
    learnt_settings,
    positions_of,
    write_tokenizer,
)
from trnflow.tasks.model_folder.tokenizer_check import settle_tokenizer
from trnflow.tasks.stage import read_json, write_json


def test_generation_keeps_what_the_base_says() -> None:
    config = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert generation_settings(config, None) == {"do_sample": False, **ids}
    base = {"eos_token_id": [2, 7], "temperature": 0.6, "do_sample": True, "pad_token_id": None}
    wanted = {"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": 2, "temperature": 0.6, "do_sample": True}
    assert generation_settings(config, base) == wanted


@pytest.mark.parametrize(
    ("own", "ends", "stops"),
    [(2, [2], 2), ([2], [2], [2]), (2, [5], [5, 2]), ([1, 2], [513], [513, 1, 2]), ([1, 2], [2], [2, 1]), (None, [5, 6], [5, 6]),
     (None, [], None)],
)  # fmt: skip
def test_what_ends_answers_stands_first(own: Any, ends: list[int], stops: Any) -> None:
    made = [
        generation_settings({"eos_token_id": own}, None, ends),
        generation_settings({}, {"eos_token_id": own}, ends),
    ]
    assert [one.get("eos_token_id") for one in made] == [stops, stops]


@pytest.mark.parametrize(
    ("base", "pads", "pad"),
    [
        ({"pad_token_id": 9}, [3], 9),  # the base's own
        ({"pad_token_id": 5}, [3], 3),  # it ends answers, and there is another
        ({"pad_token_id": 5}, [5], 2),  # the least harmful: it ends no answer of the training
        ({}, [2, 7], 7),  # a usual name of a pad token, where the tokenizer pads with eos
        ({"eos_token_id": [5]}, [5], 5),
    ],
)
def test_padding_ends_no_text_where_there_is_another_token(base: Meta, pads: list[int], pad: int) -> None:
    assert generation_settings({}, {"eos_token_id": [5, 2], **base}, [5], pads)["pad_token_id"] == pad


@pytest.mark.parametrize(
    ("known", "limit"), [({}, 64), ({"model_max_length": 10**30}, 64), ({"model_max_length": 32}, 32)]
)
def test_a_tokenizer_without_a_limit_gets_the_model_s(known: Meta, limit: int, tmp_path: Path) -> None:
    write_json(tmp_path / "from" / "tokenizer_config.json", {"unk_token": "<unk>", **known})
    (tmp_path / "to").mkdir()
    write_tokenizer(tmp_path / "from", tmp_path / "to", 64)
    found = {"unk_token": "<unk>", "model_max_length": limit}
    assert read_json(tmp_path / "to" / "tokenizer_config.json") == found
    (tmp_path / "any").mkdir()
    write_tokenizer(tmp_path / "from", tmp_path / "any", None)
    assert read_json(tmp_path / "any" / "tokenizer_config.json") == {"unk_token": "<unk>", **known}


@pytest.mark.parametrize(("known", "pad"), [({}, "</s>"), ({"pad_token": "<pad>"}, "<pad>")])
def test_a_tokenizer_without_a_pad_token_names_that_of_training(known: Meta, pad: str, tmp_path: Path) -> None:
    """Without one no program reads several texts at once."""
    write_json(tmp_path / "from" / "tokenizer_config.json", {"eos_token": "</s>", **known})
    tokenizer(tmp_path / "from")
    (tmp_path / "to").mkdir()
    number = read_tokenizer(tmp_path / "from").tokenizer.token_to_id("</s>")
    write_tokenizer(tmp_path / "from", tmp_path / "to", None, pad=number)
    assert read_json(tmp_path / "to" / "tokenizer_config.json") == {"eos_token": "</s>", "pad_token": pad}


def test_the_hub_s_own_reader_reads_the_card(tmp_path: Path) -> None:
    shards = {
        "task": "classification",
        "labels": ["joy", "<script>alert(1)</script>", "a|b"],
        "data": "sha256:d",
        "settings": {"learning_rate": 5e-5, "epochs": 3, "lora": None},
        "metrics": {"eval_loss": 0.25, "train_loss": 1.5},
    }
    write_card(tmp_path, shards, {"architectures": ["BertForSequenceClassification"]}, CardSource("org/base"))
    card = ModelCard.load(tmp_path / "README.md")
    assert (card.data.base_model, card.data.library_name) == ("org/base", "transformers")
    assert card.data.pipeline_tag == "text-classification"
    assert 'transformers.pipeline("text-classification", model=FOLDER, truncation=True)' in card.text
    assert "| eval\\_loss | 0.25 |" in card.text and "| data | sha256:d |" in card.text
    assert "| learning\\_rate | 5e-05 |" in card.text and "lora" not in card.text
    assert "<script" not in card.text and "a\\|b" in card.text

    embedding = {**shards, "task": "embedding", "labels": ["score"]}
    write_card(tmp_path, embedding, {"architectures": ["BertModel"]}, CardSource("org/base"))
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "sentence-transformers" and "## Labels" not in card.text
    assert "    sentence_transformers.SentenceTransformer(FOLDER)" in card.text

    several = {**shards, "task": "multi_label"}
    for decision, said in (({"threshold": 0.31}, "0.31, which was chosen"), ({}, "at least 0.5.")):
        write_card(
            tmp_path, several, {"architectures": ["BertForSequenceClassification"]}, CardSource(), decision=decision
        )
        text = ModelCard.load(tmp_path / "README.md").text
        assert said in text and "model=FOLDER, top_k=None, truncation=True)" in text

    language = {**shards, "labels": None, "task": "causal_lm"}
    write_card(tmp_path, language, {"model_type": "llama"}, CardSource(weights="sha256:ab"), adapter=True)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "peft" and card.data.base_model is None and "no name on the hub" in card.text
    assert "fine-tuned from the weights `sha256:ab`" in card.text

    write_card(tmp_path, language, {"model_type": "llama"}, CardSource())
    assert "trained from scratch with trnflow" in ModelCard.load(tmp_path / "README.md").text


@pytest.mark.parametrize(
    ("task", "labels", "given"),
    [
        (
            "classification",
            ["a", "b", "c"],
            ', num_labels=3, problem_type="single_label_classification", pad_token_id=0',
        ),
        ("regression", ["price"], ', num_labels=1, problem_type="regression", pad_token_id=0'),
        ("token_classification", ["O", "B-x", "I-x"], ", num_labels=3"),
        ("embedding", ["anchor", "positive"], ""),
        ("causal_lm", None, ""),
    ],
)
def test_the_card_of_an_adapter_opens_its_head(task: str, labels: list[str] | None, given: str, tmp_path: Path) -> None:
    shards = {"task": task, "labels": labels}
    for base, wanted in (("org/base", f"from_pretrained(FOLDER{given})"), (None, f"from_pretrained(BASE{given})`")):
        write_card(tmp_path, shards, {"model_type": "bert", "pad_token_id": 0}, CardSource(base), adapter=True)
        text = (tmp_path / "README.md").read_text()
        assert (wanted in text) == (base is not None or bool(given))


def test_what_would_keep_a_model_from_writing_what_it_learnt_is_left_out_and_said(tmp_path: Path) -> None:
    said: list[Meta] = []
    out = workdir(tmp_path / "out", said)
    own = {"max_length": 20, "suppress_tokens": [5, 6], "bad_words_ids": [], "forced_eos_token_id": 2, "min_length": 0}
    kept = {"do_sample": True, "temperature": 0.6, "eos_token_id": [2, 7], "transformers_version": "4.40.0"}
    assert learnt_settings({**own, **kept}, out) == kept
    left_out, followed = (event["info"] for event in said)
    assert left_out.endswith(": max_length 20, forced_eos_token_id 2, suppress_tokens [5, 6]")
    assert followed.endswith(": do_sample true, temperature 0.6")
    said.clear()
    assert learnt_settings({"eos_token_id": 2}, out) == {"eos_token_id": 2} and learnt_settings(None, out) == {}
    assert not said


def test_a_class_that_reads_texts_otherwise_than_training_is_not_published(tmp_path: Path) -> None:
    """BertTokenizer lowercases, where the config does not say otherwise, and this tokenizer.json does not."""
    from tokenizers import Tokenizer, models
    from transformers import AutoTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Hello", "hello", ","]
    made = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    bert_pipeline(made, False, BERT_SPECIAL)
    made.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **BERT_SPECIAL})
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    assert AutoTokenizer.from_pretrained(tmp_path)("Hello")["input_ids"] == [2, 6, 3]
    said: list[Meta] = []
    out = workdir(tmp_path / "out", said)
    settle_tokenizer(tmp_path, out)
    opened = AutoTokenizer.from_pretrained(tmp_path)
    assert opened("Hello")["input_ids"] == [2, 5, 3] and "token_type_ids" in opened("Hello")
    assert "tokenizer_class BertTokenizer is replaced by PreTrainedTokenizerFast" in said[0]["info"]
    settle_tokenizer(tmp_path, out)
    assert len(said) == 1


@pytest.mark.parametrize(("padded", "family"), [(2, "roberta"), (0, "bert")])
def test_a_model_reads_as_many_tokens_as_it_has_positions_beside_padding(padded: int, family: str) -> None:
    import torch
    import transformers

    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    config = transformers.AutoConfig.for_model(family, **sizes, max_position_embeddings=12, pad_token_id=padded // 2)
    model = transformers.AutoModel.from_config(config)
    longest = positions_of(model)
    assert longest == 12 - padded
    model(input_ids=torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 5))
