"""`tokenize.new_tokens`: one id wherever a text spells one, in our ids, the library's and transformers', and refusals."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer, models, normalizers

from tests.data.tokenization.test_tokenize_text import BERT, LLAMA, SCRATCH, instructions, rows, texts_of, tokenizer_of
from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import new_bench, table
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.data.tokenization import tokenizer_training
from trnflow.tasks.data.tokenization.config import TokenizeConfig
from trnflow.tasks.data.tokenization.recipe_tokenizer import make_tokenizer
from trnflow.tasks.data.tokenization.tokenizer import add_tokens, read_tokenizer, save_tokenizer
from trnflow.tasks.errors import DataError, ModelError

NEW = ["<tool>", "</tool>", "<Ünit>"]
TEXT = "Call <tool>Add(1, 2)</tool>, then <tool> wait </tool>\n<Ünit><TOOL>\n\n</tool>x"


@pytest.mark.parametrize("model", [{"source": LLAMA}, {**SCRATCH, "tokenizer": BERT}], ids=["llama", "bert"])
def test_a_new_token_is_one_id_everywhere(model, bench, shared):
    from transformers import AutoTokenizer

    given = {name: str(shared / path) if isinstance(path, str) else path for name, path in model.items()}
    plain, new = (bench.tokens(classes(bench), given, new_tokens=some) for some in ([], NEW))
    first, ids = plain.meta["vocab_size"], new.meta["new_tokens"]
    assert ids == [first, first + 1, first + 2] and new.meta["vocab_size"] == first + 3
    assert "new_tokens" not in plain.meta
    made, _ = rows(new, "train")
    assert [token for token in made if token in ids] == [first, first + 1, first, first + 1, first + 2, first + 1]
    theirs = AutoTokenizer.from_pretrained(new.path / "tokenizer")
    assert tokenizer_of(new).encode(TEXT).ids == made == theirs(TEXT)["input_ids"]
    for token, number in zip(NEW, ids, strict=True):
        assert theirs.convert_tokens_to_ids(token) == number and theirs.decode([number]) == token
    # they are part of what a model answers, and no marks around it
    assert theirs.decode(made, skip_special_tokens=True).count("<tool>") == 2
    unchanged = "Call add ( 1, 2 ) then wait"
    assert theirs(unchanged)["input_ids"] == tokenizer_of(plain).encode(unchanged).ids


def classes(bench):
    return texts_of(bench, {"text": [TEXT, "no"], "label": ["a", "b"]})


def test_a_language_model_reads_and_learns_them(bench, shared):
    texts = instructions(bench, ("Use a <tool>", "<tool>add</tool>"))
    tokens = bench.tokens(texts, {"source": str(shared / LLAMA)}, new_tokens=NEW)
    (ids,), (mask,) = rows(tokens, "train"), rows(tokens, "train", "loss_mask")
    opened, closed, _ = tokens.meta["new_tokens"]
    assert [mask[at] for at, token in enumerate(ids) if token in (opened, closed)] == [0, 1, 1]
    (parts,) = table(texts, "train")["parts"]
    assert ids == [*tokenizer_of(tokens).encode("".join(part["text"] for part in parts)).ids, 2]


@pytest.mark.parametrize(
    ("model", "token", "message"),
    [
        (LLAMA, "</s>", r"new_tokens: '</s>' is a token of stories260K-hf already, with id 2"),
        (LLAMA, "the", r"'the' is a token of stories260K-hf already"),
        (BERT, "tool", r"'tool' is a token of bert-base-uncased already"),
        (LLAMA, " <tool>", r"stories260K-hf encodes ' <tool>' as \[513\] and decodes 513 as '<tool>'"),
    ],
)
def test_a_token_that_can_not_be_new_is_named(model, token, message, bench, shared):
    settings = {**SCRATCH, "tokenizer": str(shared / model)}
    with pytest.raises(ModelError, match=message):
        bench.tokens(classes(bench), settings, new_tokens=["<a>", token])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"new_tokens": ["<a>", " "]}, r"entry 2, ' ', is blank"),
        ({"new_tokens": ["<a>", "<b>", "<a>"]}, r"entry 3, '<a>', stands there twice"),
        ({"new_tokens": ["<a>"], "train": {}}, r"`train` makes a new one of your texts: leave one out"),
    ],
)
def test_a_list_that_can_not_be_meant_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        TokenizeConfig(**fields)


RECIPE = """
extends: [demo-llm, base/hardware/cpu]
name: boats
data: {source: rows.jsonl, name: null, text: text, split: {validation: 0.2, test: 0.25}}
format: {task: text}
model: {source: SOURCE, config: {}}
tokenize: {train: null, max_length: 96, new_tokens: ["<boat>", "</boat>"]}
pack: {chunk_length: 96}
train: {engine: native, devices: 1, tensor_parallel_size: 1, zero1: false, dtype: float32, warmup_ratio: 0.0, method: lora,
  max_steps: 12, global_batch: 4, micro_batch: 4, learning_rate: 1.0e-2, checkpoint_every: 100}
