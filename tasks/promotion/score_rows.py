"""Stage `score_rows`: score a model on each row of a split, so that two models can be compared row by row.

Costs one forward pass over the split in eager PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import StageConfig, Tokens
from trnflow.tasks.data.format.row_format import decision_of
from trnflow.tasks.data.format.source_rows import read_source_rows
from trnflow.tasks.data.texts import TYPES_FILE
from trnflow.tasks.errors import DataError, MissingDependency, ModelError
from trnflow.tasks.evaluation.models import EAGER, input_names, load_model, longest_sequence
from trnflow.tasks.kinds.preference import Preference
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.targets import Outputs, TargetKind, joined, stacked
from trnflow.tasks.promotion.freeze_rows import FROZEN_ROW, SPLIT
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.system.arrays import load_array

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from trnflow.tasks.system.arrays import Ints

PASS_TOKENS = 8192
"""The most tokens of one forward pass, padding included."""
LOGITS = 1 << 29
"""The most bytes of one forward pass's logits (float32), unless one window alone has more."""


class ScoreConfig(StageConfig):
    """Settings of the stage `score_rows`, which runs a model on the frozen test rows."""

    window: Tokens
    """The most tokens that a language model reads at once: the longest length that it was trained on."""
    device: Literal["cpu", "cuda"] = "cpu"
    """The device that scores."""


class Window(NamedTuple):
    """A part of a row that a model reads at once. start, end: counted over the tokens of all rows one after another."""

    row: int
    start: int
    end: int


def environ(config: ScoreConfig) -> dict[str, str]:
    """Return the environment of the process that scores."""
    return EAGER


