"""What a plan says of a model's folder: what of it is used, and what the recipe replaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import loaded_rows, new_bench
from trnflow.tasks.artifact import Artifact, Source
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.format_prompts import format_prompts
from trnflow.tasks.stage import Known, stage_of, write_json
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.needs import needs
from trnflow.tasks.training.own_head import remarks_of_head

CONFIG = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 64, "hidden_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
EMBEDDING = """
extends: embedding
data: {source: rows.jsonl, text: a, dedupe: false}
format: {text_pair: b, negative: null}
model: {source: folder, revision: null}
"""
CLASSES = """
extends: classify
data: {source: rows.jsonl, text: a, label: b}
model: {source: folder, revision: null}
"""
RERANKER = """
extends: reranker
data: {source: rows.jsonl, text: a}
format: {text_pair: b, target: c}
model: {source: folder, revision: null}
"""


def project(folder: Path, recipe: str, **files: Any) -> InProcessShell:
    (folder / "mine.yaml").write_text(recipe)
    rows = [{"a": f"text {n}", "b": ("Pos", "neg")[n % 2], "c": n % 2} for n in range(60)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_json(folder / "folder/tokenizer.json", {})
    for name, document in {"config.json": CONFIG, **files}.items():
        write_json(folder / "folder" / name, document)
    return InProcessShell(folder)


def said(shell: InProcessShell, *overrides: str) -> str:
    return "\n".join(shell.json("plan", "mine.yaml", "--on", "cpu", *overrides)["notes"])


def sentence_files(pooling: dict[str, Any], *more: str, **texts: Any) -> dict[str, Any]:
    modules = ("Transformer", "Pooling", *more)
    return {
        "modules.json": [
            {"idx": at, "name": str(at), "path": "" if not at else f"{at}_{kind}", "type": f"sentence_transformers.models.{kind}"}
            for at, kind in enumerate(modules)
        ],
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False, **texts},
    }  # fmt: skip


@pytest.mark.parametrize(
    "pooling", [{"pooling_mode": "cls"}, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}]
)
def test_the_folders_own_pooling_is_taken_over(tmp_path: Path, pooling: dict[str, Any]) -> None:
    shell = project(tmp_path, EMBEDDING, **sentence_files(pooling, "Normalize"))
    usual = said(shell)
    assert "own pooling" not in usual and "normalize" not in usual
    assert "the model's own pooling is cls, and format.pooling replaces it by mean" in said(
        shell, "format.pooling=mean"
    )
    bench, model = new_bench(tmp_path), {"source": str(tmp_path / "folder")}
    rows = loaded_rows(tmp_path, {"a": ["x", "y"], "b": ["v", "w"]}, text=["a"])
    for own, wanted in {"mean": "mean", None: "cls"}.items():
        given = {"task": "embedding", "text_pair": "b", **({"pooling": own} if own else {})}
        texts = bench.texts(rows, model, **given)
        assert texts.meta["head"]["pooling"] == wanted
        # by the recorded settings predict makes vectors, and the key has what the folder says
        assert texts.meta["rows"]["settings"].get("pooling") == wanted
        rows_made = Artifact("sha256:0", "rows", rows.meta, ())
        keyed = stage_of(format_prompts).inputs(FormatConfig(**given), {"rows": rows_made, "model": bench.model(model)})
        assert keyed.get("pooling") == (None if own else "cls")


def test_what_of_sentence_transformers_files_is_not_used_is_said(tmp_path: Path) -> None:
    files = sentence_files({"pooling_mode": "mean"}, "Dense", do_lower_case=True)
    prompts = {"config_sentence_transformers.json": {"prompts": {"query": "query: ", "document": ""}}}
    text = said(project(tmp_path, EMBEDDING, **files, **prompts))
    assert "format.normalize=true replaces what the model's modules.json does" in text
    assert "the model's Dense of modules.json is left out" in text
    assert "sentence_bert_config.json says do_lower_case" in text
    assert "the prompts of config_sentence_transformers.json (query)" in text
    assert "reads 32 tokens of a text (sentence_bert_config.json), and tokenize.max_length is 128" in text


def test_a_pooling_that_training_does_not_know_is_refused(tmp_path: Path) -> None:
    shell = project(tmp_path, EMBEDDING, **sentence_files({"pooling_mode": "lasttoken"}, "Normalize"))
    error = shell.error("plan", "mine.yaml", "--on", "cpu", code=2)
    assert "the model's own is lasttoken" in error and "set format.pooling" in error


@pytest.mark.parametrize(
    ("own", "remark"),
    [
        ({"0": "neg", "1": "Pos"}, "another order, and begins with them exchanged: set data.labels=[neg, Pos]"),
        ({"0": "Pos", "1": "neg"}, ""),
        ({"0": "LABEL_0", "1": "LABEL_1"}, ""),
        ({"0": "ham", "1": "spam"}, "the model's labels ham, spam are replaced by"),
        ({"0": "a", "1": "b", "2": "c"}, ""),
    ],
)
def test_labels_of_a_head_that_is_there_already(tmp_path: Path, own: dict[str, str], remark: str) -> None:
    shell = project(tmp_path, CLASSES, **{"config.json": {**CONFIG, "id2label": own}})
    text = said(shell, "data.labels=[Pos, neg]")
    assert remark in text and ("labels" in text) == bool(remark)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_router_s_loss_is_not_added(tmp_path: Path, wanted: bool) -> None:
    shell = project(tmp_path, CLASSES, **{"config.json": {**CONFIG, "output_router_logits": wanted}})
    assert ("the router's loss (output_router_logits) is not added" in said(shell)) == wanted


@pytest.mark.parametrize("start", [None, "mine"])
def test_a_head_that_a_warm_start_replaces_is_not_remarked(start: str | None) -> None:
    config = {"pretrained": {**CONFIG, "id2label": {"0": "neg", "1": "Pos"}}, "overrides": {}}
    model = Source("model", {"config": config, "weights": {}}, {"model": {}})
    known = Known({"model": model}, {"chunks": {"task": "classification", "labels": ["Pos", "neg"]}})
    remarks = [*needs(TrainConfig(engine="native", warm_start_from=start), known)]
    assert ["begins with them exchanged" in text for text in remarks] == [True] * (start is None)


def test_what_a_cross_encoder_made_of_its_scores_is_replaced(tmp_path: Path) -> None:
    own = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    shell = project(tmp_path, RERANKER, **{"config.json": {**CONFIG, **own}})
    assert "is replaced by the sigmoid, by which a reranker learns" in said(shell)


@pytest.mark.parametrize(
    ("name", "begins", "remark"),
    [
        (
            "intfloat/multilingual-e5-small",
            "",
            "begin with `query: ` or `passage: `, as its card says, and 0 of 4 of train",
        ),
        ("intfloat/e5-base-v2", "query: ", ""),
        ("intfloat/multilingual-e5-large-instruct", "", ""),
        ("nomic-ai/nomic-embed-text-v1.5", "query: ", "begin with `search_query: ` or `search_document: `"),
        ("BAAI/bge-small-en", "", ""),
        (None, "", ""),
    ],
)
def test_prefixes_that_a_model_s_card_alone_names(tmp_path: Path, name: str | None, begins: str, remark: str) -> None:
    write_json(tmp_path / "folder/config.json", CONFIG)
    rows = loaded_rows(tmp_path, {"a": [f"{begins}{n}" for n in range(4)], "b": [*"vwxy"]}, text=["a"])
    bench = new_bench(tmp_path)
    bench.texts(rows, {"source": str(tmp_path / "folder"), "name": name}, task="embedding", text_pair="b")
    told = [text for text in bench.warnings() if "card" in text]
    assert [remark in text for text in told] == [True] * bool(remark)


@pytest.mark.parametrize(
    ("source", "task", "said"),
    [
        ("folder", "embedding", 1),
        ("e5-base", "embedding", 1),
        ("e5-base", "reranker", 0),
        ("models--intfloat--e5-base/snapshots/0123abc", "embedding", 1),
        ("e5-base-or-not/minilm", "embedding", 0),
    ],
)
def test_prefixes_by_the_folder_s_name(tmp_path: Path, source: str, task: str, said: int) -> None:
    write_json(
        tmp_path / source / "config.json", {**CONFIG, "_name_or_path": "intfloat/e5-base" * (source == "folder")}
    )
    rows = loaded_rows(tmp_path, {"a": [*"abcd"], "b": [*"vwxy"], "c": [0, 1, 0, 1]}, text=["a"])
    bench, target = new_bench(tmp_path), {"target": "c"} if task == "reranker" else {}
    bench.texts(rows, {"source": str(tmp_path / source)}, task=task, text_pair="b", **target)
    assert len([text for text in bench.warnings() if "card" in text]) == said


def test_eleven_labels_of_a_head_stand_in_the_order_of_their_numbers() -> None:
    names = [f"team {number}" for number in range(11)]
    config = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(n): name for n, name in enumerate(names)},
    }
    assert [*remarks_of_head(config, {"task": "classification", "labels": names})] == []
    (remark,) = remarks_of_head(config, {"task": "classification", "labels": names[::-1]})
    assert remark.endswith(f"set data.labels=[{', '.join(names)}]")
