"""The words of code and pages stay within limits, which are lowered as they get better: `python -m tests.words` and
`python -m tests.page_words`."""

from __future__ import annotations

import re

import pytest

from tests import page_words
from tests.words import PROJECT, Words, gloss_pattern, measure

MOST_WORDS_PER_CODE_LINE = 2.1
LEAST_COMMENTS_PER_THOUSAND = 17.0
MOST_VAGUE_PERCENT = 1.2
MOST_LONGER_THAN_BODY = 55
MOST_PRIVATE_OF_SEVERAL_LINES = 5
MOST_LONG_MODULE_DOCSTRINGS = 8
MOST_GLOSSES = 3
MOST_LONG_SENTENCES = 1


@pytest.fixture(scope="module")
def words() -> Words:
    return measure()


def test_docstrings_are_short_beside_the_code(words: Words) -> None:
    assert words.words_per_code_line <= MOST_WORDS_PER_CODE_LINE
    assert len(words.longer) <= MOST_LONGER_THAN_BODY, words.longer
    assert len(words.private) <= MOST_PRIVATE_OF_SEVERAL_LINES, words.private
    assert len(words.modules) <= MOST_LONG_MODULE_DOCSTRINGS, words.modules


def test_reasons_stand_beside_their_lines(words: Words) -> None:
    assert words.comments_per_thousand >= LEAST_COMMENTS_PER_THOUSAND


def test_names_say_what_they_hold(words: Words) -> None:
    assert words.vague_percent <= MOST_VAGUE_PERCENT


def test_a_glossary_word_is_explained_in_the_glossary_alone(words: Words) -> None:
    assert len(words.glosses) <= MOST_GLOSSES, words.glosses


def test_a_gloss_is_told_from_other_brackets() -> None:
    pattern = gloss_pattern()
    assert pattern.findall("Write records (the documents that name artifacts) and blobs (a file of the store).") == [
        "records (the documents that name artifacts)",
        "blobs (a file of the store)",
    ]
    assert not pattern.findall("the record (see `publish`), `key` (the field), 3 keys (5 s)")


def test_the_glossary_has_each_word_once_in_order() -> None:
    text = (PROJECT / "docs" / "glossary.md").read_text()
    words = [word.lower() for word in re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE)]
    assert words == sorted(set(words))


def test_sentences_of_the_pages_are_short_and_name_their_subject_first() -> None:
    found = page_words.measure()
    assert len(found) > 2000
    long = [sentence for sentence in found if sentence.is_long]
    assert len(long) <= MOST_LONG_SENTENCES, "python -m tests.page_words --list"
    assert not [sentence for sentence in found if sentence.begins_with_of]


def test_sentences_are_told_from_code_tables_and_lists() -> None:
    text = "# A title\n\nOne. Two of\n[it](docs/a.md). **Of three.** x\n\n    code. More\n\n| a. B |\n\n- Four\n- five: six.\n"
    found = [sentence for line in page_words.paragraphs(text) for sentence in page_words.sentences(line)]
    assert found == ["One.", "Two of [it].", "**Of three.** x", "Four", "five: six."]
    assert [sentence for sentence in found if page_words.Sentence("", sentence).begins_with_of] == ["**Of three.** x"]
