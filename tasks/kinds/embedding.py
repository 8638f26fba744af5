"""The task `embedding`: a vector for each text, so that texts that belong together have a high cosine.

Rows are an anchor and its positive, perhaps with a negative, or two texts with a score. Without scores the loss is that of
sentence-transformers' MultipleNegativesRankingLoss: the positives and negatives of all rows of a batch are the choices of
each anchor. With scores it is its CoSENTLoss. A row's target is its score, or the numbers of its texts, by which equal
texts of a batch are known: they are no negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.kind import Metric, Row
from trnflow.tasks.kinds.regression import correlation, moments, number_in, ranks_of
from trnflow.tasks.kinds.reranker import BITS, number_of_query
from trnflow.tasks.kinds.targets import Outputs, TargetKind, value_of

if TYPE_CHECKING:
    from torch import Tensor

SCALE = 20.0
"""What cosines are multiplied by in both losses, as sentence-transformers does by default."""
EXCLUDED = -1e9
"""The score of a text that is no choice."""
CLOSE = 1e-3
"""The difference of two models' vectors, as 1 - cosine, that counts as the same."""
EQUAL = 1e-6
"""Cosines of the same vectors differ by less: their last bits depend on the processor and the place in a product."""
BLOCK = 1024
"""Anchors that are compared with all texts at once."""
SHARE = 0.01
"""Of rows whose text is its own positive, from which they are remarked."""
SHOWN, NEAREST = 5, 3
"""Anchors in the report, and the nearest texts of each."""
SCORE = "score"
TEXTS = ("anchor", "positive", "negative")
MODULES = ("Transformer", "Pooling", NORMALIZE := "Normalize")
"""sentence-transformers' parts of a model."""


def texts_of_targets(width: int) -> int:
    """Return the texts of a row by the width of its target: 1 for a score of two texts, else two numbers a text."""
    return 2 if width == 1 else width // 2


def normalised(vectors: Any) -> Any:
    """Return vectors of length 1, as torch's `normalize`. vectors: a tensor or an array [..., numbers]."""
    lengths = (vectors * vectors).sum(-1)[..., None] ** 0.5
    return vectors / lengths.clip(1e-12)


def ranking_loss(vectors: Tensor, numbers: Tensor, there: Tensor) -> Tensor:
    """Return the mean cross entropy of each anchor's own positive among all texts of the batch.

    Args:
        vectors: [rows, texts, dimensions], of length 1; a row's texts are anchor, positive, and a negative if any.
        numbers: [rows, texts, 2], equal for equal texts: neither the anchor's own nor its positive's count as negatives.
        there: bool [rows], False for rows that only fill the batch.
    """
    anchors, others = vectors[:, 0], vectors[:, 1:].transpose(0, 1).flatten(0, 1)
    passages = numbers[:, 1:].transpose(0, 1).flatten(0, 1)
    askers = numbers[:, :1].repeat(1, vectors.shape[1] - 1, 1)
    askers[:, 1:] = float("nan")  # another row's negative of the same anchor stays a negative
    same = (numbers[:, :2, None] == passages).all(-1).any(1)  # the anchor itself, and its positive
    same = same | (numbers[:, 0, None] == askers.transpose(0, 1).flatten(0, 1)).all(-1)
    same = same | ~there.repeat(vectors.shape[1] - 1)
    scores = (anchors @ others.T * SCALE).masked_fill(same.fill_diagonal_(False), EXCLUDED)
    each = scores.logsumexp(1) - scores.diagonal()
    return each.where(there, each.new_zeros(())).sum() / there.sum().clamp(min=1)


def cosent_loss(vectors: Tensor, scores: Tensor) -> Tensor:
    """Return log(1 + sum exp(20 (cos_i - cos_j))) over the pairs of rows where score_i < score_j.

    vectors: [rows, 2, numbers], of length 1; scores: [rows], NaN for rows that only fill the batch.
    """
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(-1) * SCALE
    apart = (cosines[:, None] - cosines).masked_fill(~(scores[:, None] < scores), EXCLUDED)
    worst = apart.flatten().logsumexp(0)
    return worst.clamp(min=0) + (-worst.abs()).exp().log1p()