export: {target: gguf}
evaluate: {prompts: ["A <boat>"], generation: {prompts: 1, max_new_tokens: 8}}
tracking: {enabled: false}
"""


@pytest.mark.slow
def test_all_stages_carry_new_tokens_and_a_warm_start_goes_on(shared: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    shell, source = InProcessShell(tmp_path), shared / LLAMA
    texts = [f"A <boat>Red {n}</boat> sails, and then <boat> {n} stops </boat>." for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "boats.yaml").write_text(RECIPE.replace("SOURCE", str(source)))
    made = shell.json("run", "boats.yaml", "--direct")
    digests = {stage["stage"]: stage["artifact"] for stage in made["stages"]}
    folder, report = tmp_path / "model", tmp_path / "report"
    shell("get", "boats.yaml", "consolidate", str(folder))
    shell("get", "boats.yaml", "evaluate_model", str(report))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert tokenizer("a <boat> b</boat>c")["input_ids"].count(512) == 1 and len(tokenizer) == 514
    assert (
        GenerationConfig.from_pretrained(folder / "adapter").eos_token_id
        == model.generation_config.eos_token_id
        == [2, 1]
    )
    assert len(model.get_input_embeddings().weight) == len(model.lm_head.weight) == model.config.vocab_size == 514
    told = json.loads((report / "generations.jsonl").read_text().splitlines()[0])
    grown = AutoModelForCausalLM.from_pretrained(source)
    rows = grown.resize_token_embeddings(514, mean_resizing=False).weight
    rows.data[512:] = rows.data[:512].mean(0)
    ids = torch.tensor([tokenizer("A <boat>")["input_ids"]])
    for known, field in ((grown, "before"), (model, "generated")):
        answer = known.generate(ids, do_sample=False, max_new_tokens=8, pad_token_id=2)[0, ids.shape[1] :]
        assert told[field] == tokenizer.decode(answer, skip_special_tokens=True)
    assert told["before"] != told["generated"]
    warm = (f"train.warm_start_from={digests['consolidate']}", "train.method=full", "train.lora=null")
    again = shell.json("run", "boats.yaml", "--direct", "--until", "train", *warm)
    before, after = ({stage["stage"]: stage["metrics"] for stage in run["stages"]}["train"] for run in (made, again))
    assert after["eval_loss_before"] == pytest.approx(before["eval_loss"], abs=1e-4)
    assert after["eval_loss"] < before["eval_loss"]


def test_the_characters_of_a_vocabulary_are_the_most_frequent_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    monkeypatch.setattr(tokenizer_training, "MOST_CHARACTERS", 3)
    assert tokenizer_training._characters(tokenizer, ["ccC b\tb", "zz a a", "q \u3000"]) == ["a", "b", "c"]
    with pytest.raises(DataError, match="holds no characters"):
        tokenizer_training._characters(tokenizer, [" \n"])


def test_the_list_of_added_tokens_keeps_those_that_were_there(tmp_path: Path) -> None:
    source, known = tmp_path / "source", {"0": {"content": "<pad>", "special": True}}
    source.mkdir()
    Tokenizer(models.WordLevel({"<pad>": 0, "a": 1}, "<pad>")).save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>", "added_tokens_decoder": known}))
    loaded = read_tokenizer(source)
    save_tokenizer(loaded, source, tmp_path / "out", {}, add_tokens(loaded, ["<tool>"]))
    written = json.loads((tmp_path / "out/tokenizer_config.json").read_text())["added_tokens_decoder"]
    assert written["0"] == known["0"] and written["2"]["content"] == "<tool>" and not written["2"]["special"]


@pytest.mark.parametrize(("size", "fits"), [(3, True), (2, False)])
def test_the_largest_id_has_to_be_one_of_the_models_rows(tmp_path: Path, size: int, fits: bool) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    Tokenizer(models.WordLevel({"<pad>": 0, "a": 1, "b": 2}, "<pad>")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    identity = {"config": {"pretrained": {"vocab_size": 9}, "overrides": {"vocab_size": size}}}
    model = Source("model", identity, {"tokenizer": {"folder": str(folder)}})
    texts: Any = Input(tmp_path, "texts", {"framed": False, "templates": []}, "sha256:t")
    with nullcontext() if fits else pytest.raises(ModelError, match="has ids up to 2, and the model takes 2 "):
        made = make_tokenizer(TokenizeConfig(), texts, model, True, new_bench(tmp_path).workdir())
        assert made["vocab_size"] == 3
