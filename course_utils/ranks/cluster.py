"""Memory per rank of a Llama's training step under FSDP, on clusters that are not there.

The simulation (``cluster_step.py``) runs in a process of its own, which is asked with JSON: a process group of yours is
not disturbed, and nothing that goes wrong there takes the kernel with it. No torch is imported here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from course_utils.files import variables_for_children
from course_utils.results.store import package_root
from course_utils.show.progress import progress

# What bytes are for. The last one is all that is none of the others.
CLUSTER_PARTS = ("weights", "gradients", "optimizer", "gathered", "activations")
_START_S, _STEP_S = 2.0, 1.0  # until the simulating process answers, and for each step, about


class ClusterError(RuntimeError):
    """The simulation failed. The message has its last words."""


@dataclass(frozen=True)
class LlamaShape:
    """The size of a ``materials.models.Llama``, whose arguments these are."""

    width: int  # size of a token's vector
    layers: int
    heads: int
    vocabulary: int
    context: int  # the longest sequence
    hidden: int  # width inside the MLP
    kv_heads: int | None = None  # heads of keys and values; as many as ``heads`` by default

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        width = self.width
        shared = (self.kv_heads or self.heads) / self.heads
        block = round(2 * width**2 * (1 + shared)) + 3 * width * self.hidden + 2 * width
        return (2 * self.vocabulary + 1) * width + self.layers * block


@dataclass(frozen=True)
class ClusterStep:
    """A training step on each of some ranks: each block is a group, computing is in bf16, reduction in fp32."""

    model: LlamaShape
    ranks: int
    batch: int = 1  # sequences on each rank
    length: int | None = None  # tokens of each; the model's context by default
    checkpointing: bool = False  # whether each block keeps its input only
    optimizer: str = "foreach"  # AdamW's implementation: ``foreach`` or ``fused``
    backend: str = "nccl"  # or ``gloo``, whose reduce-scatter works on a copy


@dataclass(frozen=True)
class ClusterMemory:
    """Memory of the rank that holds most, in one training step."""

    largest: Mapping[str, int]  # each part's own largest size, by ``CLUSTER_PARTS``
    peak_bytes: int  # the most that all parts took together
    at_peak: Mapping[str, int]  # what each part took then
    peak_phase: str  # what ran then: ``forward``, ``backward`` or ``optimizer step``


def simulate_steps(steps: Sequence[ClusterStep]) -> list[ClusterMemory]:
    """Simulate training steps on many ranks, and say what each rank needs in memory.

    PyTorch's own code runs, on tensors without data and in a process group without other members, so that a model of
    any size takes seconds and no memory. The step is ``zero_grad``, forward, cross entropy, backward, AdamW.

    Raises:
        ClusterError: if the simulation fails.

    Example:
        >>> small = LlamaShape(width=64, layers=2, heads=2, vocabulary=256, context=256, hidden=128)
        >>> two, four = simulate_steps([ClusterStep(small, ranks) for ranks in (2, 4)])  # doctest: +SKIP
        >>> two.largest["weights"] // four.largest["weights"]  # doctest: +SKIP
        2
    """
    # Fake tensors need no GPU, and a context there would take memory.
    variables = {**variables_for_children(os.environ), "CUDA_VISIBLE_DEVICES": ""}
    with progress("simulate_steps", _START_S + _STEP_S * len(steps)):
        done = subprocess.run(
            [sys.executable, "-m", "course_utils.ranks.cluster_step"],
            input=json.dumps([asdict(step) for step in steps]),
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
    return [ClusterMemory(**answer) for answer in json.loads(done.stdout)]


def stored_check() -> list[dict[str, Any]]:
    """Steps of 2 to 4 real ranks on gloo under FSDP: bytes ``measured`` and ``simulated``, by part and for the peak."""
    (path,) = (package_root() / "ranks" / "plans" / "cluster_memory").glob("*.json")
    points = json.loads(path.read_text(encoding="utf-8"))["points"]
    return [point for point in points if point["strategy"] == "fsdp"]
