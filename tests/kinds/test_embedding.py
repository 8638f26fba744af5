"""Losses and metrics of embeddings beside sentence-transformers', equal over ranks, and what rows may hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.clients.conftest import RunClient, run_client
from tests.helpers.command_line import InProcessShell
from tests.helpers.products import few
from tests.training.run_stage import check_resumes_after_a_kill, run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, VOCABULARY, pretrained, write_packed
from trnflow.flows.recipes import recipe as settings
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.evaluation.row_outputs import texts_apart
from trnflow.tasks.kinds import embedding
from trnflow.tasks.kinds.embedding import Embedding
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.kinds.reranker import number_of_query
from trnflow.tasks.kinds.targets import Outputs
from trnflow.tasks.training.batches.sampler import Schedule, Split
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.objective import refuse_batches

__all__ = ["run_client"]
CASES = {
    "pairs": (["anchor", "positive"], "mean"),
    "triplets": (["anchor", "positive", "negative"], "cls"),
    "scores": (["score"], "mean"),
}
COMMON: dict[str, Any] = {
    "engine": "native", "global_batch": 8, "learning_rate": 3e-3, "weight_decay": 0.0, "log_every": 1, "max_steps": 20,
    "seed": 5,
}  # fmt: skip
MESHES: dict[str, dict[str, Any]] = {
    "one": {},
    "two": {"devices": 2, "fsdp": True},
    "xla": {"engine": "xla", "devices": 2},
    "passes": {"micro_batch": 2},
    "passes of two": {"devices": 2, "zero1": True, "micro_batch": 2},
    "passes of fsdp": {"devices": 2, "fsdp": True, "micro_batch": 1},
}
CLIENT = "sentence-transformers"


def started(folder: Path) -> Source:
    """A model with all its weights, and a tokenizer, in `folder`."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(1)
    fields = {name: value for name, value in BERT.items() if name != "model_type"}
    config = transformers.BertConfig(**fields, **DRY, vocab_size=VOCABULARY, pad_token_id=0, initializer_range=0.2)
    transformers.BertModel(config).save_pretrained(folder)
    words = {"[PAD]": 0, "[UNK]": 1, **{f"w{number}": number for number in range(2, VOCABULARY)}}
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="[PAD]").save_pretrained(folder)
    return pretrained(folder)


