"""Gradients of a whole batch in parts are those of one pass, with dropout too."""

from __future__ import annotations

import torch
from torch.nn import Dropout, Linear, Sequential

from trnflow.tasks.training.native.cached_gradients import cached_backward


def test_parts_with_dropout_have_the_gradients_of_one_pass() -> None:
    torch.manual_seed(3)
    model, rows = Sequential(Linear(4, 6), Dropout(0.5), Linear(6, 3)), torch.randn(7, 4)
    drawn: list[torch.Tensor] = []
    model[1].register_forward_hook(lambda layer, given, output: drawn.append(output.detach() != 0))
    last: list[bool] = []

    def loss_of(vectors: torch.Tensor) -> torch.Tensor:
        return (vectors @ vectors.T).logsumexp(1).sum()

    loss = cached_backward([(part,) for part in rows.split(3)], lambda part: model(part[0]), loss_of, last.append)
    found = [parameter.grad for parameter in model.parameters()]
    first, again = torch.cat(drawn[:3]), torch.cat(drawn[3:])
    assert torch.equal(first, again) and 0 < first.float().mean() < 1
    assert last == [False, False, False, True]
    hidden = model[0](rows) * first * 2
    plain = loss_of(model[2](hidden))
    expected = torch.autograd.grad(plain, list(model.parameters()))
    torch.testing.assert_close(loss, plain.detach())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
