"""What `new` counts with a model's tokenizer, and says of the model."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from tokenizers import processors

from tests.flows.runner.shelf import tokenizer
from trnflow.flows.authoring.given_model import MOST_EXAMPLES, GivenModel, _texts, count_tokens
from trnflow.flows.authoring.look import Column


def test_tokens_of_texts_are_counted_without_those_around_them(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer(tmp_path / "tokenizer")
    file = tmp_path / "tokenizer/tokenizer.json"
    framed = Tokenizer.from_file(str(file))
    framed.post_processor = processors.TemplateProcessing(single="[UNK] $A [UNK]", special_tokens=[("[UNK]", 1)])
    framed.save(str(file))
    asked = {"folder": str(tmp_path / "tokenizer"), "texts": ["a b", "c"], "name": "text"}
    assert count_tokens(asked, lambda name: nullcontext()) == {"tokens": 3, "unknown": 0.0}  # type: ignore[arg-type,return-value]
    assert count_tokens({**asked, "texts": []}, lambda name: nullcontext())["tokens"] == 0  # type: ignore[arg-type,return-value]


def test_a_size_has_two_digits_and_texts_alone_are_counted() -> None:
    said = [
        GivenModel(512, size, False, None, "").describe() for size in (1_240_000, 9_940_000, 9_960_000, 1_500_000_000)
    ]
    assert said == [f"about {size} million parameters, 512 positions" for size in ("1.2", "9.9", "10", "1,500")]
    column = Column("text", examples=["a", 1, None, *["b"] * MOST_EXAMPLES])
    assert _texts(column) == ["a", *["b"] * (MOST_EXAMPLES - 1)]