def packed_texts(folder: Path, labels: list[str], pooling: str, length: int = 24) -> Input:
    """Rows of several texts, each a segment with positions from 0; numbers of texts by their tokens."""
    random = np.random.default_rng(3)
    texts = 2 if len(labels) == 1 else len(labels)

    def split(count: int) -> dict[str, np.ndarray]:
        columns = {name: np.zeros((count, length), int) for name in ("input_ids", "segment_ids", "position_ids")}
        targets = []
        for row in range(count):
            at, shared = 0, random.integers(4, VOCABULARY, 2)
            numbers: list[float] = []
            for text in range(texts):
                size = int(random.integers(3, length // texts + 1))
                ids = random.integers(4, VOCABULARY, size)
                ids[: 2 if text < 2 else 0] = shared[: 2 if text < 2 else 0]
                here = slice(at, at + size)
                columns["input_ids"][row, here], columns["segment_ids"][row, here] = ids, text + 1
                columns["position_ids"][row, here], at = np.arange(size), at + size
                numbers += number_of_query(str(ids))
            targets.append([float(random.integers(0, 6))] if len(labels) == 1 else numbers)
        return {**columns, "labels": np.array(targets)}

    packed = write_packed(
        folder, "embedding", labels, {name: {length: split(n)} for name, n in (("train", 48), ("validation", 9))}
    )
    packed.meta["head"] = {"texts": texts, "pooling": pooling, "normalize": True}
    return packed


THEIR_TRAINER = """
import json, sys
import numpy as np, torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers import losses
from sentence_transformers.models import Pooling, Transformer
folder, batches, pooling, loss, to = sys.argv[1:]
stored = np.load(batches)
steps = 1 + max(int(name.split("/")[0]) for name in stored)
at = [(name, *name.split("/")) for name in stored]
rows = [{column: torch.from_numpy(stored[name]) for name, number, column in at if int(number) == step} for step in range(steps)]
word = Transformer(folder)
model = SentenceTransformer(modules=[word, Pooling(word.get_word_embedding_dimension(), pooling)], device="cpu")
class InOrder(SentenceTransformerTrainer):
    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(rows, batch_size=None, shuffle=False, collate_fn=lambda item: item)
arguments = SentenceTransformerTrainingArguments(
    to, max_steps=steps, learning_rate=3e-3, weight_decay=0.0, logging_steps=1, save_strategy="no", report_to="none",
    disable_tqdm=True, use_cpu=True,
)
small = {"mini_batch_size": 2} if loss.startswith("Cached") else {}
unread = Dataset.from_dict({"a": [""] * steps, "b": [""] * steps})
trainer = InOrder(model, arguments, train_dataset=unread, loss=getattr(losses, loss)(model, **small))
trainer.train()
print(json.dumps([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]))
"""


def write_batches(packed: Input, file: Path) -> None:
    """The batches of training as sentence-transformers' features: `<step>/<column>`."""
    train = Split(packed, "train")
    schedule = Schedule(train.rows, COMMON["global_batch"], seed=COMMON["seed"], last_batch="drop")
    arrays: dict[str, Any] = {}
    for step in range(COMMON["max_steps"]):
        batch = train.read(schedule.address(step))
        for name, text in zip("abc", texts_apart(batch, Embedding()), strict=False):
            arrays[f"{step}/{name}_input_ids"] = text.input_ids.astype(np.int64)
            arrays[f"{step}/{name}_attention_mask"] = text.segment_ids.astype(np.int64)
        if batch.targets.shape[1] == 1:
            arrays[f"{step}/label"] = batch.targets[:, 0]
    np.savez(file, **arrays)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "micro"),
    few([("triplets", 2), ("scores", 8), ("triplets", 8), ("scores", 2), ("pairs", 8), ("pairs", 2)], 2),
)
def test_losses_are_those_of_the_trainer_of_sentence_transformers(
    case: str, micro: int, tmp_path: Path, run_client: RunClient
) -> None:
    labels, pooling = CASES[case]
    source, packed = started(tmp_path / "model"), packed_texts(tmp_path / "packed", labels, pooling)
    config = TrainConfig(**COMMON, micro_batch=micro)
    ours = run_stage(traced_and_trained, config, tmp_path / "run", model=source, packed=packed).curve("loss")
    write_batches(packed, tmp_path / "batches.npz")
    loss = "CoSENTLoss" if case == "scores" else f"{'Cached' if micro < 8 else ''}MultipleNegativesRankingLoss"
    theirs = run_client(
        CLIENT,
        THEIR_TRAINER,
        tmp_path / "model",
        tmp_path / "batches.npz",
        pooling,
        loss,
        tmp_path / "theirs",
        kept=True,
    )
    assert len(theirs) == len(ours) == 20 and theirs[-1] < 0.9 * theirs[0]
    apart = max(abs(a - b) for a, b in zip(ours.values(), theirs, strict=True))
    print(f"{case} {loss}: largest difference of 20 losses {apart:.2g}")
    assert apart <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("case", few(["pairs", "scores"], 1))
def test_several_ranks_and_engine_xla_see_the_whole_batch(case: str, tmp_path: Path) -> None:
    labels, pooling = CASES[case]
    inputs = {"model": started(tmp_path / "model"), "packed": packed_texts(tmp_path / "packed", labels, pooling)}
    curves = {}
    for name, more in MESHES.items():
        config = TrainConfig(**{**COMMON, "max_steps": 8, "last_batch": "pad", **more})
        run = run_stage(traced_and_trained, config, tmp_path / name, **inputs)
        curves[name] = [*run.curve("loss").values(), *run.curve("eval_loss").values()]
    for name in [*MESHES][1:]:
        apart = max(abs(a - b) for a, b in zip(curves["one"], curves[name], strict=True))
        print(f"{case} {name}: largest difference {apart:.2g}")
        assert apart <= 1e-5


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    labels, pooling = CASES["triplets"]
    inputs = {"model": started(tmp_path / "model"), "packed": packed_texts(tmp_path / "packed", labels, pooling)}
    fields = {"max_steps": 60, "checkpoint_every": 8, "last_batch": "pad", "global_batch": 10, "micro_batch": 5}
    check_resumes_after_a_kill(TrainConfig(**{**COMMON, **fields}), tmp_path, inputs)


