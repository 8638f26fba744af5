"""Linear models on TF-IDF: of classes, of several labels, of numbers, and of which answer is preferred.

LinearSVC: of four solvers the best on three of six sets, and the fastest (docs/decisions.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.texts import text_of_example
from trnflow.tasks.evaluation.baselines.examples import Examples
from trnflow.tasks.evaluation.baselines.result import Baseline
from trnflow.tasks.evaluation.baselines.text_features import Cost, text_features
from trnflow.tasks.kinds.kind import Row
from trnflow.tasks.kinds.multi_label import MultiLabel
from trnflow.tasks.kinds.preference import REJECTED
from trnflow.tasks.kinds.targets import Outputs

if TYPE_CHECKING:
    from trnflow.tasks.system.arrays import Floats

SEED = 0


def classes(rows: Examples) -> Baseline:
    """Predict the class of each row."""
    import numpy as np

    labels = np.array([row["label"] for row in rows.train])
    there = len(np.unique(labels))
    outputs = there if there > 2 else 1
    name, (train, asked) = text_features(_texts(rows.train), [_texts(rows.evaluated)], _solved(outputs))
    # no solver takes one class
    predicted = _solver().fit(train, labels).predict(asked) if there > 1 else np.full(len(rows.evaluated), labels[0])
    return Baseline(_method(name), len(rows.train), {"predicted": predicted})


def labels(rows: Examples) -> Baseline:
    """Predict any number of labels, each by a model of its own; the threshold is chosen on validation, as the model's."""
    import numpy as np

    kind, bits, chosen = MultiLabel(), _targets(rows.train), rows.validation
    sides = [_texts(rows.evaluated), _texts(chosen)]
    name, (train, asked, choosing) = text_features(_texts(rows.train), sides, _solved(bits.shape[1]))
    values, those = (
        np.column_stack(columns)
        for columns in zip(*(_shares(train, column, (asked, choosing)) for column in bits.T), strict=True)
    )
    outputs = Outputs(_targets(chosen), those, those, np.zeros(len(chosen)))
    decision = kind.decide(outputs) if chosen else {}
    return Baseline(_method(name), len(rows.train), {"values": values, "decided": kind.decided(values, decision)})


def numbers(rows: Examples) -> Baseline:
    """Predict numbers."""
    import numpy as np
    from sklearn.linear_model import Ridge

    wanted = _targets(rows.train)
    name, (train, asked) = text_features(_texts(rows.train), [_texts(rows.evaluated)], _solved(wanted.shape[1]))
    values = Ridge().fit(train, wanted).predict(asked).astype(np.float32).reshape(-1, wanted.shape[1])
    return Baseline(f"TF-IDF of {name}, Ridge", len(rows.train), {"values": values})


def pairs(rows: Examples) -> Baseline:
    """Score the answers of pairs by a model of which of two features are the preferred one's."""
    import numpy as np
    from scipy.sparse import vstack

    train, asked = ([_answers(each, side) for side in ("parts", REJECTED)] for each in (rows.train, rows.evaluated))
    half = len(rows.train)
    name, (known, *scored) = text_features([*train[0], *train[1]], asked, _solved(2))
    apart = known[:half] - known[half:]
    # both orders: what is chosen must not depend on which answer comes first
    solver = _solver(fit_intercept=False).fit(vstack([apart, -apart]), np.repeat([1, 0], half))
    chosen, rejected = (solver.decision_function(each) for each in scored)
    return Baseline(_method(name), len(rows.train), {"chosen": chosen, "rejected": rejected})


def marked(rows: Examples) -> Baseline:
    """Score answers by a model of which are marked desirable."""
    import numpy as np

    marks = np.array([row["label"] > 0 for row in rows.train])
    name, (train, asked) = text_features(_answers(rows.train), [_answers(rows.evaluated)], _solved(1))
    (reward,) = _decisions(train, marks, (asked,))
    return Baseline(_method(name), len(rows.train), {"reward": reward})


def _solver(**settings: Any) -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC(random_state=SEED, **settings)


def _solved(outputs: int) -> Cost:
    """Return the cost of fitting a model for each output."""
    return lambda matrices: matrices[0].nnz * outputs


def _decisions(train: Any, bits: Any, asked: Sequence[Any]) -> list[Floats]:
    """Return the distance from the border for each row of the matrices `asked`; infinite if all bits are the same."""
    import numpy as np

    if len(np.unique(bits)) == 1:
        return [np.full(each.shape[0], np.inf if bits[0] else -np.inf) for each in asked]
    solver = _solver().fit(train, bits > 0)
    return [solver.decision_function(each) if each.shape[0] else np.zeros(0) for each in asked]


def _shares(train: Any, bits: Any, asked: Sequence[Any]) -> list[Any]:
    """Return decisions as numbers from 0 to 1, of which 0.5 is the border: thresholds are of such numbers."""
    import numpy as np
    from scipy.special import expit

    return [expit(each).astype(np.float32) for each in _decisions(train, bits, asked)]


def _method(name: str) -> str:
    return f"TF-IDF of {name}, LinearSVC"


def _texts(rows: Sequence[Row]) -> list[str]:
    return [text_of_example(row) for row in rows]


def _targets(rows: Sequence[Row]) -> Any:
    import numpy as np

    return np.array([row["label"] for row in rows], np.float32)


def _answers(rows: Sequence[Row], side: str = "parts") -> list[str]:
    """Return what is trained on of the parts in a column."""
    return ["".join(part["text"] for part in row[side] if part["train"]) for row in rows]
