"""Predictions are those of transformers' own pipelines for the same folder and the same rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.data_stages import Bench, new_bench
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE, read_row_format, row_format
from trnflow.tasks.errors import ConfigError, DataError, ModelError
from trnflow.tasks.prediction.carried import carried_columns
from trnflow.tasks.prediction.predict import open_model, predictions
from trnflow.tasks.prediction.row_files import RowFile
from trnflow.tasks.stage import write_json

WORDS = ["where", "is", "the", "cat", "on", "a", "mat", "dog", "runs", "what", "does", "it", "do", "and", "why"]
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SCRATCH = {"config": {"model_type": "llama"}}


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> str:
    folder.mkdir()
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(folder)


def finished(bench: Bench, texts: Input, model: Any, train: dict[str, Any], **files: str) -> Path:
    """A model's folder as consolidate leaves it: weights, tokenizer and `trnflow.json`, here with random weights."""
    longest = 24 if texts.meta["task"] == "classification" else 64
    tokens = bench.tokens(texts, SCRATCH, max_length=longest, train=train)
    folder = bench.root / "model"
    model(tokens.meta).save_pretrained(folder)
    for file in (tokens.path / "tokenizer").iterdir():
        shutil.copyfile(file, folder / file.name)
    for name, text in files.items():
        (folder / f"{name}.jinja").write_text(text)
    write_json(folder / ROW_FORMAT_FILE, row_format(texts.meta, tokens.meta))
    return folder


def classifier(meta: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=meta["vocab_size"], hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=24, initializer_range=0.4, id2label={0: "no", 1: "yes", 2: "so"}, pad_token_id=meta["pad_id"],
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def llama(meta: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=meta["vocab_size"], hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, initializer_range=0.3, bos_token_id=meta["bos_id"], eos_token_id=meta["eos_id"],
        pad_token_id=meta["pad_id"],
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("classes")
    rows = [{"title": " ".join(WORDS), "body": WORDS[n], "label": ("no", "yes", "so")[n % 3]} for n in range(9)]
    bench = new_bench(root)
    loaded = bench.rows(source=write_rows(root / "rows", rows), text=["title", "body"], label="label")
    texts = bench.texts(loaded, separator=" : ")
    return finished(bench, texts, classifier, {"kind": "wordpiece", "vocab_size": 120})


@pytest.fixture(scope="module")
def asks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("asks")
    rows = [{"instruction": " ".join(WORDS), "context": "", "response": f"it is {WORDS[n]}"} for n in range(9)]
    bench = new_bench(root)
    texts = bench.texts(bench.rows(source=write_rows(root / "rows", rows)), task="instruction")
    return finished(bench, texts, llama, {"kind": "bpe", "vocab_size": 300})


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("chats")
    turns = [{"role": "user", "content": " ".join(WORDS)}, {"role": "assistant", "content": "on the mat"}]
    bench = new_bench(root)
    loaded = bench.rows(source=write_rows(root / "rows", [{"messages": turns}] * 9))
    texts = bench.texts(loaded, task="chat", chat_template=CHAT)
    return finished(bench, texts, llama, {"kind": "bpe", "vocab_size": 300}, chat_template=CHAT)


def predict(folder: Path, rows: list[dict[str, Any]] | str, new: int = 6) -> list[dict[str, Any]]:
    model = open_model(folder, "model", {})
    given = [model.shape.of_text(rows)] if isinstance(rows, str) else rows
    return list(predictions(model, ((f"row {n}", row) for n, row in enumerate(given, 1)), new))


def test_classes_and_probabilities_are_the_pipeline_s(classes: Path) -> None:
    rows = [{"title": " ".join(WORDS[n : n + n % 5 + 1]), "body": WORDS[n % 7]} for n in range(12)]
    ours = predict(classes, rows)
    pipe = transformers.pipeline("text-classification", str(classes), top_k=None, device="cpu")
    theirs = pipe([f"{row['title']} : {row['body']}" for row in rows])
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["label"] == other[0]["label"]
        assert mine["probabilities"] == {one["label"]: pytest.approx(one["score"], abs=1e-6) for one in other}
    assert len({row["label"] for row in ours}) > 1 and not any("cut" in row for row in ours)


OUTSIDE = "gives ids that the model has no embedding of: index out of range"


@pytest.mark.parametrize(("ids", "says"), [([9999], OUTSIDE), ([1] * 50, "gives .* where at most 24 were")])
def test_a_tokenizer_that_adds_what_the_model_can_not_read_is_named(
    ids: list[int], says: str, classes: Path, tmp_path: Path
) -> None:
    """The post-processor of a tokenizer from elsewhere adds any ids, which the vocabulary need not have."""
    model = shutil.copytree(classes, tmp_path / "model")
    document = json.loads((model / "tokenizer.json").read_text())
    single = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "X", "type_id": 0}}]
    document["post_processor"] = {
        "type": "TemplateProcessing", "single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"X": {"id": "X", "ids": ids, "tokens": ["X"] * len(ids)}},
    }  # fmt: skip
    (model / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ModelError, match=f"the tokenizer of model {says}"):
        predict(model, [{"title": "cat", "body": "cat"}])