@pytest.mark.slow
def test_an_adapter_opens_in_peft_and_gives_the_vectors_of_the_merged_model(tmp_path: Path) -> None:
    import peft
    import torch
    from transformers import AutoModel

    labels, pooling = CASES["pairs"]
    inputs = {"model": started(tmp_path / "model"), "packed": packed_texts(tmp_path / "packed", labels, pooling)}
    method = {"method": "lora", "lora": {"rank": 4, "alpha": 8, "targets": "all-linear"}}
    found = [
        run_stage(traced_and_trained, TrainConfig(**COMMON, **method, **more), tmp_path / f"{n}", **inputs)
        for n, more in enumerate(({}, {"micro_batch": 2, "devices": 2}))
    ]
    curves = [[*run.curve("loss").values()] for run in found]
    assert curves[0] == pytest.approx(curves[1], abs=1e-5) and curves[0][-1] < 0.9 * curves[0][0]
    made = run_stage(
        consolidate, ConsolidateConfig(), tmp_path / "merged", shards=found[0].artifact, model=inputs["model"]
    )
    ids = torch.arange(4, 28)[None]
    with torch.no_grad():
        merged = AutoModel.from_pretrained(made.artifact.path)(ids).last_hidden_state
        base = AutoModel.from_pretrained(tmp_path / "model")
        before = base(ids).last_hidden_state
        theirs = peft.PeftModel.from_pretrained(base, made.artifact.path / "adapter").eval()(ids).last_hidden_state
    torch.testing.assert_close(merged, theirs, rtol=0, atol=1e-5)
    assert (merged - before).abs().max() > 0.1


def of_rows(rows: Sequence[tuple[str, ...]]) -> Any:
    import torch

    return torch.tensor([[part for text in row for part in number_of_query(text)] for row in rows])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_vector_is_of_the_tokens_of_its_text_alone(pooling: str) -> None:
    import torch

    segments = torch.tensor([[1, 1, 1, 2, 2, 0, 0, 0], [1, 2, 2, 2, 2, 2, 0, 0]])
    states = np.random.default_rng(0).normal(size=(2, 8, 5)).astype(np.float32)
    head = {"texts": 2, "pooling": pooling, "normalize": False}
    found = Embedding().logits_of((torch.from_numpy(states),), segments, head).view(2, 2, 5)
    for row, text in np.ndindex(2, 2):
        own = states[row, segments[row].numpy() == text + 1]
        wanted = own.mean(0) if pooling == "mean" else own[0]
        np.testing.assert_allclose(found[row, text].numpy(), wanted, atol=1e-6)


def test_equal_texts_and_rows_that_fill_a_batch_are_no_negatives() -> None:
    import torch

    rows = [("a", "1", "x"), ("b", "2", "y"), ("c", "1", "z"), ("a", "4", "1"), ("d", "5", "2")]
    random = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(5, 3, 4, generator=random), dim=-1)
    targets = of_rows(rows)
    targets[4] = float("nan")
    anchors, others = vectors[:, 0], torch.cat([vectors[:, 1], vectors[:, 2]])
    scores = anchors @ others.T * 20
    # columns: the positives 1 2 1 4 5, the negatives x y z 1 2; the last row only fills the batch
    choices = [[0, 1, 5, 6, 7], [0, 1, 2, 3, 5, 6, 7, 8], [1, 2, 3, 5, 6, 7], [1, 2, 3, 5, 6, 7, 8]]
    each = [scores[row, kept].logsumexp(0) - scores[row, row] for row, kept in enumerate(choices)]
    mean = Embedding().loss_sum(vectors.flatten(1), targets) / (4 * 6)
    assert mean == pytest.approx(float(sum(each) / 4), abs=1e-5)


