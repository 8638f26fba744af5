"""Our masks and positions give the logits that transformers gives for each row alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.training.toys import (
    BERT,
    DISTILBERT,
    LLAMA,
    first_rows,
    minilm,
    packed_classes,
    packed_lm,
    pretrained,
    scratch,
)
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.errors import ModelError
from trnflow.tasks.evaluation.models import longest_sequence
from trnflow.tasks.export.examples import example
from trnflow.tasks.predict_before import _built
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.losses import loss_sum
from trnflow.tasks.training.model.build import build, checkpointed_layers, logits_of, model_config
from trnflow.tasks.training.model.noise import add_noise

ENCODERS = [BERT, {**BERT, "model_type": "roberta"}, DISTILBERT, LLAMA]


@pytest.mark.parametrize("config", ENCODERS, ids=lambda config: config["model_type"])
def test_classifiers_see_each_row_alone(tmp_path, config) -> None:
    packed = packed_classes(tmp_path, rows=6, lengths=[16])
    built = build(scratch(**config), packed, seed=0, weights=True)
    built.model.eval()
    _, columns = first_rows(packed, 6)
    with torch.no_grad():
        ours = logits_of(built, *columns)
        for row, (ids, segments) in enumerate(zip(columns[0].long(), columns[1], strict=True)):
            alone = built.model(input_ids=ids[segments != 0][None]).logits
            torch.testing.assert_close(ours[row], alone[0], rtol=1e-4, atol=1e-5)
    assert built.model.config.id2label == {0: "red", 1: "green", 2: "blue"}


def test_a_causal_classifier_reads_the_token_before_the_padding_of_the_tokenizer(tmp_path) -> None:
    """Whatever pad_token_id the base's config.json has: LLaMA 1 has 0, and its tokenizer no pad token."""
    import transformers

    fields = {name: value for name, value in LLAMA.items() if name != "model_type"}
    base = transformers.LlamaConfig(**fields, vocab_size=64, pad_token_id=5)
    transformers.LlamaForSequenceClassification(base).save_pretrained(tmp_path / "base")
    packed = packed_classes(tmp_path / "packed", rows=6, lengths=[16])
    built = build(pretrained(tmp_path / "base"), packed, seed=0, weights=True)
    _, columns = first_rows(packed, 6)
    with torch.no_grad():
        ours = logits_of(built, *columns)
        for row, (ids, segments) in enumerate(zip(columns[0].long(), columns[1], strict=True)):
            alone = built.model.eval()(input_ids=ids[segments != 0][None]).logits
            torch.testing.assert_close(ours[row], alone[0], rtol=1e-4, atol=1e-5)
    assert built.model.config.pad_token_id == packed.meta["pad_id"] == 0


def test_packed_segments_do_not_see_each_other(tmp_path) -> None:
    packed = packed_lm(tmp_path, rows=4)
    built = build(scratch(**LLAMA), packed, seed=0, weights=True)
    batch, columns = first_rows(packed, 4)
    with torch.no_grad():
        ours = logits_of(built, *columns)
        ours_loss = loss_sum(ours, torch.from_numpy(batch.targets))
        theirs_loss = 0.0
        labels = torch.from_numpy(open_chunks(packed, "train", batch.length)["labels"][:4].astype("int64"))
        for row in range(4):
            for segment in (1, 2):
                here = columns[1][row] == segment
                answer = built.model(input_ids=columns[0][row][here][None].long(), labels=labels[row][here][None])
                torch.testing.assert_close(ours[row][here], answer.logits[0], rtol=1e-4, atol=1e-5)
                count = int((labels[row][here][1:] != -100).sum())
                theirs_loss += float(answer.loss) * count if count else 0.0
    assert float(ours_loss) == pytest.approx(theirs_loss, rel=1e-5)


def test_the_seed_decides_a_model_from_scratch(tmp_path) -> None:
    packed = packed_classes(tmp_path)
    one, same, other = (
        build(scratch(**BERT), packed, seed=seed, weights=True).model.state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_pretrained_weights_and_a_new_head(tmp_path) -> None:
    packed = packed_classes(tmp_path)
    built = build(pretrained(minilm(), hidden_dropout_prob=0.0), packed, seed=0, weights=True)
    assert built.lacking == ("classifier.bias", "classifier.weight")
    assert built.model.config.hidden_dropout_prob == 0.0 and built.model.classifier.out_features == 3


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({**BERT, "hiden_size": 8}, "model.config.hiden_size: bert has no such field.*hidden_size"),
        ({**BERT, "model_type": "brt"}, "no model_type 'brt'.*use bert"),
        (
            {**BERT, "max_position_embeddings": 12},
            "rows of 16 tokens, but BertForSequenceClassification has 12 positions",
        ),
        (
            {**BERT, "model_type": "roberta", "max_position_embeddings": 16},  # the first is of padding
            "rows of 16 tokens, but RobertaForSequenceClassification has 15 positions",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, model, text) -> None:
    with pytest.raises(ModelError) as caught:
        build(scratch(**model), packed_classes(tmp_path), seed=0, weights=False)
    import re

    assert re.search(text, str(caught.value))


@pytest.mark.parametrize("positions", [64, 12])
def test_a_language_model_within_another_fits_the_rows(tmp_path, positions: int) -> None:
    """Gemma 3 keeps the settings of its language model in `text_config`."""
    text = {**LLAMA, "model_type": "gemma3_text", "head_dim": 8, "max_position_embeddings": positions}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    source = scratch(model_type="gemma3", text_config=text, vision_config=vision)
    packed = packed_lm(tmp_path, rows=2)
    if positions < packed.meta["lengths"][-1]:
        with pytest.raises(ModelError, match=r"tokens, but Gemma3ForConditionalGeneration has 12 positions"):
            build(source, packed, seed=0, weights=False)
    else:
        model = build(source, packed, seed=0, weights=False).model
        assert model.get_input_embeddings().num_embeddings == packed.meta["vocab_size"]
        assert longest_sequence(model) == positions and example(model, 2, 16)[0].shape == (2, 16)


def test_an_encoder_writes_no_text(tmp_path) -> None:
    with pytest.raises(ModelError, match="attends in both directions"):
        model_config(scratch(**BERT), packed_lm(tmp_path).meta)


def test_every_nth_layer_is_recomputed(tmp_path) -> None:
    model = build(scratch(**{**BERT, "num_hidden_layers": 5}), packed_classes(tmp_path), seed=0, weights=False).model
    layers = checkpointed_layers(model)
    assert len(layers) == 5
    assert checkpointed_layers(model, 2) == [layers[1], layers[3]]
    assert checkpointed_layers(model, 5) == [layers[4]]
    with pytest.raises(ModelError, match="train.remat is 6, and BertForSequenceClassification has 5 layers"):
        checkpointed_layers(model, 6)


class Embedding(torch.nn.Embedding):
    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self


def test_no_noise_is_added_where_none_is_asked_for() -> None:
    embed, ids = Embedding(16, 32), torch.arange(8)[None]
    add_noise(TrainConfig(engine="native"), embed)
    assert embed.train()(ids).equal(embed.weight[ids])


def test_types_of_two_texts_are_read_by_a_model_that_has_some(tmp_path) -> None:
    packed = packed_classes(tmp_path, rows=2, lengths=[8], validation=2)
    found = [
        _built(scratch(**model), None, replace(packed, meta={**packed.meta, "pair": pair})).model.reads_types
        for model in (BERT, DISTILBERT) for pair in (True, False)
    ]  # fmt: skip
    assert [*map(bool, found)] == [True, False, False, False]
