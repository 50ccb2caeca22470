"""Memory per rank of a GPT's or a Llama's training step under FSDP, on clusters that are not there.

The simulation (``cluster_step.py``) runs in a process of its own, which is asked with JSON: a process group of yours is
not disturbed, and nothing that goes wrong there takes the kernel with it. No torch is imported here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_utils.files import variables_for_children
from course_utils.results.store import RecordError, package_root
from course_utils.show.progress import progress
from course_utils.show.suggestions import did_you_mean

# What bytes are for. The last one is all that is none of the others.
CLUSTER_PARTS = ("weights", "gradients", "optimizer", "gathered", "activations")
CHOICES: Mapping[str, tuple[Any, ...]] = {
    # fully_shard per block. With reshard_after_forward=False, weights stay gathered until their backward pass.
    "strategy": ("fsdp", "fsdp_no_reshard"),
    "optimizer": ("foreach", "fused"),
    "backend": ("nccl", "gloo"),
    "checkpointing": (False, True),
}
_DEFAULTS = {"batch": 1, "length": None, "checkpointing": False, "optimizer": "foreach", "backend": "nccl"}
_START_S, _POINT_S = 2.0, 1.0  # until the simulating process answers, and for each point, about


class ClusterError(RuntimeError):
    """The simulation failed. The message has its last words."""


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
    largest: Mapping[str, int]  # each part's own largest size, by ``CLUSTER_PARTS``
    peak_bytes: int  # the most that all parts took together
    at_peak: Mapping[str, int]  # what each part took then
    peak_phase: str  # what ran then: ``forward``, ``backward`` or ``optimizer step``


@dataclass(frozen=True)
class CheckedPoint:
    """What was measured on real ranks, and what the simulation says of the same step."""

    strategy: str  # how the model was spread over the ranks
    ranks: int  # how many there were
    parameters: int  # of the model
    setting: str  # the step's settings, in words
    measured: Mapping[str, int]  # bytes of one rank, by part and for the ``peak``
    simulated: Mapping[str, int]  # the same from the simulation


def simulate_points(asked: Sequence[Mapping[str, Any]]) -> list[ClusterPoint]:
    """Simulate training steps on many ranks, and say what each rank needs in memory.

    PyTorch's own code runs, on tensors without data and in a process group without other members, so that a model of
    any size takes seconds and no memory. The step is ``zero_grad``, forward, cross entropy, backward, AdamW.

    Args:
        asked: points, each as :func:`settings_of` has it; they may be of several models.

    Raises:
        ClusterError: if the simulation fails.

    Example:
        >>> small = GPTShape(width=64, layers=2, heads=2)
        >>> two, four = simulate_points(settings_of(small, ranks=[2, 4], strategies="fsdp"))  # doctest: +SKIP
        >>> two.largest["weights"] // four.largest["weights"]  # doctest: +SKIP
        2
    """
    with progress("simulate_points", _START_S + _POINT_S * len(asked)):
        answers = _simulated(asked)
    return [
        ClusterPoint(point["strategy"], point["ranks"], **answer) for point, answer in zip(asked, answers, strict=True)
    ]


def settings_of(
    model: GPTShape, *, ranks: Sequence[int] | int, strategies: Sequence[str] | str, **settings: Any
) -> list[dict[str, Any]]:
    """What the simulation is asked: each strategy on each number of ranks. Computing is in bf16, reduction in fp32.

    Args:
        model: the model's size.
        ranks: numbers of ranks.
        strategies: how the model is spread over them: ``fsdp`` or ``fsdp_no_reshard``.
        **settings: of the step: ``batch``, sequences on each rank (1); ``length``, tokens of a sequence (the model's
            context); ``checkpointing``, whether each block keeps its input only (False); ``optimizer``, AdamW's
            implementation: ``foreach`` or ``fused``; ``backend``, ``nccl``, or ``gloo``, whose reduce-scatter works on
            a copy.

    Raises:
        ValueError: if an argument makes no sense; the message says which.

    Example:
        >>> points = settings_of(GPTShape(width=64, layers=2, heads=2), ranks=[8, 64], strategies="fsdp", batch=4)
        >>> [(point["ranks"], point["batch"], point["length"]) for point in points]
        [(8, 4, 256), (64, 4, 256)]
    """
    ranks = [ranks] if isinstance(ranks, int) else ranks
    strategies = [strategies] if isinstance(strategies, str) else strategies
    if wrong := sorted(settings.keys() - _DEFAULTS):
        raise ValueError(
            f"there is no {wrong[0]!r}{did_you_mean(wrong[0], _DEFAULTS)}. There are: {', '.join(_DEFAULTS)}"
        )
    shape = {key: size for key, size in dataclasses.asdict(model).items() if size is not None}
    length = settings.get("length") or model.context
    points = [
        {**shape, **_DEFAULTS, **settings, "length": length, "strategy": strategy, "ranks": count}
        for count in ranks
        for strategy in strategies
    ]
    for point in points:
        for key in ("ranks", "batch", "length"):
            if type(point[key]) is not int or point[key] < 1:
                raise ValueError(f"{key} is a whole number of at least 1, got {point[key]!r}")
        for key, choices in CHOICES.items():
            if point[key] not in choices:
                raise ValueError(f"there is no {key} {point[key]!r}; there are: {', '.join(map(str, choices))}")
    if length > model.context:
        raise ValueError(f"length is at most the model's context of {model.context}, got {length}")
    return points


def stored_check() -> tuple[CheckedPoint, ...]:
    """Steps of 2 to 4 real ranks on gloo beside the simulation, under the strategies that it knows."""
    path = max((package_root() / "ranks" / "plans").glob("cluster_memory/*.json"), default=None)
    if path is None:
        raise RecordError("course_utils/ranks/plans/cluster_memory has no file. Restore it from git.")
    points = (CheckedPoint(**point) for point in json.loads(path.read_text(encoding="utf-8"))["points"])
    return tuple(point for point in points if point.strategy in CHOICES["strategy"])


def _simulated(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What one child process says of the points."""
    # Fake tensors need no GPU, and a context there would take memory.
    variables = {**variables_for_children(os.environ), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "course_utils.ranks.cluster_step"],
        input=json.dumps(points),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=variables,
        start_new_session=True,  # Ctrl-C is for this process, which ends the other
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1].strip()
        raise ClusterError(f"the simulation ended with exit code {done.returncode}. It said last: {last}")
    return json.loads(done.stdout)
