"""Memory per rank of a GPT's or a Llama's training step under DDP and FSDP, on clusters that are not there.

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
from typing import Any

from course_utils.files import variables_for_children
from course_utils.ranks.cluster_plan import CLUSTER_PARTS, CheckedPoint, ClusterPlan, ClusterPoint, GPTShape
from course_utils.results.store import RecordError, package_root
from course_utils.show.progress import progress
from course_utils.show.suggestions import did_you_mean

STRATEGIES: Mapping[str, str] = {
    "ddp": "DistributedDataParallel: every rank has all weights, gradients and optimizer state",
    "fsdp_no_reshard": "fully_shard per block, reshard_after_forward=False: weights stay gathered until their backward "
    "pass; gradients and optimizer state are split, as in ZeRO-2",
    "fsdp": "fully_shard per block, reshard_after_forward=True: weights are gathered for each block anew",
}
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "strategy": tuple(STRATEGIES),
    "precision": ("fp32", "bf16"),
    "optimizer": ("foreach", "loop", "fused"),
    "backend": ("nccl", "gloo"),
    "checkpointing": (False, True),
}
_SHAPE = tuple(f.name for f in dataclasses.fields(GPTShape))
_DEFAULTS = {
    "batch": 1,
    "length": None,
    "precision": "bf16",
    "checkpointing": False,
    "optimizer": "foreach",
    "backend": "nccl",
}
_START_S, _POINT_S = 2.0, 1.0  # until the simulating process answers, and for each point, about


class ClusterError(RuntimeError):
    """The simulation failed. The message has its last words."""


def simulate_cluster(
    model: GPTShape,
    *,
    ranks: Sequence[int] | int = (8, 64, 1024),
    strategies: Sequence[str] | str = ("ddp", "fsdp_no_reshard", "fsdp"),
    **settings: Any,
) -> ClusterPlan:
    """Simulate a training step of a GPT on many ranks, and say what each rank needs in memory.

    PyTorch's own code runs, on tensors without data and in a process group without other members, so that a model of
    any size takes seconds and no memory. The step is ``zero_grad``, forward, cross entropy, backward, AdamW.

    Args:
        model: the size of a ``materials.models.GPT``.
        ranks: numbers of ranks.
        strategies: how the model is spread over them: keys of ``course_utils.ranks.cluster.STRATEGIES``.
        **settings: of the step: ``batch``, sequences on each rank (1); ``length``, tokens of a sequence (the model's
            context); ``precision``, ``bf16`` (autocast for ``ddp``; for the others a ``MixedPrecisionPolicy`` with
            reduction in fp32) or ``fp32``; ``checkpointing``, whether each block keeps its input only (False);
            ``optimizer``, AdamW's implementation: ``foreach``, ``loop`` or ``fused``; ``backend``, ``nccl``, or
            ``gloo``, whose reduce-scatter works on a copy.

    Raises:
        ValueError: if an argument makes no sense; the message says which.
        ClusterError: if the simulation fails.

    Example:
        >>> small = GPTShape(width=64, layers=2, heads=2, vocabulary=256, context=32)
        >>> plan = simulate_cluster(small, ranks=[2, 4], strategies=["fsdp"], precision="fp32")
        >>> plan["fsdp", 2].weights_bytes // plan["fsdp", 4].weights_bytes
        2
    """
    asked = settings_of(model, strategies=strategies, ranks=ranks, **settings)
    parameters = {key: value for key, value in asked[0].items() if key not in ("strategy", "ranks")}
    return ClusterPlan(tuple(simulate_points(asked)), parameters)


def simulate_points(asked: Sequence[Mapping[str, Any]]) -> list[ClusterPoint]:
    """Simulate points of several models and settings, each as :func:`settings_of` has it, in one process."""
    with progress("simulate_cluster", _START_S + _POINT_S * len(asked)):
        answers = _simulated(asked)
    return [
        ClusterPoint(
            strategy=settings["strategy"],
            ranks=settings["ranks"],
            **{f"{part}_bytes": sizes["largest"][part] for part in CLUSTER_PARTS},
            peak_bytes=sizes["peak_bytes"],
            at_peak=sizes["at_peak"],
            peak_phase=sizes["peak_phase"],
        )
        for settings, sizes in zip(asked, answers, strict=True)
    ]


def settings_of(
    model: GPTShape, *, strategies: Sequence[str] | str, ranks: Sequence[int] | int, **settings: Any
) -> list[dict[str, Any]]:
    """What the simulation is asked: each strategy on each number of ranks, with settings of `simulate_cluster`."""
    ranks = [ranks] if isinstance(ranks, int) else ranks
    strategies = [strategies] if isinstance(strategies, str) else strategies
    if wrong := sorted(settings.keys() - _DEFAULTS):
        known = ("ranks", "strategies", *_DEFAULTS)
        raise ValueError(f"there is no {wrong[0]!r}{did_you_mean(wrong[0], known)}. There are: {', '.join(known)}")
    if not ranks or not strategies:
        raise ValueError("choose at least one number of ranks and one strategy")
    shape = {key: size for key, size in dataclasses.asdict(model).items() if size is not None}
    return [
        _checked({**shape, **_DEFAULTS, **settings, "strategy": strategy, "ranks": count})
        for count in dict.fromkeys(ranks)
        for strategy in dict.fromkeys(strategies)
    ]


def _checked(point: dict[str, Any]) -> dict[str, Any]:
    """The point with its length. Raises ValueError if it makes no sense."""
    if point["length"] is None:
        point["length"] = point["context"]
    if "kv_heads" in point and "hidden" not in point:
        raise ValueError("kv_heads is a Llama's: say hidden, too, the width inside its MLP")
    for key in (*(point.keys() & {*_SHAPE}), "ranks", "batch", "length"):
        if type(point[key]) is not int or point[key] < 1:
            raise ValueError(f"{key} is a whole number of at least 1, got {point[key]!r}")
    for key, choices in CHOICES.items():
        if point[key] not in choices:
            raise ValueError(f"there is no {key} {point[key]!r}; there are: {', '.join(map(str, choices))}")
    for whole, part in (("width", "heads"), ("heads", "kv_heads")):
        if point[whole] % point.get(part, 1):
            raise ValueError(f"{whole} must be a multiple of {part}, got {point[whole]} and {point[part]}")
    if point["length"] > point["context"]:
        raise ValueError(f"length is at most the model's context of {point['context']}, got {point['length']}")
    return point


def stored_check() -> tuple[CheckedPoint, ...]:
    """Steps of 2 to 4 real ranks on gloo beside the simulation, under the strategies that it knows."""
    points = (CheckedPoint(**point) for point in _stored("cluster_memory/*.json")["points"])
    return tuple(point for point in points if point.strategy in STRATEGIES)


def _stored(files: str) -> dict[str, Any]:
    """What is in a file; of several machines' in the last one."""
    folder = package_root() / "ranks" / "plans"
    path = max(folder.glob(files), default=folder / files)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path.name} is missing or damaged ({error!r}). Restore it from git.") from error


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