def test_a_model_that_can_not_compute_is_named(classes: Path, tmp_path: Path) -> None:
    model = shutil.copytree(classes, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    write_json(model / "config.json", config | {"chunk_size_feed_forward": 10**6})
    with pytest.raises(ModelError, match="the model model can't compute its outputs: ValueError"):
        predict(model, [{"title": "where", "body": "is"}])


def test_a_vocabulary_with_ids_that_a_language_model_does_not_have_is_named(asks: Path, tmp_path: Path) -> None:
    model = shutil.copytree(asks, tmp_path / "model")
    document = json.loads((model / "tokenizer.json").read_text())
    special = {token["content"] for token in document["added_tokens"]}
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {name: id if name in special else id + 9000 for name, id in vocabulary.items()}
    (model / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(ModelError, match=f"the tokenizer of model {OUTSIDE}"):
        predict(model, [{"instruction": "cat", "context": ""}])


def test_a_text_that_is_too_long_is_cut_as_in_training_and_this_is_said(classes: Path) -> None:
    long = {"title": " ".join(WORDS * 3), "body": "cat"}
    (mine,) = predict(classes, [long])
    pipe = transformers.pipeline("text-classification", str(classes), device="cpu")
    text = f"{long['title']} : {long['body']}"
    other = pipe([text], truncation=True, max_length=24)[0]
    assert mine["probabilities"][other["label"]] == pytest.approx(other["score"], abs=1e-6)
    assert mine["cut"] == len(pipe.tokenizer(text)["input_ids"]) - 24


def test_a_prediction_carries_what_the_model_does_not_read_but_under_its_own_names(classes: Path) -> None:
    rows = read_row_format(classes)
    there = ["id", "title", "body", "label", "cut"]
    assert carried_columns(rows, there) == (["id"], ["label", "cut"])
    assert carried_columns(rows, there, ["body", "id", "body"]) == (["body", "id"], [])
    for chosen, says in (("author", "have no column author"), ("label", "the name of a prediction's own")):
        with pytest.raises(ConfigError, match=says):
            carried_columns(rows, there, [chosen])


BLANKS = ["", " ", "\n\t", "\u00a0\u3000"]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(*[st.sampled_from([*BLANKS, *WORDS])] * 2), min_size=1, max_size=6))
def test_a_row_of_empty_texts_gets_no_label_but_a_remark(classes: Path, texts: list[tuple[str, str]]) -> None:
    rows = [{"title": title, "body": body} for title, body in texts]
    judged = [row for row in rows if row["title"].strip() or row["body"].strip()]
    alone = iter(predict(classes, judged))
    for row, found in zip(rows, predict(classes, rows), strict=True):
        if row not in judged:
            text = f"{row['title']} : {row['body']}"
            assert found == {"text": text, "label": None, "probabilities": None, "remark": "the text is empty"}
        else:
            other = next(alone)
            assert (
                found | {"probabilities": pytest.approx(other["probabilities"], abs=1e-6)}
                == found
                == other | {"probabilities": found["probabilities"]}
            )


