"""The registry of tasks: a new one is its module and its name here, in `FormatConfig.task` and in docs/tasks.md."""

from __future__ import annotations

from trnflow.tasks.kinds.causal_lm import CausalLM
from trnflow.tasks.kinds.classification import Classification
from trnflow.tasks.kinds.embedding import Embedding
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.multi_label import MultiLabel
from trnflow.tasks.kinds.preference import Preference
from trnflow.tasks.kinds.regression import Regression
from trnflow.tasks.kinds.reranker import Reranker
from trnflow.tasks.kinds.reward import Reward
from trnflow.tasks.kinds.token_classification import TokenClassification
from trnflow.tasks.kinds.unpaired_preference import UnpairedPreference

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Classification(),
        MultiLabel(),
        Regression(),
        TokenClassification(),
        Reranker(),
        Embedding(),
        CausalLM(),
        Reward(),
        UnpairedPreference(),
        Preference(),
    )
}
"""{name in the metadata of artifacts: task}."""

FORMATS: dict[str, Kind] = {name: kind for kind in KINDS.values() for name in kind.formats or (kind.name,)}
"""{value of `format.task`: task}."""


def kind_of(task: str) -> Kind:
    """Return a task by its name in metadata."""
    return KINDS[task]