@stage(kind="scores", environ=environ)
def score_rows(config: ScoreConfig, texts: Input, tokens: Input, weights: Input, out: Workdir) -> Meta:
    """Run a model on the frozen rows and write `scores.parquet`, one line for each example.

    Columns: `row`, `frozen_row: int64`; of a classifier `label`, `predicted: string`, `loss: double` (nats); those of
    `Outputs`, of pairs of answers of `Rewards` or `MarkedRewards`; of a
    language model `nll: double` (nats), `tokens`, `bytes: int64` (supervised).

    Returns metadata: task, rows (examples), labels, metrics.

    Raises:
        DataError: Tokenising dropped rows, or no token is supervised.
        ModelError: A loss is not finite.
        MissingDependency: The device is `cuda`, and there is no GPU.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    task, rows = weights.meta["task"], texts.meta["splits"][SPLIT]
    if tokens.meta["splits"][SPLIT] != rows:
        raise DataError(
            f"{rows - tokens.meta['splits'][SPLIT]} of {rows} frozen rows have no token to score",
            "leave them out of the test split, and `trnflow freeze` again",
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        raise MissingDependency("evaluate.device=cuda, but PyTorch finds no GPU here", "set evaluate.device=cpu")
    model = load_model(weights.path, task).to(config.device)
    if kind_of(task).one_class:
        table, metrics = _classes(tokens, model, out)
    elif isinstance(kind := kind_of(task), Preference):
        table, metrics = _pairs(tokens, model, kind, out)
    elif kind_of(task).per_row:
        table, metrics = _targets(tokens, model, decision_of(weights.path), out)
    else:
        table, metrics = _likelihoods(config, texts, tokens, model, out)
    if not all(math.isfinite(value) for value in metrics.values()):
        raise ModelError(
            "a loss on the frozen rows is not finite", "the weights are broken: look at the training's loss"
        )
    sources = pa.array(read_source_rows(texts.path, SPLIT, rows), pa.int64())
    table = table.add_column(1, FROZEN_ROW, sources)
    pq.write_table(table, out.path / "scores.parquet", compression="zstd")
    return {"task": task, "rows": rows, "labels": tokens.meta["labels"], "metrics": metrics}


def _classes(tokens: Input, model: PreTrainedModel, out: Workdir) -> tuple[pa.Table, Meta]:
    import numpy as np
    import pyarrow as pa
    import torch

    ids, offsets = _arrays(tokens)
    labels, names = load_array(tokens.path / SPLIT / "labels.npy").astype(np.int64), tokens.meta["labels"]
    predicted, loss = np.zeros(len(labels), np.int64), np.zeros(len(labels))
    windows = [Window(row, int(offsets[row]), int(offsets[row + 1])) for row in range(len(labels))]
    types = load_array(tokens.path / SPLIT / TYPES_FILE) if tokens.meta.get("pair") else None
    for part in _passes(windows, PASS_TOKENS, out):
        logits = _logits(model, ids, part, tokens.meta["pad_id"], types).float()
        rows = [window.row for window in part]
        wanted = torch.from_numpy(labels[rows]).to(logits.device)
        loss[rows] = torch.nn.functional.cross_entropy(logits, wanted, reduction="none").cpu().double().numpy()
        predicted[rows] = logits.argmax(-1).cpu().numpy()
    columns = {
        "row": pa.array(range(len(labels)), pa.int64()),
        "label": pa.array([names[number] for number in labels], pa.string()),
        "predicted": pa.array([names[number] for number in predicted], pa.string()),
        "loss": pa.array(loss, pa.float64()),
    }
    return pa.table(columns), {"accuracy": float((labels == predicted).mean()), "loss": float(loss.mean())}


def _targets(tokens: Input, model: PreTrainedModel, decision: Meta, out: Workdir) -> tuple[pa.Table, Meta]:
    import numpy as np
    import pyarrow as pa
    import torch

    kind, (ids, offsets) = kind_of(tokens.meta["task"]), _arrays(tokens)
    assert isinstance(kind, TargetKind)
    labels, parts, order = load_array(tokens.path / SPLIT / "labels.npy"), list[Outputs](), list[int]()
    windows = [Window(row, int(offsets[row]), int(offsets[row + 1])) for row in range(len(offsets) - 1)]
    has_types = tokens.meta.get("pair") or kind.apart
    types = load_array(tokens.path / SPLIT / TYPES_FILE) if has_types else None
    for part in _passes(windows, PASS_TOKENS, out):
        if kind.apart:
            of_texts = [_logits(model, ids, text, tokens.meta["pad_id"]) for text in _texts_apart(part, types)]
            logits = torch.cat(of_texts, -1).float()
        else:
            logits = _logits(model, ids, part, tokens.meta["pad_id"], types).float()
        of_rows = [labels[window.start : window.end][None] for window in part] if kind.per_position else None
        wanted = stacked(of_rows) if of_rows else labels[[window.row for window in part]]
        parts.append(kind.outputs(logits, torch.from_numpy(wanted).to(logits.device)))
        order += [window.row for window in part]
    found = Outputs._make(column[np.argsort(order)] for column in joined(parts))
    found = found._replace(decided=kind.decided(found.decided, decision))
    columns = {name: pa.array(list(column)) for name, column in found._asdict().items()}
    table = pa.table({"row": pa.array(range(len(order)), pa.int64()), **columns})
    return table, kind.values(found)


def _likelihoods(
    config: ScoreConfig, texts: Input, tokens: Input, model: PreTrainedModel, out: Workdir
) -> tuple[pa.Table, Meta]:
    import numpy as np
    import pyarrow as pa
    import torch

    ids, offsets = _arrays(tokens)
    mask = load_array(tokens.path / SPLIT / "loss_mask.npy", mapped=True)
    rows = len(offsets) - 1
    nll, count = np.zeros(rows), np.zeros(rows, np.int64)
    length = min(config.window, longest_sequence(model) or config.window)
    most = min(PASS_TOKENS, LOGITS // (4 * model.config.get_text_config().vocab_size))
    for part in _passes(list(_windows(offsets, length)), most, out):
        logits = _logits(model, ids, part, tokens.meta["pad_id"])
        for window, scores in zip(part, logits, strict=True):
            wanted = torch.from_numpy(np.asarray(ids[window.start + 1 : window.end])).long().to(scores.device)
            loss = torch.nn.functional.cross_entropy(scores[: len(wanted)].float(), wanted, reduction="none")
            supervised = np.asarray(mask[window.start + 1 : window.end]).astype(bool)
            nll[window.row] += float(loss.cpu().double().numpy()[supervised].sum())
            count[window.row] += int(supervised.sum())
    size = np.array(_supervised_bytes(texts), np.int64) - _first_bytes(tokens, ids, offsets, mask)
    if not count.sum() or not size.sum():
        raise DataError(
            "no token of the frozen rows is supervised", "check which parts of a row format_prompts trains on"
        )
    columns = {"row": pa.array(range(rows), pa.int64()), "nll": nll, "tokens": count, "bytes": size}
    bits = float(nll.sum() / size.sum() / math.log(2))
    return pa.table(columns), {"bits_per_byte": bits, "loss": float(nll.sum() / count.sum())}


def _texts_apart(part: list[Window], types: Any) -> Iterator[list[Window]]:
    """Yield the windows of the first texts, of the second ones, and so on. types: uint8 [tokens], numbers of texts."""
    import numpy as np

    for text in range(int(types[part[0].end - 1]) + 1):
        ends = [np.searchsorted(types[w.start : w.end], (text, text + 1)) + w.start for w in part]
        yield [Window(w.row, int(first), int(last)) for w, (first, last) in zip(part, ends, strict=True)]


def _pairs(tokens: Input, model: PreTrainedModel, kind: Preference, out: Workdir) -> tuple[pa.Table, Meta]:
    """Score pairs of answers by rewards, of a language model by mean log-probabilities: models have references of their
    own, and none is read here."""
    import numpy as np
    import pyarrow as pa
    import torch

    ids, offsets = _arrays(tokens)
    mask, types = (
        load_array(tokens.path / SPLIT / f"{name}.npy") for name in ("loss_mask", TYPES_FILE.removesuffix(".npy"))
    )
    edges = np.sort(np.concatenate([offsets, np.flatnonzero(np.diff(types.astype(np.int8)) == 1) + 1])).tolist()
    windows = [Window(number, *edge) for number, edge in enumerate(pairwise(edges))]
    means = np.zeros(len(windows))
    most = min(PASS_TOKENS, LOGITS // (4 * model.config.get_text_config().vocab_size))
    for part in _passes(windows, most, out):
        logits = _logits(model, ids, part, tokens.meta["pad_id"])
        for window, scores in zip(part, logits, strict=True):
            if kind.per_row:  # one number of the whole window
                means[window.row] = float(scores)
                continue
            wanted = torch.from_numpy(np.asarray(ids[window.start + 1 : window.end])).long().to(scores.device)
            loss = torch.nn.functional.cross_entropy(scores[: len(wanted)].float(), wanted, reduction="none")
            answered = mask[window.start + 1 : window.end] == 1
            means[window.row] = -float(loss.cpu().double().numpy()[answered].mean())
    marks = load_array(tokens.path / SPLIT / "labels.npy") if kind.marked else None
    found = kind.judged(means, marks)
    columns = {name: pa.array(column) for name, column in found._asdict().items()}
    rows = len(found.loss)
    table = pa.table({"row": pa.array(range(rows), pa.int64()), **columns})
    judged = next(metric for metric in kind.metrics if metric.is_default)
    return table, {judged.name: float(judged.of_sums(judged.columns(found).sum(0), rows))}


def _arrays(tokens: Input) -> tuple[NDArray[np.int32], Ints]:
    """Return the token ids of all rows one after another, and the offsets at which rows begin."""

    folder = tokens.path / SPLIT
    return load_array(folder / "input_ids.npy", mapped=True), load_array(folder / "offsets.npy")


def _windows(offsets: Ints, length: int) -> Iterator[Window]:
    for row, (first, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        # each begins with the last token of the one before, so that every token is predicted exactly once
        for start in range(first, end - 1, max(length - 1, 1)):
            yield Window(row, start, min(start + length, end))


def _passes(windows: list[Window], most: int, out: Workdir) -> Iterator[list[Window]]:
    """Yield the windows in groups for one forward pass each, shortest first. most: tokens of a pass."""
    ordered = sorted(windows, key=lambda window: (window.end - window.start, window.row))
    part: list[Window] = []
    passed = 0
    for window in ordered:
        if part and (len(part) + 1) * (window.end - window.start) > most:
            yield part
            passed += len(part)
            out.progress(passed, len(ordered))
            part = []
        part.append(window)
    if part:
        yield part
        out.progress(len(ordered), len(ordered))


def _logits(model: PreTrainedModel, ids: NDArray[np.int32], part: list[Window], pad_id: int, types: Any = None) -> Any:
    """Return the logits of a group of windows, padded on the right. types: uint8 [tokens] of pairs of texts."""
    import numpy as np
    import torch

    longest = max(window.end - window.start for window in part)
    batch, mask = np.full((len(part), longest), pad_id, np.int64), np.zeros((len(part), longest), np.int64)
    kinds = np.zeros_like(mask)
    for number, window in enumerate(part):
        batch[number, : window.end - window.start] = ids[window.start : window.end]
        mask[number, : window.end - window.start] = 1
        if types is not None:
            kinds[number, : window.end - window.start] = types[window.start : window.end]
    columns = zip(input_names(model), (batch, mask, kinds), strict=False)
    with torch.inference_mode():
        return model(**{name: torch.from_numpy(column).to(model.device) for name, column in columns}).logits


def _first_bytes(tokens: Input, ids: NDArray[np.int32], offsets: Ints, mask: NDArray[np.uint8]) -> Ints:
    """Return the bytes of each row's first token if it is supervised, else 0."""
    import numpy as np

    from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer

    tokenizer = read_tokenizer(tokens.path / "tokenizer").tokenizer
    # nothing comes before the first token, so no model predicts it
    starts = offsets[:-1]
    supervised = np.asarray(mask[starts]).astype(bool) if len(starts) else np.zeros(0, bool)
    texts = [
        tokenizer.decode([int(ids[start])]) if is_said else ""
        for start, is_said in zip(starts, supervised, strict=True)
    ]
    return np.array([len(text.encode()) for text in texts], np.int64)


def _supervised_bytes(texts: Input) -> list[int]:
    """Return the UTF-8 bytes of the supervised parts of each row."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(texts.path / f"{SPLIT}.parquet", pre_buffer=False)
    return [
        sum(len(part["text"].encode()) for part in row["parts"] if part["train"])
        for batch in file.iter_batches(1024)
        for row in batch.to_pylist()
    ]
