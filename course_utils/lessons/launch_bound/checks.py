"""The check of the lesson's exercise: a recorder that does what a CUDA graph does, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course_utils.lessons.answers import NotRight, ask, exercise

# Sizes of batches: two full ones, the last one of an epoch, and the next epoch's.
_SIZES = (4, 4, 3, 4, 3)


class _GraphStandIn:
    """Keeps where a step reads and writes. Each replay runs it there again, on what lies there now."""

    made = replays = 0

    def record(self, step: Callable[[Any], Any], x: torch.Tensor) -> tuple[Callable[[], None], torch.Tensor]:
        self.made += 1
        out = torch.full_like(step(x), torch.nan)  # recorded, not computed

        def replay() -> None:
            self.replays += 1
            out.copy_(step(x))

        return replay, out


def _step(batch: torch.Tensor) -> torch.Tensor:
    return 2 * batch + 1


@exercise
def check_by_shape(answer: Any) -> str | None:
    """Examine ``by_shape(step, record)``: a function of a batch that replays a graph made for its shape."""
    recorder = _GraphStandIn()
    run = ask(answer, _step, recorder.record)
    batches = [torch.full((size, 2), 10.0 * number) for number, size in enumerate(_SIZES, start=1)]
    given, outs = [batch.clone() for batch in batches], []
    for batch in batches:
        try:
            out = ask(run, batch)
        except NotRight:
            if recorder.made != 1 or len(batch) == _SIZES[0]:
                raise
        if recorder.made == 1 and len(batch) < _SIZES[0]:
            return "one_graph"
        if not isinstance(out, torch.Tensor):
            raise NotRight(f"For a batch, return the step's result; you return {type(out).__name__}.")
        if not torch.equal(out, _step(batch)):
            return "not_computed" if out.isnan().any() else "stale"
        outs.append(out)
    if not all(map(torch.equal, batches, given)):
        return "their_batch"
    if not all(map(torch.equal, outs, map(_step, given))):
        return "overwritten"
    if not recorder.replays:
        return "no_graph"
    return "every_call" if recorder.made > len(set(_SIZES)) else None
