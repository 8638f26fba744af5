"""`trnflow new` knows the model that it was given: its positions, its size, whether it has a chat template, its tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.helpers.command_line import InProcessShell
from tests.training.toys import minilm

STORIES = "assets/stories260K-hf"


@pytest.fixture
def shell(tmp_path: Path) -> InProcessShell:
    return InProcessShell(tmp_path)


def new(shell: InProcessShell, *arguments: str) -> tuple[dict[str, Any], str, str]:
    """The recipe that `new` writes, its text, and what was printed."""
    done = shell("new", *arguments, "name=mine", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    text = (shell.folder / "mine.yaml").read_text()
    return yaml.safe_load(text), text, done.stdout


def rows(shell: InProcessShell, **columns: list[Any]) -> str:
    pq.write_table(pa.table(columns), shell.folder / "rows.parquet")
    return "rows.parquet"


@pytest.mark.parametrize("positions", [96, 512])
def test_rows_never_have_more_tokens_than_the_model_has_positions(
    shell: InProcessShell, shared: Path, positions: int
) -> None:
    """Real articles of more tokens than either; transformers' own config says how many positions there are."""
    model = shell.folder / "model"
    shutil.copytree(shared / STORIES, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
    dolly = pq.read_table(shared / "data/dolly15k/train.parquet").slice(0, 300)
    pq.write_table(dolly, shell.folder / "rows.parquet")
    recipe, text, _ = new(shell, "rows.parquet", "model.source=model", "data.limit=40")
    assert recipe["tokenize"]["max_length"] == recipe["pack"]["chunk_length"] == positions
    assert f"# about 0.22 million parameters, {positions} positions" in text
    assert shell("plan", "mine.yaml").returncode == 0
    done = shell("run", "mine.yaml", "--until", "pack_chunks", "--direct", "tracking.enabled=false")
    assert done.returncode == 0, done.stderr


def test_roberta_s_positions_are_two_fewer(shell: InProcessShell) -> None:
    from transformers import RobertaConfig

    small = RobertaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=102)
    small.save_pretrained(shell.folder / "model")
    given = rows(shell, text=[f"row {n} " + "many words " * 200 for n in range(60)], label=["a", "b"] * 30)
    recipe, _, _ = new(shell, given, "model.source=model")
    assert recipe["tokenize"]["max_length"] == 100


