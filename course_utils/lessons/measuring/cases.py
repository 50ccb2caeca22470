"""What the lesson times: a training step on each place of a machine."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from course_utils.measure.fresh import Fresh, fresh

_BATCH, _FEATURES, _CLASSES = 64, 64, 10


def training_steps(width: int) -> dict[str, Fresh]:
    """The same step on one CPU thread, on all of them, and on the GPU if there is one.

    Example:
        >>> list(training_steps(16))[:2]
        ['one CPU thread', 'all CPU threads']
    """
    cases = {
        "one CPU thread": fresh(_training_step, width, "cpu", 1),
        "all CPU threads": fresh(_training_step, width, "cpu", torch.get_num_threads()),
    }
    return cases | ({"the GPU": fresh(_training_step, width, "cuda", 1)} if torch.cuda.is_available() else {})


def _training_step(width: int, where: str, threads: int) -> Callable[[], torch.Tensor]:
    """A multi-layer perceptron with two hidden layers, its AdamW and a batch, all drawn on the CPU."""
    torch.set_num_threads(threads)
    hidden = (nn.Linear(_FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model = nn.Sequential(*hidden, nn.Linear(width, _CLASSES))
    inputs, targets = torch.randn(_BATCH, _FEATURES).to(where), torch.randint(_CLASSES, (_BATCH,)).to(where)
    model.to(where)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