def test_texts_that_are_their_own_positive_or_negative_are_counted() -> None:
    sound = [(f"q{n}", f"p{n}", f"n{n}") for n in range(300)]
    rows = [*sound, ("a", "b", "b"), ("c", "d", "d"), ("e", "f", "e")]
    assert [*Embedding().remarks(of_rows(rows).numpy(), None)] == [
        "1 of 303 rows have their anchor as negative, too: leave one of them out",
        "2 of 303 rows have their positive as negative, too: leave one of them out",
    ]
    few, many = [*sound, ("a", "a", "b")], [*sound, *((f"s{n}", f"s{n}", "x") for n in range(9))]
    assert not [*Embedding().remarks(of_rows(few).numpy(), None)]
    (told,) = Embedding().remarks(of_rows(many).numpy(), None)
    assert told == "9 of 309 rows have the text itself as its positive, which teaches nothing"


def test_a_collapsed_model_finds_nothing_and_texts_count_once() -> None:
    rows = [(f"q{n}", f"p{n // 2}") for n in range(40)]
    targets = of_rows(rows).numpy()
    right = np.eye(20, dtype=np.float32)[np.repeat(np.arange(20), 2)]
    nothing = np.zeros((40, 1))
    found = Embedding().values(Outputs(targets, np.concatenate([right, right], 1), nothing, nothing[:, 0]))
    assert found["recall_at_1"] == found["mrr_at_10"] == 1 and "spearman" not in found
    alike = Embedding().values(Outputs(targets, np.ones((40, 40), np.float32), nothing, nothing[:, 0]))
    assert alike["recall_at_10"] == alike["mrr_at_10"] == 0


def test_an_anchor_that_is_a_positive_of_another_row_is_not_in_its_own_way() -> None:
    """Pairs in both orders, as of paraphrases: with the anchor among the choices a perfect model had recall@1 0."""
    import torch

    rows = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("e", "e"), ("f", "g")]
    targets, nothing = of_rows(rows), np.zeros((6, 1))
    right = np.eye(4, dtype=np.float32)[[0, 0, 1, 1, 2, 3]]
    outputs = Outputs(targets.numpy(), np.concatenate([right, right], 1), nothing, nothing[:, 0])
    assert Embedding().values(outputs) == {"mrr_at_10": 1, "recall_at_1": 1, "recall_at_10": 1}
    # of the anchor c its positive d, then another text, never c
    found = {
        row: [outputs.expected[at, 2 * which :][:2].tolist() for _, at, which in near]
        for row, _, near in Embedding().nearest(outputs)
    }
    assert found[2][0] == [*number_of_query("d")] and [*number_of_query("c")] not in found[2]
    assert Embedding().loss_sum(torch.from_numpy(outputs.values), targets) / 24 == pytest.approx(0, abs=1e-6)