def test_a_model_without_a_chat_template_gets_sections_and_one_with_keeps_its_own(
    shell: InProcessShell, shared: Path
) -> None:
    chats = str(shared / "data/chat_tools/train.json")
    recipe, text, _ = new(shell, chats, f"model.source={shared / STORIES}")
    assert recipe["format"]["chat_template"] == "sections" and "has no chat template" in text
    prepared = ("run", "mine.yaml", "--until", "format_prompts", "--direct", "tracking.enabled=false")
    assert shell(*prepared).returncode == 0
    assert "no chat template" in shell.error(*prepared, "format.chat_template=tokenizer", code=2)
    (shell.folder / "mine.yaml").unlink()
    shutil.copytree(shared / STORIES, shell.folder / "talks")
    (shell.folder / "talks/chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert "chat_template" not in new(shell, chats, "model.source=talks")[0]["format"]


def test_lengths_are_counted_in_the_model_s_own_tokens(shell: InProcessShell, shared: Path) -> None:
    """260 bytes are fewer than 64 tokens of BERT's vocabulary, and more than 128 of one with 512 entries."""
    texts = ["The weather report for tomorrow says rain in the morning, and the bus was late again. " * 3] * 60
    given = rows(shell, text=[f"{n} {text}"[:260] for n, text in enumerate(texts)], label=["a", "b"] * 30)
    recipe, text, _ = new(shell, given, f"model.source={minilm()}")
    assert recipe["tokenize"]["max_length"] == 64 and "# about 22 million parameters, 512 positions" in text
    (shell.folder / "mine.yaml").unlink()
    assert new(shell, given, f"model.source={shared / STORIES}")[0]["tokenize"]["max_length"] > 128


def test_alpaca_s_headings_count(shell: InProcessShell) -> None:
    """70 tokens of text fit into 128 with the 40 of its headings; the words around them are no part of the columns."""
    asked = [
        "Please write down what the word number means for a child of ten years, with an example." for _ in range(60)
    ]
    given = rows(
        shell,
        instruction=[f"{n} {text}" for n, text in enumerate(asked)],
        input=["a b c"] * 60,
        output=["yes " * 6] * 60,
    )
    recipe, _, _ = new(shell, given)
    assert recipe["tokenize"]["max_length"] == 128
    done = shell("run", "mine.yaml", "--until", "tokenize_text", "--direct", "tracking.enabled=false")
    assert done.returncode == 0, done.stderr
    shown = yaml.safe_load(shell("show", "mine.yaml", "tokenize_text").stdout)
    assert sum(shown["meta"]["overlong"].values()) == 0


def test_without_a_hub_a_folder_is_proposed_and_a_wrong_one_refused(shell: InProcessShell) -> None:
    given = rows(shell, text=[f"row {n} of words" for n in range(60)], label=["a", "b"] * 30)
    _, text, told = new(shell, given)
    proposal = "`trnflow new` again, with model.source=FOLDER and another name=NAME"
    assert proposal in told and f"# with a pretrained model in a folder: {proposal}" in text
    wrong = shell.error("new", given, "name=other", "model.source=./nowhere", code=2)
    assert "model.source: there is no folder ./nowhere" in wrong
    (shell.folder / "empty").mkdir()
    assert "empty has no config.json" in shell.error("new", given, "name=other", "model.source=empty", code=1)
    (shell.folder / "empty/config.json").write_text("{")
    assert "is no JSON" in shell.error("new", given, "name=other", "model.source=empty", code=1)
    (shell.folder / "empty/config.json").write_text('{"model_type": "bert"}')
    misspelt = shell.error("new", given, "name=other", "model.source=empty", "model.overides={}", code=2)
    assert "model.overides" in misspelt and "overrides" in misspelt
    assert "model" in shell.error("new", given, "name=other", "model=3", code=2)
    assert not (shell.folder / "other.yaml").exists()


def test_pairs_and_scored_pairs_are_offered_as_embeddings(shell: InProcessShell) -> None:
    """What is offered is taken as it is written, and its recipe reads the rows."""
    both = {
        "query": [f"what is thing number {n} today" for n in range(60)],
        "passage": [f"the thing number {n} is a thing of kind {n % 7}" for n in range(60)],
    }
    told = shell.error("new", rows(shell, **both), code=2)
    assert "or format.task=embedding (a vector for each text, to search with)" in told
    recipe, _, _ = new(shell, "rows.parquet", "format.task=embedding")
    assert (recipe["data"]["text"], recipe["format"]["text_pair"]) == ("query", "passage")
    (shell.folder / "mine.yaml").unlink()

    judged = rows(shell, **both, label=[n % 2 for n in range(60)])
    recipe, text, told = new(shell, judged)
    offer = "format.task=embedding format.score=label"
    assert (
        recipe["format"]["task"] == "reranker"
        and f"also possible: {offer}" in told
        and f"# also possible: {offer}" in text
    )
    (shell.folder / "mine.yaml").unlink()
    new(shell, judged, *offer.split())
    assert shell("plan", "mine.yaml").returncode == 0
    (shell.folder / "mine.yaml").unlink()

    scored = rows(shell, sentence1=both["query"], sentence2=both["passage"], score=[n / 13 for n in range(60)])
    offer = "format.task=embedding format.score=score"
    assert f"or {offer}" in shell.error("new", scored, code=2)
    recipe, _, told = new(shell, scored, "format.task=regression")
    assert f"also possible: {offer}" in told


def test_a_model_that_does_not_know_the_script_is_named_before_anything_is_trained(
    shell: InProcessShell, shared: Path
) -> None:
    """Amharic tweets, most of whose words are [UNK] to transformers' tokenizer of MiniLM; English ones are not."""
    from transformers import AutoTokenizer

    shutil.copy(shared / "data/sentiment_amharic/train.tsv", shell.folder / "tweets.tsv")
    _, _, out = new(shell, "tweets.tsv", f"model.source={minilm()}")
    (line,) = [line for line in out.splitlines() if "does not know the script" in line]
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    lines = (shell.folder / "tweets.tsv").read_text(encoding="utf-8").splitlines()[1:201]
    ids = [number for line in lines for number in tokenizer(line.split("\t")[0], add_special_tokens=False)["input_ids"]]
    share = sum(number == tokenizer.unk_token_id for number in ids) / len(ids)
    assert float(line.split(" %")[0]) == pytest.approx(100 * share, abs=3)
    (shell.folder / "mine.yaml").unlink()
    english = pq.read_table(shared / "data/emotion/train.parquet").slice(0, 300)
    pq.write_table(english.select(["text", "label_name"]), shell.folder / "rows.parquet")
    assert "script" not in new(shell, "rows.parquet", f"model.source={minilm()}")[2]


def test_the_script_of_labels_does_not_matter_since_no_model_reads_them(shell: InProcessShell) -> None:
    texts = [f"a plain English sentence about weather and trains, number {number}" for number in range(60)]
    given = rows(shell, text=texts, label=["ጥሩ" if number % 2 else "መጥፎ" for number in range(60)])
    assert "script" not in new(shell, given, f"model.source={minilm()}")[2]


def test_a_tokenizer_that_takes_all_memory_is_one_line(shell: InProcessShell, shared: Path) -> None:
    """Its normalizer writes 4 GB for each letter e."""
    folder = shell.folder / "model"
    shutil.copytree(shared / STORIES, folder, copy_function=shutil.copyfile)
    document = json.loads((folder / "tokenizer.json").read_text())
    grows = {"type": "Replace", "pattern": {"String": "e"}, "content": "eeee"}
    document["normalizer"] = {"type": "Sequence", "normalizers": [grows] * 16}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    source = rows(
        shell, prompt=[f"what is number {n}?" for n in range(60)], completion=[f"{n} it is" for n in range(60)]
    )
    said = shell.error("new", source, "model.source=model", "name=mine", code=1)
    assert "its tokenizer takes more than 512 MiB or 5 s for the texts of" in said