def generated(folder: Path, prompt: Any, new: int = 6) -> str:
    pipe = transformers.pipeline("text-generation", str(folder), device="cpu")
    made = pipe(prompt, do_sample=False, max_new_tokens=new, return_full_text=False)
    return str(made[0]["generated_text"])


def test_answers_are_the_pipeline_s(asks: Path) -> None:
    (bare,) = predict(asks, "where is the cat")
    prompt = "### Instruction\nwhere is the cat\n\n### Answer\n"
    assert bare["prompt"] == prompt and 0 < bare["tokens"] <= 6
    assert bare["generated"] == generated(asks, prompt) != ""
    (with_context,) = predict(asks, [{"instruction": "why", "context": "a mat", "response": "never read"}])
    prompt = "### Instruction\nwhy\n\n### Context\na mat\n\n### Answer\n"
    assert (with_context["prompt"], with_context["generated"]) == (prompt, generated(asks, prompt))


def test_a_conversation_is_answered_as_by_the_pipeline(chats: Path) -> None:
    turns = [
        {"role": "user", "content": "why is it"}, {"role": "assistant", "content": "on a mat"},
        {"role": "user", "content": "what does the dog do"},
    ]  # fmt: skip
    (mine,) = predict(chats, [{"messages": turns}])
    assert mine["generated"] == generated(chats, turns) != ""
    assert mine["prompt"].endswith("<|user|>what does the dog do</s><|assistant|>")
    (bare,) = predict(chats, "why")
    assert bare["generated"] == generated(chats, [{"role": "user", "content": "why"}])
    never = {"role": "assistant", "content": "never read"}
    assert [
        *predict(chats, [{"messages": [*turns, never]}]),
        *predict(chats, [{"messages": [*turns, never, never]}]),
    ] == [mine, mine]


def test_an_end_token_ends_the_answer(asks: Path, tmp_path: Path) -> None:
    """The first token that the model says is made the end token."""
    folder = tmp_path / "model"
    shutil.copytree(asks, folder)
    pipe = transformers.pipeline("text-generation", str(asks), device="cpu")
    prompt = "### Instruction\nwhy\n\n### Answer\n"
    first = pipe(prompt, do_sample=False, max_new_tokens=1, return_tensors=True)[0]["generated_token_ids"][-1]
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": first}))
    (mine,) = predict(folder, "why")
    assert (mine["tokens"], mine["ended"]) == (1, True)


def test_settings_that_can_t_be_followed_are_one_line(asks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(asks, tmp_path / "own")
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"stop_strings": ["!"]}))
    with pytest.raises(ModelError, match=r"own can't generate: .*stop strings"):
        predict(folder, "why")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"stop_strings": None, "return_dict_in_generate": True}))
    assert predict(folder, "why") == predict(asks, "why")