def test_positives_of_one_anchor_are_not_in_each_others_way() -> None:
    """With three positives each a perfect model had MRR@10 0.61."""
    rows = [(f"q{n // 3}", f"p{n}") for n in range(24)]
    targets, nothing = of_rows(rows).numpy(), np.zeros((24, 1))
    right = np.eye(8, dtype=np.float32)[np.arange(24) // 3]
    # the second question's second positive lies with the first question
    wrong = right.copy()
    wrong[4] = right[0]
    for texts, expected in ((right, [1] * 24), (wrong, [2, 2, 2, 1, 22, 1] + [1] * 18)):
        outputs = Outputs(targets, np.concatenate([right, texts], 1), nothing, nothing[:, 0])
        places = Embedding().row_answers(outputs, [])["place"]
        assert [*places] == expected


@pytest.mark.parametrize("seed", range(5))
def test_places_are_those_of_a_plain_count(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anchors of one to five positives, some of them positives of others, in blocks that do not divide the rows."""
    monkeypatch.setattr(embedding, "BLOCK", 7)
    draw = np.random.default_rng(seed)
    names = [f"t{number}" for number in range(14)]
    known = {name: draw.standard_normal(6).astype(np.float32) for name in names}
    known = {name: vector / np.linalg.norm(vector) for name, vector in known.items()}
    rows = [*dict.fromkeys((names[one], names[two]) for one, two in draw.integers(0, 14, (30, 2)))]
    vectors = np.concatenate([np.stack([known[row[at]] for row in rows]) for at in (0, 1)], axis=1)
    nothing = np.zeros((len(rows), 1))
    found = Embedding().row_answers(Outputs(of_rows(rows).numpy(), vectors, nothing, nothing[:, 0]), [])["place"]
    for (anchor, positive), place in zip(rows, found, strict=True):
        belong = {anchor, *(other for asked, other in rows if asked == anchor)} - {positive}
        others = {text for _, text in rows} - belong
        cosine = known[anchor] @ known[positive]
        assert place == sum(known[anchor] @ known[text] >= cosine - 1e-6 for text in others)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "set `text_pair`"),
        ({"text_pair": "b", "score": "s", "negative": "n"}, "leave one out"),
        ({"text_pair": "b", "target": "s"}, "`target` is for .*, not embedding"),
        ({"task": "regression", "pooling": "cls"}, "`pooling` is for embedding, not regression"),
    ],
)
def test_settings_of_an_embedding(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FormatConfig(**{"task": "embedding", **wrong})


def test_metrics_are_those_that_the_rows_give() -> None:
    scored = ["format.score=name", "format.negative=null"]
    assert settings.load("embedding").judging.metric == "mrr_at_10"
    assert settings.load("embedding", scored).judging.metric == "spearman"
    for given in (["promote.metric=spearman"], [*scored, "train.best_metric=recall_at_1"]):
        with pytest.raises(ConfigError, match="which these rows do not give: name one of"):
            settings.load("embedding", given)


def test_scores_are_numbers_that_differ() -> None:
    kind, config = FORMATS["embedding"], FormatConfig(task="embedding", text_pair="b", score="s")
    target = kind.target_of(config, ["score"], ())
    assert target({"s": "2.5"}, "") == [2.5]
    for value, said in {float("nan"): "s is nan", "high": "'high'", None: "missing"}.items():
        with pytest.raises(DataError, match=f"row 7: .*{said}"):
            target({"s": value}, "row 7")
    with pytest.raises(DataError, match="all rows of train have the same s, 1"):
        kind.labels_of(config, lambda: [{"s": 1}, {"s": 1.0}], ())
    with pytest.raises(ConfigError, match=r"format\.negative: the rows have no column n"):
        kind.check_rows(
            FormatConfig(task="embedding", text_pair="b", negative="n"), {"labels": None, "columns": ["a", "b"]}
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"global_batch": 1}, "negatives are the other rows"),
        (
            {"global_batch": 16, "micro_batch": 4, "devices": 2, "engine": "xla"},
            r"16 in 2 passes \(train\.micro_batch=4, 2 data parallel devices\)",
        ),
        ({"method": "head"}, "method=head is not for embedding"),
        ({"tensor_parallel_size": 2, "devices": 2}, "tensor_parallel_size above 1 is not for embedding"),
    ],
)
def test_settings_of_training_that_would_change_the_negatives(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_batches(TrainConfig(**{**COMMON, **wrong}))


def test_an_empty_text_is_an_error_with_its_row(tmp_path: Path) -> None:
    shell = InProcessShell(tmp_path)
    rows = [{"a": f"text {n}", "b": f"other {n}", "c": f"none {n}" if n != 5 else " "} for n in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "mine.yaml").write_text(
        "extends: demo\nname: mine\ndata: {source: rows.jsonl, name: null, text: a, label: null}\n"
        "format: {task: embedding, text_pair: b, negative: c}\n"
    )
    error = shell("run", "mine.yaml", "--direct", "tracking.enabled=false", "--until", "format_prompts").stderr
    assert "the third text of the pair (c) is empty" in error
