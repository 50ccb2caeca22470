"""What each rank of a simulated cluster holds, and one step of real ranks beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# The last one is all that is none of the others.
CLUSTER_PARTS = ("weights", "gradients", "optimizer", "gathered", "activations")


@dataclass(frozen=True)
class GPTShape:
    """The size of a ``materials.models.GPT``; with ``hidden``, of a ``materials.models.Llama``."""

    width: int  # size of a token's vector
    layers: int
    heads: int
    vocabulary: int = 256
    context: int = 256  # the longest sequence
    kv_heads: int | None = None  # of a Llama: heads of keys and values; as many as ``heads`` by default
    hidden: int | None = None  # of a Llama: width inside the MLP

    @property
    def parameters(self) -> int:
        """Number of parameters. A GPT's output layer shares the embedding's; a Llama has no biases."""
        width = self.width
        if self.hidden:
            shared = (self.kv_heads or self.heads) / self.heads
            block = round(2 * width**2 * (1 + shared)) + 3 * width * self.hidden + 2 * width
            return (2 * self.vocabulary + 1) * width + self.layers * block
        return (self.vocabulary + self.context + 2) * width + self.layers * (12 * width**2 + 13 * width)


@dataclass(frozen=True)
class ClusterPoint:
    """Memory of the rank that holds most, in one training step under one strategy on one number of ranks."""

    strategy: str  # how the model is spread over the ranks
    ranks: int  # how many there are
    weights_bytes: int  # parameters as they lie between steps. This and the next four are each part's own largest size.
    gradients_bytes: int  # gradients as they lie between ``backward`` and ``zero_grad``
    optimizer_bytes: int  # the optimizer's state
    gathered_bytes: int  # parameters and gradients that are put together or sent, and the buffers for that
    activations_bytes: int  # all else: what is kept for the backward pass, and temporaries
    peak_bytes: int  # the most that all parts took together
    at_peak: Mapping[str, int]  # what each part took then
    peak_phase: str  # what ran then: ``forward``, ``backward`` or ``optimizer step``

    @property
    def label(self) -> str:
        """Strategy and ranks in words."""
        return f"{self.strategy}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"

    def __getitem__(self, part: str) -> int:
        """The largest size of one of ``CLUSTER_PARTS``, or ``peak``."""
        return getattr(self, f"{part}_bytes")


@dataclass(frozen=True)
class ClusterPlan:
    """Memory per rank on clusters that need not exist. Made by :func:`course_utils.ranks.cluster.simulate_cluster`.

    The ``parameters`` are the model's shape and the settings of the step.
    """

    points: tuple[ClusterPoint, ...]  # one for each strategy and number of ranks
    parameters: Mapping[str, Any]

    @property
    def shape(self) -> GPTShape:
        """The model's size."""
        return GPTShape(**{f.name: self.parameters.get(f.name) for f in dataclasses.fields(GPTShape)})

    def __iter__(self) -> Iterator[ClusterPoint]:
        return iter(self.points)

    def __getitem__(self, key: tuple[str, int]) -> ClusterPoint:
        """``plan["fsdp", 64]`` is one point."""
        return next(point for point in self.points if (point.strategy, point.ranks) == key)


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