def test_a_prompt_too_long_for_the_positions_loses_its_first_tokens(asks: Path) -> None:
    (mine,) = predict(asks, " ".join(WORDS * 9))
    assert mine["cut"] > 0 and mine["tokens"] == 6
    (longest,) = predict(asks, " ".join(WORDS * 9), new=500)  # half of the 64 positions stay for the prompt
    assert longest["tokens"] == 32 or longest["ended"]
    assert longest == predict(asks, " ".join(WORDS * 9), new=32)[0] and longest["cut"] - mine["cut"] == 32 - 6


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"messages": [{"role": "assistant", "content": "hm"}]}, "row 1: the conversation has no turn to answer"),
        ({"messages": "no JSON"}, "row 1: the column messages is no JSON"),
        ({"messages": [{"role": "pope", "content": "hm"}]}, "row 1: message 1 has the role 'pope'"),
        ({}, "row 1: the column messages is missing or null"),
    ],
)
def test_a_bad_row_is_named(chats: Path, row: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        predict(chats, [row])


def test_a_bare_text_needs_one_column(classes: Path) -> None:
    with pytest.raises(ConfigError, match="the model reads the columns title, body"):
        predict(classes, "one text")


def test_a_folder_without_its_format_is_refused(classes: Path, tmp_path: Path) -> None:
    shutil.copytree(classes, tmp_path / "model")
    (tmp_path / "model" / ROW_FORMAT_FILE).unlink()
    with pytest.raises(ModelError, match=r"no trnflow\.json"):
        predict(tmp_path / "model", "text")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("rows",), [], "rows is a list"),
        (("max_length",), "24", "max_length is a text"),
        (("task",), "poem", "there is no task poem"),
        (("rows", "more"), 1, "there is no rows.more"),
        (("rows", "settings", "separator"), 5, r"rows\.settings\.separator: Input should be a valid string"),
        (("rows", "settings", "more"), 5, r"rows\.settings\.more: Extra inputs"),
    ],
)
def test_a_damaged_format_is_one_line(classes: Path, tmp_path: Path, path: list[str], value: Any, says: str) -> None:
    model = shutil.copytree(classes, tmp_path / "model")
    document = inner = json.loads((model / ROW_FORMAT_FILE).read_text())
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    write_json(model / ROW_FORMAT_FILE, document)
    with pytest.raises(ModelError, match=rf"trnflow\.json can't be read: {says}"):
        predict(model, "where")


@pytest.mark.parametrize("text", ["[]", "null", "{", "[" * 100_000], ids=range(4))
def test_a_format_that_is_no_object_is_one_line(classes: Path, tmp_path: Path, text: str) -> None:
    model = shutil.copytree(classes, tmp_path / "model")
    (model / ROW_FORMAT_FILE).write_text(text)
    with pytest.raises(ModelError, match=r"trnflow\.json can't be read"):
        predict(model, "where")


def test_a_tokenizer_s_setting_of_another_type_is_one_line(classes: Path, tmp_path: Path) -> None:
    model = shutil.copytree(classes, tmp_path / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    write_json(model / "tokenizer_config.json", settings | {"do_lower_case": None})
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: 'None' is not .*'lowercase'"):
        predict(model, [{"title": "where", "body": "is"}])


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("model", {"type": "WordLevel", "vocab": {}, "unk_token": "x"}),
        (
            "post_processor",
            {
                "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}], "pair": [],
                "special_tokens": {},
            },
        ),
    ],
)  # fmt: skip
def test_a_tokenizer_that_reads_no_text_is_one_line(
    classes: Path, tmp_path: Path, part: str, value: dict[str, Any]
) -> None:
    model = shutil.copytree(classes, tmp_path / "model")
    document = json.loads((model / "tokenizer.json").read_text())
    write_json(model / "tokenizer.json", document | {part: value})
    with pytest.raises(ModelError, match="the tokenizer of model can't read the text"):
        predict(model, [{"title": "where", "body": "is"}])


@pytest.mark.parametrize("labels", [{"5": "a", "6": "b", "7": "c"}, {"0": "a", "1": "b", "2": "a"}, None])
def test_labels_that_do_not_name_each_class_once_are_refused(
    classes: Path, tmp_path: Path, labels: dict[str, str] | None
) -> None:
    """Else a KeyError, or of two classes with one name the probability of one alone."""
    model = shutil.copytree(classes, tmp_path / "model")
    config = json.loads((model / "config.json").read_text()) | {"id2label": labels}
    if labels is None:
        del config["id2label"]
        config["num_labels"] = 3
    write_json(model / "config.json", config)
    with pytest.raises(ModelError, match=r"config\.json: id2label must name each class once, by its number from 0"):
        predict(model, [{"title": "where", "body": "is"}])