def is_scored(expected: Any) -> bool:
    """Return whether rows have scores. expected: float32 [rows, numbers]."""
    return bool(expected.shape[1] == 1)


def _vectors(outputs: Outputs) -> Any:
    """Return the vectors of each row's texts, of length 1: float32 [rows, texts, numbers]."""
    rows, width = outputs.expected.shape
    return normalised(outputs.values.reshape(rows, texts_of_targets(width), -1))


class Corpus:
    """The distinct texts among which each anchor's positive is looked for: the rows' positives and negatives.

    expected: float32 [rows, two numbers a text]; vectors: of length 1, [rows x texts, dimensions], an array or a sparse one.

    Attributes:
        anchors, texts: Vectors, [rows or texts, dimensions].
        own: int64 [rows], the place of each row's positive in `texts`.
        source: int64 [texts, 2], the row that a text is from, and its place in that row.
    """

    def __init__(self, expected: Any, vectors: Any) -> None:
        import numpy as np

        rows = len(expected)
        numbers = expected.reshape(rows, -1, 2).astype(np.int64) @ (1 << BITS, 1)
        kinds = numbers.shape[1] - 1
        known, first, which = np.unique(numbers[:, 1:], return_index=True, return_inverse=True)
        places = np.arange(rows * (kinds + 1)).reshape(rows, kinds + 1)
        self.anchors, self.texts = vectors[places[:, 0]], vectors[places[:, 1:].ravel()[first]]
        self.own = which.reshape(rows, kinds)[:, 0]
        self.source = np.stack([first // kinds, first % kinds + 1], axis=1)
        asked, self._which = np.unique(numbers[:, 0], return_inverse=True)
        at = known.searchsorted(asked).clip(max=len(known) - 1)
        among = np.flatnonzero(known[at] == asked)
        pairs = np.stack([np.concatenate([self._which, among]), np.concatenate([self.own, at[among]])], axis=1)
        anchors, self._belong = np.unique(pairs, axis=0).T
        self._begins = np.searchsorted(anchors, np.arange(len(asked) + 1))

    def cosines(self, start: int, count: int = 1) -> Any:
        """Return cosines of `count` anchors with all texts; -2 for the anchor itself and its positives but that of the row."""
        import numpy as np

        here = slice(start, start + count)
        product = self.anchors[here] @ self.texts.T
        cosines = product.toarray() if hasattr(product, "toarray") else product
        begins, sizes = self._begins[self._which[here]], np.diff(self._begins)[self._which[here]]
        rows = np.repeat(np.arange(len(sizes)), sizes)
        texts = self._belong[np.arange(len(rows)) + (begins - sizes.cumsum() + sizes)[rows]]
        apart = texts != self.own[here][rows]
        cosines[rows[apart], texts[apart]] = -2
        return cosines

    def places(self) -> Any:
        """Return each positive's place, from 1; of cosines that differ by less than EQUAL the last: int64 [rows]."""
        import numpy as np

        found = []
        for start in range(0, len(self.own), BLOCK):
            cosines, own = self.cosines(start, BLOCK), self.own[start : start + BLOCK, None]
            found.append((cosines >= np.take_along_axis(cosines, own, 1) - EQUAL).sum(1))
        return np.concatenate(found)


def _corpus(outputs: Outputs) -> Corpus:
    vectors = _vectors(outputs)
    return Corpus(outputs.expected, vectors.reshape(-1, vectors.shape[-1]))


def _places(outputs: Outputs) -> Any:
    """Return each positive's place. A baseline's values are places, one a row, instead of vectors."""
    return outputs.values[:, 0] if outputs.values.shape[1] == 1 else _corpus(outputs).places()


def _of_places(function: Callable[[Any], Any]) -> Callable[[Outputs], Any]:
    """Return the column of a mean over rows; NaN where rows have scores."""

    def columns(outputs: Outputs) -> Any:
        import numpy as np

        if is_scored(outputs.expected):
            return np.full((len(outputs.loss), 1), np.nan)
        return function(_places(outputs)).astype(np.float64)[:, None]

    return columns


def _of_scores(change: Callable[[Any], Any]) -> Callable[[Outputs], Any]:
    """Return the moments of scores and cosines; NaN where rows have no scores."""

    def columns(outputs: Outputs) -> Any:
        import numpy as np

        if not is_scored(outputs.expected):
            return np.full((len(outputs.loss), 5), np.nan)
        return moments(change(outputs.expected), change(outputs.decided))

    return columns


def _correlation(sums: Any, rows: Any) -> Any:
    import numpy as np

    return np.where(np.isnan(sums[..., 0]), np.nan, correlation(sums, rows))


def _mean(sums: Any, rows: Any) -> Any:
    return sums[..., 0] / rows


class Embedding(TargetKind):
    name = "embedding"
    opener = "sentence_transformers.SentenceTransformer(FOLDER)"  # transformers alone leaves pooling to the caller
    settings = ("score", "negative", "pooling", "normalize")
    auto_class = "AutoModel"
    pipeline = "feature-extraction"
    adapter = "FEATURE_EXTRACTION"
    queries = True
    looks_at_targets = True
    apart = True
    metrics = (
        Metric(
            "mrr_at_10", _of_places(lambda places: (places <= 10) / places), _mean, hub="mrr", may_promote=True,
            is_default=True,
        ),
        Metric("recall_at_1", _of_places(lambda places: places <= 1), _mean, hub="recall", may_promote=True),
        Metric("recall_at_10", _of_places(lambda places: places <= 10), _mean, hub="recall", may_promote=True),
        Metric("pearson", _of_scores(lambda values: values), _correlation, hub="pearsonr", may_promote=True),
        Metric("spearman", _of_scores(ranks_of), _correlation, hub="spearmanr", may_promote=True),
    )  # fmt: skip
    plots = {"cosines.png": "cosines of the texts of a row"}
    answers = {"text": "string", "vector": "numbers"}

    def target_shape(self, rows: int, length: int, outputs: int) -> tuple[int, ...]:
        return (rows, 1 if outputs == 1 else 2 * outputs)

    def columns(self, settings: Any) -> tuple[str, ...]:
        return tuple(name for name in (settings.score, settings.negative) if name)

    def check_settings(self, settings: Any) -> None:
        if not settings.text_pair:
            raise ValueError("an embedding is learnt from pairs: set `text_pair` to the column of the second text")
        if settings.score and settings.negative:
            raise ValueError("`score` is of a pair, and `negative` makes a triplet: leave one out")

    def check_rows(self, settings: Any, meta: Any) -> None:
        if meta["labels"] is not None:
            raise ConfigError(
                "data.label makes one class of each row, and format.task is embedding",
                "leave data.label and data.labels out; scores of pairs are named in format.score",
            )
        for name in ("text_pair", "negative", "score"):
            column = getattr(settings, name)
            if column not in (None, *meta["columns"]):
                raise ConfigError(
                    f"format.{name}: the rows have no column {column}",
                    f"set it to what they have: {', '.join(meta['columns'])}",
                )

    def foreseen(self, settings: Any) -> list[str]:
        return [SCORE] if settings.score else [*TEXTS[: 3 if settings.negative else 2]]

    def labels_of(self, settings: Any, train: Callable[[], Iterable[Row]], nested: Iterable[str]) -> list[str]:
        if settings.score:
            target = self.target_of(settings, [], nested)
            seen = {target(row, f"split train row {number}")[0] for number, row in enumerate(train(), 1)}
            if len(seen) == 1:
                raise DataError(
                    f"format.score: all rows of train have the same {settings.score}, {seen.pop():g}",
                    "give rows of other scores, or leave format.score out: then pairs are texts that belong together",
                )
        return self.foreseen(settings)

    def target_of(self, settings: Any, labels: list[str], nested: Iterable[str]) -> Callable[[Row, str], Any]:
        column = settings.score
        if column is None:
            return lambda row, where: []
        return lambda row, where: [number_in(value_of(row, column, nested, where), column, where, "format.score")]

    def example(self, example: Row) -> Row:
        numbers = [part for name, text in example.items() if name != "label" for part in number_of_query(text)]
        return {**example, "label": example["label"] or numbers}

    def remarks(self, targets: Any, train: Any) -> Iterator[str]:
        import numpy as np

        if targets.shape[1] > 1:
            _, counts = np.unique(targets[:, 2:4], axis=0, return_counts=True)
            if repeated := int((counts - 1).sum()):
                yield f"{repeated} of {len(targets)} rows repeat a positive: in a batch it is no negative of the others"
            anchors, *others = targets.reshape(len(targets), -1, 2).transpose(1, 0, 2)
            alone = int((anchors == others[0]).all(1).sum())
            if alone >= SHARE * len(targets):
                yield f"{alone} of {len(targets)} rows have the text itself as its positive, which teaches nothing"
            for negatives in others[1:]:
                for what, same in (("anchor", anchors), ("positive", others[0])):
                    if count := int((negatives == same).all(1).sum()):
                        yield f"{count} of {len(targets)} rows have their {what} as negative, too: leave one of them out"

    def shown(self, target: Any, labels: list[str]) -> str:
        if len(target) > 1:
            return "belong together"
        return f"{SCORE if labels == [SCORE] else 'cosine'} {target[0]:.4g}"

    def filled(self, settings: Any, sentence: Meta | None) -> Any:
        pooling = sentence and sentence["pooling"]
        if settings.pooling or not pooling:
            return settings
        if pooling not in ("mean", "cls"):
            raise ConfigError(
                f"format.pooling: the model's own is {pooling}, and training knows mean and cls",
                "set format.pooling to one of them: the vectors are then learnt anew",
            )
        return settings.model_copy(update={"pooling": pooling})

    def unused(self, settings: Any, sentence: Meta | None) -> Iterator[str]:
        if not sentence:
            return
        if settings.pooling not in (None, sentence["pooling"]):
            yield f"the model's own pooling is {sentence['pooling']}, and format.pooling replaces it by {settings.pooling}"
        if (NORMALIZE in sentence["modules"]) != settings.normalize:
            yield f"format.normalize={str(settings.normalize).lower()} replaces what the model's modules.json does"
        if others := [name for name in sentence["modules"] if name not in MODULES]:
            yield f"the model's {', '.join(others)} of modules.json is left out: vectors are pooled from the last layer"
        if sentence["do_lower_case"]:
            yield "texts are read as they are, though the model's sentence_bert_config.json says do_lower_case"
        if sentence["prompts"]:
            names = ", ".join(sentence["prompts"])
            yield f"the prompts of config_sentence_transformers.json ({names}) are not put before texts: write them into the rows"

    def head(self, settings: Meta) -> Meta:
        # settings that have their default are not recorded
        pooling, normalize = settings.get("pooling") or "mean", settings.get("normalize", True)
        return {"texts": 3 if settings.get("negative") else 2, "pooling": pooling, "normalize": normalize}

    def logits_of(self, output: Any, segment_ids: Tensor, head: Meta) -> Tensor:
        """Return the vectors of each row's texts, one after another: float32 [rows, texts x numbers]."""
        numbers = segment_ids.new_ones(head["texts"]).cumsum(0)
        there = segment_ids[:, None] == numbers[:, None]
        if head["pooling"] == "cls":
            there = there & (there.cumsum(-1) == 1)
        weights = there.float()
        vectors: Tensor = weights @ output[0].float() / weights.sum(-1, keepdim=True).clamp(min=1)
        vectors = normalised(vectors) if head["normalize"] else vectors
        return vectors.flatten(1)

    def loss_sum(
        self, logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor:
        rows, width = targets.shape
        vectors = normalised(logits.reshape(rows, texts_of_targets(width), -1))
        there = ~targets.isnan().any(-1)
        scored = width == 1
        loss = (
            cosent_loss(vectors, targets[:, 0]) if scored else ranking_loss(vectors, targets.view(rows, -1, 2), there)
        )
        # a batch has one loss, and training divides by the number of targets
        return loss * there.sum() * width

    def outputs(self, logits: Tensor, targets: Tensor) -> Outputs:
        vectors = normalised(logits.reshape(len(targets), texts_of_targets(targets.shape[1]), -1))
        cosines = (vectors[:, :1] * vectors[:, 1:2]).sum(-1)
        columns = (targets, logits, cosines, 1 - cosines[:, 0].double())
        return Outputs(*(column.cpu().numpy() for column in columns))

    def values_of(self, logits: Tensor) -> Tensor:
        return logits

    def agree(self, first: Tensor, second: Tensor) -> Tensor:
        alike: Tensor = (normalised(first) * normalised(second)).sum(-1) >= 1 - CLOSE
        return alike

    def answer(self, values: list[float], labels: list[str], decision: Meta) -> Meta:
        return {"vector": values}

    def line(self, answer: Meta) -> str:
        vector = answer["vector"]
        return f"{len(vector)} numbers: {', '.join(f'{value:.3f}' for value in vector[:3])}, ..."

    def table(self, outputs: Outputs, labels: list[str]) -> list[Meta]:
        cosines = outputs.decided[:, 0]
        figures = {"mean": float(cosines.mean()), "least": float(cosines.min()), "most": float(cosines.max())}
        rows = [{"label": "cosine of a row's texts", **figures, "rows": len(cosines)}]
        if not is_scored(outputs.expected):
            rows[0]["texts_to_find"] = len(_corpus(outputs).texts)
        return rows

    def row_answers(self, outputs: Outputs, labels: list[str]) -> dict[str, list[Any]]:
        answers: dict[str, list[Any]] = {"cosine": [*outputs.decided[:, 0]]}
        if is_scored(outputs.expected):
            return {"label": [*outputs.expected[:, 0]], **answers}
        return {**answers, "place": [*_places(outputs)]}

    def nearest(self, outputs: Outputs) -> Iterator[tuple[int, int, list[tuple[float, int, int]]]]:
        import numpy as np

        if is_scored(outputs.expected):
            return
        corpus = _corpus(outputs)
        places = corpus.places()
        # the first rows, then those whose positive is found last
        for row in dict.fromkeys(
            [*range(min(SHOWN, len(places))), *np.argsort(-places, kind="stable")[:SHOWN].tolist()]
        ):
            (cosines,) = corpus.cosines(row)
            best = [at for at in np.argsort(-cosines, kind="stable")[:NEAREST] if cosines[at] > -2]
            yield row, int(places[row]), [(float(cosines[at]), *corpus.source[at].tolist()) for at in best]

    def draw(self, outputs: Outputs, labels: list[str], folder: Path, plots: Any) -> None:
        import numpy as np

        if is_scored(outputs.expected):
            plots.residuals(outputs.expected, outputs.decided, ["cosine"], folder / "cosines.png")
            return
        counts, edges = np.histogram(outputs.decided, bins=10, range=(-1, 1))
        names = [f"{low:.1f} to {high:.1f}" for low, high in pairwise(edges)]
        shares = (counts / len(outputs.decided)).tolist()
        plots.bars(names, shares, "share of rows", "cosine of anchor and positive", folder / "cosines.png")

    def measures(self, settings: Any) -> tuple[str, ...]:
        return ("spearman", "pearson") if settings.score else ("mrr_at_10", "recall_at_1", "recall_at_10")

    def companions(self, head: Meta, numbers: int, longest: int) -> dict[str, Any]:
        """Return what sentence-transformers reads. numbers: of a vector; longest: tokens of a text."""
        modes = {"mean": "mean_tokens", "cls": "cls_token"}
        pooling = {f"pooling_mode_{mode}": mode == modes[head["pooling"]] for mode in modes.values()}
        names = ["", "1_Pooling", *(["2_Normalize"] if head["normalize"] else [])]
        return {
            "modules.json": [
                {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{MODULES[at]}"}
                for at, path in enumerate(names)
            ],
            "1_Pooling/config.json": {"word_embedding_dimension": numbers, **pooling},
            "sentence_bert_config.json": {"max_seq_length": longest, "do_lower_case": False},
            "config_sentence_transformers.json": {"similarity_fn_name": "cosine"},
        }
