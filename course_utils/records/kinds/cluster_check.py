"""What the memory of a rank is for, and one step of real ranks beside the simulation of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The last one is all that is none of the others.
CLUSTER_PARTS = ("weights", "gradients", "optimizer", "gathered", "activations")


@dataclass(frozen=True)
class CheckedPoint:
    """What was measured on real ranks, and what the simulation says of the same step."""

    strategy: str  # how the model was spread over the ranks
    ranks: int  # how many there were
    parameters: int  # of the model
    setting: str  # the step's settings, in words
    measured: Mapping[str, int]  # bytes of one rank, by part and for the ``peak``
    simulated: Mapping[str, int]  # the same from the simulation

    @property
    def deviation(self) -> float:
        """The largest relative deviation. A part of under 1% of what is largest counts as if it had 1%."""
        floor = 0.01 * max(self.measured.values())
        return max(abs(self.simulated[part] - size) / max(size, floor) for part, size in self.measured.items())