def test_weights_that_a_model_lacks_are_not_replaced_by_random_ones(classes: Path, tmp_path: Path) -> None:
    """`generated` was another text each time, without a word: transformers warns in its log alone."""
    model = shutil.copytree(classes, tmp_path / "model")
    document = json.loads((model / ROW_FORMAT_FILE).read_text())
    document["rows"]["settings"] |= {"task": "text", "text": "title", "text_pair": None}
    write_json(model / ROW_FORMAT_FILE, document | {"task": "causal_lm"})
    with pytest.raises(ModelError, match=r"has no weights for cls\..*, which a model for causal_lm needs"):
        predict(model, [{"title": "where is the cat"}])


@pytest.mark.parametrize(
    ("lines", "error", "says"),
    [
        ("", DataError, "holds no rows"),
        ("[]", DataError, "holds no rows"),
        ('{"text": "a"}\n[1]\n', DataError, r"rows\.jsonl line 2 is not an object"),
        ('{"text": "a"}\nnot json\n', DataError, r"rows\.jsonl line 2 is not JSON"),
        ('{"other": "a"}\n', ConfigError, r"has no column text, which the model reads \(it has: other\)"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, lines: str, error: type[Exception], says: str) -> None:
    (tmp_path / "rows.jsonl").write_text(lines)
    with pytest.raises(error, match=says):
        RowFile(tmp_path / "rows.jsonl", ["text"], [])


def test_columns_of_bytes_are_known_inside_lists_and_objects_too(tmp_path: Path) -> None:
    columns = {"text": ["a"], "photo": [b"x"], "photos": [[b"x"]], "page": [{"scan": b"x", "of": 1}], "tags": [["a"]]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    assert RowFile(tmp_path / "rows.parquet", ["text"], []).bytes == ["photo", "photos", "page"]


def test_a_misspelt_column_that_rows_may_lack_is_found(tmp_path: Path) -> None:
    for column, found in (("contxt", "contxt"), ("Context", "Context"), ("id", None), ("text", None)):
        (tmp_path / "rows.jsonl").write_text(json.dumps({"instruction": "why?", column: "so"}))
        file = RowFile(tmp_path / "rows.jsonl", ["instruction"], ["context", "tools"])
        assert file.misspelt == ({"context": found} if found else {})
    (tmp_path / "rows.jsonl").write_text(json.dumps({"instruction": "why?", "context": "", "contexts": []}))
    assert RowFile(tmp_path / "rows.jsonl", ["instruction"], ["context"]).misspelt == {}


def test_a_prompt_is_cut_where_a_model_names_no_positions(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As BLOOM does: its attention takes as much memory as the prompt is long, squared."""
    from transformers.models.bloom import BloomConfig, BloomForCausalLM

    from trnflow.tasks.prediction import generation

    shutil.copytree(shared / "assets/stories260K-hf", tmp_path / "model", copy_function=shutil.copyfile)
    BloomForCausalLM(BloomConfig(vocab_size=512, hidden_size=8, n_layer=1, n_head=1)).save_pretrained(
        tmp_path / "model"
    )
    monkeypatch.setattr(generation, "PROMPT", 64)
    generator = generation.Generator(tmp_path / "model", (), False, 4)
    assert "cut" not in generator.predict([{"text": "a day", "train": False}], "row 1")
    said = generator.predict([{"text": "a day " * 200, "train": False}], "row 1")
    assert said["tokens"] <= 4 and said["cut"] > 100
    ids, kept = generator._ids([{"text": "a day " * 200, "train": False}], "row 1")
    assert kept == [ids[0], *ids[-59:]] and ids[0] == 1, "the beginning stays"


def test_a_text_is_cut_to_the_positions_of_the_model_where_rows_were_longer(classes: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(classes, tmp_path / "longer"))
    document = json.loads((folder / ROW_FORMAT_FILE).read_text())
    write_json(folder / ROW_FORMAT_FILE, {**document, "max_length": 48})
    long = {"title": " ".join(WORDS * 3), "body": "cat"}
    assert predict(folder, [long]) == predict(classes, [long])
