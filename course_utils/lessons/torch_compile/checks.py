"""The check of the exercise: it asks Dynamo where a graph ends, and needs no compiler."""

from __future__ import annotations

import logging
from typing import Any

import torch

from course_utils.lessons.answers import NotRight, ask, exercise


def _score(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = x @ weight
    scores = torch.where(scores.abs().max() > 10, scores / 10, scores)
    return scores.softmax(dim=-1), scores.max()


def _is_right(answer: Any, x: torch.Tensor, weight: torch.Tensor) -> bool:
    expected, most = _score(x, weight)
    try:
        probabilities, largest = ask(answer, x.clone(), weight.clone())
        same = torch.allclose(probabilities, expected, rtol=1e-4, atol=1e-6)
        return same and abs(float(largest) / most.item() - 1) < 1e-4
    except (AttributeError, RuntimeError, TypeError, ValueError):
        raise NotRight("Return two things, as before: the probabilities, and the largest score.") from None


@exercise
def check_one_graph(answer: Any) -> str | None:
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(8, 5, generator=rng)
    small, large = (torch.randn(4, 8, generator=rng) * size for size in (0.1, 50.0))
    right = [_is_right(answer, x, weight) for x in (small, large)]
    if any(right) and not all(right):
        return "always"
    if not any(right):
        raise NotRight("The probabilities or the largest score are not what they were before, for any input.")
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the hints say it
    try:
        torch.compiler.reset()
        explained = torch._dynamo.explain(answer)(small, weight)
        reasons = " ".join(reason.reason for reason in explained.break_reasons)
        for word, hint in (("item", "item"), ("generic_jump", "branch"), ("branching", "branch")):
            if word in reasons:
                return hint
        if not explained.graph_count:
            return "not_traced"
        torch.compiler.reset()  # and what `explain` does not see: what ends a graph before its first operation
        torch.compile(answer, backend="eager", fullgraph=True)(small, weight)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise NotRight(f"With `fullgraph=True` your function does not compile. Dynamo says: {reason}") from error
    finally:
        logging.disable(before)
        torch.compiler.reset()
    return None
