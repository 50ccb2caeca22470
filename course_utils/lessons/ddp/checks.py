"""Checks of lesson 17. The third runs the answer on a model that only pretends to be wrapped in DDP."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, listed, number, recognise

_EPOCHS = ((12, 3), (10, 4), (7, 2), (5, 1))  # samples, ranks


@exercise
def check_share(answer: Any) -> str | None:
    """Calls the answer for all ranks of several epochs, and looks at what they read together."""
    hint = None
    for size, ranks in _EPOCHS:
        epochs = []
        for epoch in range(4):
            shares = [_indices(ask(answer, size, ranks, rank, epoch), size) for rank in range(ranks)]
            together = [index for share in shares for index in share]
            if ranks > 1 and all(set(share) == set(range(size)) for share in shares):
                return "everything"
            padded = math.ceil(size / ranks) * ranks
            missing = set(range(size)) - set(together)
            if missing and len(together) >= size:
                return "own_order"
            if len(set(map(len, shares))) > 1:
                return "uneven"
            if missing:
                return "dropped"
            if len(together) > padded:
                raise NotRight(
                    f"{size} samples on {ranks} ranks: you read {len(together)} in an epoch, and {padded} are enough."
                )
            epochs.append(shares)
        if all(shares == epochs[0] for shares in epochs):
            hint = "same_order"
        elif ranks > 1 and size >= 10 and all(_sets(shares) == _sets(epochs[0]) for shares in epochs):
            hint = hint or "same_samples"
        elif size >= 7 and any(first == second for first, second in itertools.combinations(epochs, 2)):
            hint = hint or "same_order"  # by chance this happens to one right answer in a thousand
    return hint


def _sets(shares: list[list[int]]) -> list[set[int]]:
    return [set(share) for share in shares]


def _indices(given: Any, size: int) -> list[int]:
    try:
        indices = [operator.index(index) for index in listed(given)]
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotRight(f"Return a list of whole numbers; in yours, {error}.") from None
    wrong = next((index for index in indices if not 0 <= index < size), None)
    if wrong is not None:
        raise NotRight(f"With {size} samples there are the indices 0 to {size - 1}; you return {wrong}.")
    return indices


# The sum of a rank's losses, how many there are, how many on all ranks, and the number of ranks.
_SHARES = ((96.0, 48, 64, 2), (8.0, 16, 64, 2), (30.0, 10, 100, 4), (21.0, 7, 7, 1))


@exercise
def check_local_loss(answer: Any) -> str | None:
    """Compares with each formula that people write, on shares where they differ."""
    given = [number(ask(answer, *share)) for share in _SHARES]
    formulas = {
        None: lambda s, own, total, ranks: s * ranks / total,
        "mean_of_means": lambda s, own, total, ranks: s / own,
        "forgets_average": lambda s, own, total, ranks: s / total,
        "sum": lambda s, own, total, ranks: s,
        "local_count": lambda s, own, total, ranks: s * ranks / own,
    }
    key = recognise(given, formulas, _SHARES)
    if key != UNKNOWN:
        return key
    share, value = _SHARES[0], given[0]
    raise NotRight(
        f"Losses that add up to {share[0]:g}, on {share[1]} of {share[2]} tokens and {share[3]} ranks: you return "
        f"{value:.4g}, and {formulas[None](*share):.4g} is right. Add up what DDP makes of all ranks' losses."
    )


@exercise
def check_accumulate(answer: Any) -> str | None:
    """Runs the answer on a pretended DDP model that notes each time its gradients would travel."""
    for count in (4, 1, 2):
        model = _PretendedDDP()
        torch.manual_seed(0)
        batches = [torch.randn(8, 3) for _ in range(count)]
        losses = [model.plain(batch) for batch in batches]
        each = [torch.autograd.grad(loss, model.weight)[0] for loss in losses]
        expected = torch.stack(each).mean(0)
        mean_loss = ask(answer, model, batches, lambda model, batch: model(batch).square().mean())
        gradient = model.weight.grad
        if gradient is None:
            raise NotRight("After your function `.grad` is None: call backward() on each micro-batch's loss.")
        if model.backwards < count:
            raise NotRight(f"There are {count} micro-batches, and you ran {model.backwards} backward passes.")
        sends = len(model.sent_after)
        if sends > 1:
            return "forward_outside" if model.backward_inside else "sends_each"
        if sends == 0:
            return "never_sends"
        if model.sent_after != [count]:
            return "sends_early"
        if not torch.allclose(gradient, expected, rtol=1e-5):
            if torch.allclose(gradient, expected * count, rtol=1e-5):
                return "not_divided"
            if any(torch.allclose(gradient, part / divisor, rtol=1e-5) for part in each for divisor in (1, count)):
                return "loses_gradients"
            raise NotRight("The gradients are not the mean over the micro-batches. Divide each loss by their number.")
        if not math.isclose(number(mean_loss), sum(losses).item() / count, rel_tol=1e-4):
            raise NotRight("The gradients are right. Return the mean loss of the micro-batches, too.")
    return None


class _PretendedDDP(nn.Module):
    """A model with DDP's rule: the forward pass decides whether the backward pass that follows will send."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.require_backward_grad_sync = True
        self.backwards = 0
        self.backward_inside = False
        self.sent_after: list[int] = []

    @property
    def module(self) -> nn.Module:
        """The wrapped model. Going around the wrapper runs none of DDP's rule, so nothing is sent."""
        bare = nn.Module()
        bare.weight = self.weight
        bare.forward = functools.partial(self.run, sends=False)
        return bare

    def plain(self, batch: Tensor) -> Tensor:
        return (batch @ self.weight).square().mean()

    def forward(self, batch: Tensor) -> Tensor:
        return self.run(batch, self.require_backward_grad_sync)

    def run(self, batch: Tensor, sends: bool) -> Tensor:
        output = batch @ self.weight

        def on_backward(gradient: Tensor) -> None:
            self.backwards += 1
            self.backward_inside = self.backward_inside or (sends and not self.require_backward_grad_sync)
            if sends:
                self.sent_after.append(self.backwards)

        if output.requires_grad:
            output.register_hook(on_backward)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before
