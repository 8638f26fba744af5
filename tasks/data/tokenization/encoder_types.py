"""Choose the encoder of a task's rows."""

from __future__ import annotations

from trnflow.tasks.data.tokenization.apart_encoder import ApartEncoder
from trnflow.tasks.data.tokenization.encoders import CausalEncoder, ClassEncoder
from trnflow.tasks.data.tokenization.pair_encoder import PairEncoder
from trnflow.tasks.data.tokenization.preference_encoder import PreferenceEncoder
from trnflow.tasks.data.tokenization.token_encoder import TokenEncoder
from trnflow.tasks.kinds.registry import kind_of

Encoder = ClassEncoder | CausalEncoder


def encoder_type(task: str, *, pair: bool = False) -> type[ClassEncoder] | type[CausalEncoder]:
    """Return the encoder class. pair: whether rows have two texts, or more."""
    kind = kind_of(task)
    if kind.pairs and not kind.marked:
        return PreferenceEncoder
    if not kind.per_row:
        return CausalEncoder
    if pair:
        return ApartEncoder if kind.apart else PairEncoder
    return TokenEncoder if kind.per_position else ClassEncoder
