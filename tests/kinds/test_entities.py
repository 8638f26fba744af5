"""Entities are counted as seqeval counts them, and compared between models."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trnflow.tasks.evaluation.scores import intervals_of, values_of
from trnflow.tasks.kinds.entities import grouped
from trnflow.tasks.kinds.kind import IGNORED
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.tagged_words import units_in, written_in
from trnflow.tasks.kinds.targets import Outputs, joined
from trnflow.tasks.promotion.compare import compare_scores
from trnflow.tasks.promotion.settings import PromoteConfig

LABELS = ["O", "B-a", "I-a", "B-b-c", "I-b-c", "B-d", "I-d"]
RARE = len(LABELS) - 2
"""The first tag of a type that no row has, though a model predicts it."""


def tagged(rows: int = 300, wrong: float = 0.3, seed: int = 0) -> Outputs:
    """Random tags, some of them no proper IOB, with unlabelled pieces between them."""
    random = np.random.default_rng(seed)
    expected = random.integers(0, RARE, (rows, 12)) * (random.random((rows, 12)) < 0.6)
    noise = random.random((rows, 12)) < wrong
    decided = np.where(noise, random.integers(0, len(LABELS), (rows, 12)), expected)
    none = random.random((rows, 12)) < 0.4
    none[:, 0] = False
    tags = [np.where(none, IGNORED, tags).astype(np.int32) for tags in (expected, decided)]
    return Outputs(tags[0], random.random((rows, 12)).astype(np.float32), tags[1], random.random(rows))


def names(tags: np.ndarray) -> list[list[str]]:
    return [[LABELS[tag] for tag in row if tag != IGNORED] for row in tags]


@pytest.mark.parametrize(("seed", "wrong"), [(0, 0.3), (1, 0.05), (2, 0.9), (3, 0.0), (4, 1.0)])
def test_metrics_are_those_of_seqeval_to_the_last_digit(seed: int, wrong: float) -> None:
    from seqeval.metrics import accuracy_score, classification_report, f1_score, precision_score, recall_score

    found = tagged(seed=seed, wrong=wrong)
    expected, decided = names(found.expected), names(found.decided)
    values = values_of("token_classification", found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that no row has
        for name, theirs in (
            ("span_f1", f1_score), ("span_precision", precision_score), ("span_recall", recall_score),
            ("accuracy", accuracy_score),
        ):  # fmt: skip
            assert values[name] == theirs(expected, decided), name
        report = classification_report(expected, decided, output_dict=True)
    for row in kind_of("token_classification").table(found, LABELS):
        theirs = report.get(row["label"], {"precision": 0, "recall": 0, "f1-score": 0, "support": 0})
        ours = [row[name] for name in ("precision", "recall", "f1", "support")]
        assert ours == [theirs[name] for name in ("precision", "recall", "f1-score", "support")]


def test_each_metric_lies_in_its_interval_and_rows_of_any_length_join() -> None:
    found = tagged()
    values, intervals = values_of("token_classification", found), intervals_of("token_classification", found)
    assert all(intervals[name][0] < value < intervals[name][1] for name, value in values.items())
    wider = Outputs._make(np.pad(c, ((0, 0), (0, 5)), constant_values=IGNORED) if c.ndim == 2 else c for c in found)
    both = joined([found, wider])
    assert len(both.loss) == 2 * len(found.loss)
    assert values_of("token_classification", both)["span_f1"] == pytest.approx(values["span_f1"], abs=1e-12)
    nothing = found._replace(expected=np.minimum(found.expected, 0), decided=np.minimum(found.decided, 0))
    assert values_of("token_classification", nothing)["span_f1"] == 0


def test_a_better_model_wins_and_an_equal_one_does_not(tmp_path: Path) -> None:
    for name, wrong in (("old", 0.5), ("new", 0.1)):
        columns = {field: pa.array(list(column)) for field, column in tagged(wrong=wrong)._asdict().items()}
        rows = pa.array(range(300), pa.int64())
        pq.write_table(pa.table({"row": rows, "frozen_row": rows, **columns}), tmp_path / name)
    for metric in ("span_f1", "span_precision", "span_recall", "accuracy"):
        config = PromoteConfig(metric=metric)
        judged = compare_scores(tmp_path / "old", tmp_path / "new", "token_classification", config, 0.01)
        assert judged.is_better and judged.low < judged.difference < judged.high
        assert not compare_scores(tmp_path / "old", tmp_path / "old", "token_classification", config, 0.01).is_better


@pytest.mark.parametrize("seed", range(5))
def test_words_are_grouped_as_transformers_groups_them(seed: int) -> None:
    """`aggregation_strategy="first"` of its pipeline; special tokens have no place."""
    from transformers.pipelines.token_classification import AggregationStrategy, TokenClassificationPipeline

    draw, labels = np.random.default_rng(seed), ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    text = "In old Vienna Anna Maria met the baker of Graz, and all of them went on."
    places = [(match.start(), match.end()) for match in re.finditer(r"\w{1,3}", text)]
    scores = draw.dirichlet(np.full(5, 0.3), len(places))
    theirs = TokenClassificationPipeline.__new__(TokenClassificationPipeline)
    theirs.model = SimpleNamespace(config=SimpleNamespace(id2label=dict(enumerate(labels))))
    theirs.tokenizer = SimpleNamespace(convert_tokens_to_string=" ".join)
    pieces = [
        {"word": text[start:end], "scores": row, "start": start, "end": end, "index": at,
         "is_subword": text[start - 1].isalpha()}
        for at, ((start, end), row) in enumerate(zip(places, scores, strict=True))
    ]  # fmt: skip
    wanted = [
        {"type": one["entity_group"], "text": text[one["start"] : one["end"]], "start": one["start"], "end": one["end"],
         "score": pytest.approx(one["score"])}
        for one in theirs.aggregate(pieces, AggregationStrategy.FIRST) if one["entity_group"] != "O"
    ]  # fmt: skip
    around = np.full((1, 5), 0.2)
    found = grouped(
        text, [None, *places, None], np.concatenate([around, scores, around]).tolist(), labels, units_in(text)
    )
    assert found == wanted and any(one["end"] - one["start"] > 3 for one in wanted)


@pytest.mark.parametrize(
    ("text", "places", "said", "found"),
    [
        ("Graz.", [(0, 2), (2, 4), (4, 5)], "BIO", ["Graz"]),  # pieces after the first are not learnt
        ("Graz.", [(0, 2), (2, 4), (4, 5)], "BBO", ["Graz"]),
        ("in Graz", [(0, 2), (2, 5), (5, 7)], "OB?", ["Graz"]),  # a blank that counts to the word behind it
        ("Ab,Cd", [(0, 2), (2, 3), (3, 5)], "BOB", ["Ab", "Cd"]),
        ("維也", [(0, 1), (1, 2)], "BI", ["維也"]),  # characters of scripts without blanks are words
        ("😀 Ab", [(0, 1), (0, 1), (0, 1), (2, 4)], "O??B", ["Ab"]),  # bytes of one sign
    ],
)
def test_the_first_piece_of_a_word_decides_for_all_of_it(
    text: str, places: list[tuple[int, int]], said: str, found: list[str]
) -> None:
    tags = {"O": [1.0, 0.0, 0.0], "B": [0.0, 1.0, 0.0], "I": [0.0, 0.0, 1.0], "?": [0.0, 0.4, 0.6]}
    scores = [tags[sign] for sign in said]
    found_here = grouped(text, places, scores, ["O", "B-x", "I-x"], units_in(text))
    assert [one["text"] for one in found_here] == found


def test_words_of_texts_whose_words_were_given_stand_between_blanks_but_for_signs_around_them() -> None:
    text = """"Anna Maria," said (Obama) of U.S. @user http://t.co/a.b, don't 維也 Graz!"."""
    words = ['"', "Anna", "Maria", ",", '"', "said", "(", "Obama", ")", "of", "U.S", ".", "@user", "http://t.co/a.b", ",",
        "don't", "維", "也", "Graz", "!", '"', "."]  # fmt: skip
    assert [text[start:end] for start, end in written_in(text)] == words
    other = "@user U.S. 維也"
    assert [other[start:end] for start, end in units_in(other)] == ["@", "user", "U", ".", "S", ".", "維", "也"]


def test_the_loss_and_the_accuracy_are_means_over_labelled_pieces() -> None:
    expected = np.array([[1, 2, 0], [1, IGNORED, IGNORED]], np.int32)
    decided = np.array([[1, 0, 0], [1, IGNORED, IGNORED]], np.int32)
    values = values_of(
        "token_classification", Outputs(expected, np.ones((2, 3), np.float32), decided, np.array([1.0, 5.0]))
    )
    assert (values["loss"], values["accuracy"]) == (pytest.approx((3 * 1.0 + 5.0) / 4), 0.75)
