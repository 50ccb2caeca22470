"""Memory per rank of a GPT's training step under DDP, ZeRO and full sharding, on clusters that are not there.

The simulation (``cluster_step.py``) runs in a process of its own and is asked through one line of JSON: a process group
of yours is not disturbed, and nothing that goes wrong there takes the kernel with it. No torch is imported here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from course_utils.records.kinds.cluster_check import CheckedPoint, ClusterCheck
from course_utils.records.kinds.cluster_plan import CLUSTER_PARTS, ClusterPlan, ClusterPoint, GPTShape, trust_words
from course_utils.records.store import RecordError, keep, package_root
from course_utils.show.progress import progress

STRATEGIES: Mapping[str, str] = {
    "ddp": "DistributedDataParallel: every rank has all weights, gradients and optimizer state",
    "zero1": "DDP with ZeroRedundancyOptimizer: the optimizer's state is split, tensor by tensor",
    "zero2": "fully_shard per block, reshard_after_forward=False: weights stay gathered until their backward",
    "fsdp": "fully_shard per block, reshard_after_forward=True: weights are gathered for each block anew",
    "fsdp_root": "fully_shard on the whole model only: everything is gathered at once",
}
PRECISIONS = ("fp32", "bf16")
OPTIMIZERS = ("foreach", "loop", "fused")
BACKENDS = ("nccl", "gloo")
# Beyond this nothing is learned that a smaller one would not show, and sizes in bytes come near the end of an int64.
MOST_PARAMETERS, MOST_LAYERS, MOST_RANKS = 10**13, 256, 16384
_SHAPE = tuple(f.name for f in dataclasses.fields(GPTShape))
_SETTINGS = ("batch", "length", "precision", "checkpointing", "optimizer", "gradient_as_bucket_view", "backend")
_START_S = 4.0  # until the simulating process answers
_DEFAULTS = {
    "batch": 1,
    "precision": "fp32",
    "checkpointing": False,
    "optimizer": "foreach",
    "gradient_as_bucket_view": True,
    "backend": "gloo",
}
NOTES = (
    "Each part is shown at its own largest. The peak is the most that all took at one time, on the rank that has most.",
    "Tensors only, one step after the first. What CUDA and NCCL take for themselves, what the allocator loses to "
    "fragmentation, and what other streams delay is not in these numbers, and is not validated.",
)


class ClusterError(RuntimeError):
    """The simulation failed or took too long. The message says what it said last."""


def simulate_cluster(
    model: GPTShape,
    *,
    ranks: Sequence[int] | int = (8, 64, 1024),
    strategies: Sequence[str] | str = ("ddp", "zero1", "zero2", "fsdp"),
    batch: int = 1,
    length: int | None = None,
    precision: str = "bf16",
    checkpointing: bool = False,
    optimizer: str = "foreach",
    gradient_as_bucket_view: bool = True,
    backend: str = "nccl",
    name: str | None = None,
    timeout_s: float | None = None,
) -> ClusterPlan:
    """Simulate a training step of a GPT on many ranks, and say what each rank needs in memory.

    PyTorch's own code runs, on tensors without data and in a process group without other members, so that a model of
    any size takes seconds and no memory. The step is ``zero_grad``, forward, cross entropy, backward, AdamW.

    Args:
        model: the size of a ``materials.models.GPT``.
        ranks: numbers of ranks.
        strategies: how the model is spread over them: keys of ``course_utils.ranks.cluster.STRATEGIES``.
        batch: sequences on each rank.
        length: tokens of a sequence; by default the model's context.
        precision: ``fp32``; or ``bf16``, which is autocast for ``ddp`` and ``zero1``, and for the others a
            ``MixedPrecisionPolicy`` with bf16 parameters and reduction in fp32.
        checkpointing: whether each block keeps its input only, and is computed anew in the backward pass.
        optimizer: AdamW's implementation: ``foreach`` (PyTorch's choice on GPUs), ``loop`` (on CPUs) or ``fused``.
        gradient_as_bucket_view: DDP's option, for ``ddp`` and ``zero1``.
        backend: ``nccl``; or ``gloo``, whose reduce-scatter works on a copy.
        name: ``lesson/experiment``, to keep the plan in a record.
        timeout_s: when to give up; by default twenty times what it takes on a quiet machine.

    Returns:
        The plan: a table, a figure, and points to read.

    Raises:
        ValueError: if an argument makes no sense; the message says which.
        ClusterError: if the simulation fails or takes too long.

    Example:
        >>> small = GPTShape(width=64, layers=2, heads=2, vocabulary=256, context=32)
        >>> plan = simulate_cluster(small, ranks=[2, 4], strategies=["fsdp"], precision="fp32")
        >>> plan["fsdp", 2].weights_bytes // plan["fsdp", 4].weights_bytes
        2
    """
    settings = {
        "batch": batch,
        "length": length,
        "precision": precision,
        "checkpointing": checkpointing,
        "optimizer": optimizer,
        "gradient_as_bucket_view": gradient_as_bucket_view,
        "backend": backend,
    }
    asked = settings_of(model, strategies=strategies, ranks=ranks, **settings)
    found = _simulated(asked, name or "simulate_cluster", timeout_s)
    points = [_point(one, told) for one, told in zip(asked, found, strict=True)]
    check = stored_check()
    return keep(
        ClusterPlan(
            points=tuple(points),
            errors=() if check is None else check.errors,
            environment=_environment(),
            name=name,
            parameters={key: asked[0][key] for key in (*_SHAPE, *_SETTINGS)},
            notes=NOTES,
        )
    )


def check_cluster(
    measured: Sequence[Mapping[str, Any]], *, name: str | None = None, timeout_s: float | None = None
) -> ClusterCheck:
    """Put what was measured on real ranks beside the simulation of the same step: the method's own error.

    Args:
        measured: one mapping for each point: ``strategy``, ``ranks``, the model's ``width``, ``layers``, ``heads``,
            ``vocabulary`` and ``context``; what differs from the defaults (``batch`` 1, ``length`` the context,
            ``precision`` fp32, ``checkpointing`` False, ``optimizer`` foreach, ``gradient_as_bucket_view`` True,
            ``backend`` gloo); and at least one of ``peak_bytes``, ``weights_bytes``, ``gradients_bytes``,
            ``optimizer_bytes``, ``gathered_bytes`` and ``activations_bytes``, of the rank that has most, in a
            step after the first.
        name: ``lesson/experiment``, to keep the check in a record.
        timeout_s: when to give up.

    Returns:
        The check. ``plan.against(check)`` shows its error beside a plan's predictions.

    Raises:
        ValueError: if a point lacks something, or makes no sense.
        ClusterError: if the simulation fails or takes too long.
    """
    sizes = [f"{part}_bytes" for part in (*CLUSTER_PARTS, "peak")]
    known = {*_SHAPE, *_SETTINGS, "strategy", "ranks", *sizes}
    if not measured:
        raise ValueError("check_cluster() needs at least one measured point")
    asked, found_there = [], []
    for number, given in enumerate(measured, 1):
        missing = [key for key in ("strategy", "ranks", *_SHAPE) if key not in given]
        unknown = [key for key in given if key not in known]
        if missing or unknown:
            what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which means nothing here"
            raise ValueError(f"measured point {number} {what}; its keys are {', '.join(sorted(known))}")
        there = {key.removesuffix("_bytes"): given[key] for key in sizes if given.get(key) is not None}
        if not there or any(type(size) is not int or size < 0 for size in there.values()) or not max(there.values()):
            raise ValueError(f"measured point {number} needs sizes in whole bytes, at least one of: {', '.join(sizes)}")
        point = {**_DEFAULTS, "length": given["context"], **{key: given[key] for key in given if key not in sizes}}
        try:
            asked.append(_checked(point))
        except ValueError as error:
            raise ValueError(f"measured point {number}: {error}") from None
        found_there.append(there)
    points = []
    simulated = _simulated(asked, name or "check_cluster", timeout_s)
    for point, there, found in zip(asked, found_there, simulated, strict=True):
        here = {**found["largest"], "peak": found["peak_bytes"]}
        points.append(
            CheckedPoint(
                strategy=point["strategy"],
                ranks=point["ranks"],
                parameters=GPTShape(**{key: point[key] for key in _SHAPE}).parameters,
                setting=setting_words(point),
                measured=there,
                simulated={key: here[key] for key in there},
            )
        )
    return keep(ClusterCheck(points=tuple(points), environment=_environment(), name=name))


def stored_check() -> ClusterCheck | None:
    """The committed check: real ranks on gloo against the simulation. None if the package has none.

    Returns:
        The check of the machine that comes last by name; ``benchmarks/cluster_memory.py`` makes it.

    Raises:
        RecordError: if it is damaged.
    """
    found = sorted((package_root() / "ranks" / "plans" / "cluster_memory").glob("*.json"))
    if not found:
        return None
    try:
        return ClusterCheck.from_record(json.loads(found[-1].read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"{found[-1].name} is damaged ({error!r}). Restore it from git, or run"
            " `python benchmarks/cluster_memory.py`."
        ) from error


def stored_plans() -> tuple[ClusterPlan, ...]:
    """The committed plans: GPTs of about 7 and 1.3 billion parameters, each with and without checkpointing.

    They were computed ahead by ``benchmarks/cluster_memory.py --plans``, on 8, 64 and 1024 ranks, because a lesson that
    shows them all has no time to simulate them. How good they are is told from :func:`stored_check`, as for every plan.

    Returns:
        The plans; that of 7 billion parameters without checkpointing is the first.

    Raises:
        RecordError: if they are missing or damaged.
    """
    path = package_root() / "ranks" / "plans" / "cluster_plans" / "gpt.json"
    check = stored_check()
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        rest = {"environment": record["environment"], "notes": NOTES, "errors": (), "name": None}
        plans = tuple(ClusterPlan.from_record({**rest, **plan}) for plan in record["plans"])
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"{path.name}, the plans computed ahead, is missing or damaged ({error!r}). Restore it from git, or run"
            " `python benchmarks/cluster_memory.py --plans`."
        ) from error
    return tuple(dataclasses.replace(plan, errors=() if check is None else check.errors) for plan in plans)


def settings_of(
    model: GPTShape, *, strategies: Sequence[str] | str, ranks: Sequence[int] | int, **settings: Any
) -> list[dict[str, Any]]:
    """What the simulation is asked: each strategy on each number of ranks.

    Args:
        model: the model's size.
        strategies: names of strategies.
        ranks: numbers of ranks.
        **settings: as for :func:`simulate_cluster`; what is left out is as there.

    Returns:
        The points.

    Raises:
        ValueError: if something makes no sense.
    """
    if not isinstance(model, GPTShape):
        raise ValueError(f"model is a GPTShape, such as GPTShape(width=4096, layers=32, heads=32); got {model!r}")
    ranks = [ranks] if isinstance(ranks, int) else list(ranks)
    strategies = [strategies] if isinstance(strategies, str) else list(strategies)
    if not ranks or not strategies:
        raise ValueError("choose at least one number of ranks and one strategy")
    settings = {**_DEFAULTS, "precision": "bf16", "backend": "nccl", **settings}
    if settings.get("length") is None:
        settings["length"] = model.context
    return [
        _checked({**dataclasses.asdict(model), **settings, "strategy": strategy, "ranks": count})
        for count in dict.fromkeys(ranks)
        for strategy in dict.fromkeys(strategies)
    ]


def points_of(
    asked: Sequence[dict[str, Any]], wanted: Callable[[], bool] | None = None
) -> Iterator[tuple[ClusterPoint, str]]:
    """Simulate points one after the other, without a progress bar: for a form that shows each as it comes.

    Args:
        asked: from :func:`settings_of`.
        wanted: is asked several times a second; once it says no, the simulation ends, also in the middle of a point.

    Yields:
        Each point, and in words how good the method is there. Closing the iterator ends the simulation.
    """
    check = stored_check()
    errors = () if check is None else check.errors
    with contextlib.closing(_simulated(asked, None, None, wanted)) as found:
        for one, told in zip(asked, found, strict=False):  # fewer are found when they are no longer wanted
            point = _point(one, told)
            size = GPTShape(**{key: one[key] for key in _SHAPE}).parameters
            yield point, trust_words(point, errors, size)


def _point(asked: Mapping[str, Any], found: Mapping[str, Any]) -> ClusterPoint:
    return ClusterPoint(
        strategy=asked["strategy"],
        ranks=asked["ranks"],
        **{f"{part}_bytes": found["largest"][part] for part in CLUSTER_PARTS},
        peak_bytes=found["peak_bytes"],
        at_peak=found["at_peak"],
        peak_phase=found["peak_phase"],
    )


def setting_words(settings: Mapping[str, Any]) -> str:
    """The settings of a step in words."""
    words = [f"{settings['precision']}", f"batch {settings['batch']} x {settings['length']}"]
    words += ["checkpointing"] if settings["checkpointing"] else []
    words += [f"AdamW {settings['optimizer']}"]
    words += [] if settings["gradient_as_bucket_view"] else ["buckets beside gradients"]
    words += [settings["backend"]]
    return ", ".join(words)


def _checked(point: dict[str, Any]) -> dict[str, Any]:
    """The point, if it makes sense.

    Raises:
        ValueError: if it does not; the message says why.
    """
    for key in (*_SHAPE, "ranks", "batch", "length"):
        value = point[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{key} is a whole number of at least 1, got {value!r}")
    for key, choices in (
        ("strategy", tuple(STRATEGIES)),
        ("precision", PRECISIONS),
        ("optimizer", OPTIMIZERS),
        ("backend", BACKENDS),
    ):
        if point[key] not in choices:
            raise ValueError(f"there is no {key} {point[key]!r}; there are: {', '.join(choices)}")
    for key in ("checkpointing", "gradient_as_bucket_view"):
        if not isinstance(point[key], bool):
            raise ValueError(f"{key} is True or False, got {point[key]!r}")
    if point["width"] % point["heads"]:
        raise ValueError(f"width must be a multiple of heads, got width={point['width']} and heads={point['heads']}")
    if point["length"] > point["context"]:
        raise ValueError(f"length is at most the model's context of {point['context']}, got {point['length']}")
    parameters = GPTShape(**{key: point[key] for key in _SHAPE}).parameters
    if parameters > MOST_PARAMETERS:
        raise ValueError(
            f"a model of {parameters:.2g} parameters is too large to simulate; the limit is {MOST_PARAMETERS:.0e}"
        )
    if point["layers"] > MOST_LAYERS:
        raise ValueError(
            f"{point['layers']} layers take too long to simulate: choose at most {MOST_LAYERS}, and more width"
        )
    if point["ranks"] > MOST_RANKS:
        raise ValueError(f"{point['ranks']} ranks are too many to simulate: choose at most {MOST_RANKS}")
    if point["batch"] * point["length"] * max(4 * point["width"], point["vocabulary"]) > 2**56:
        raise ValueError(
            f"a batch of {point['batch']} x {point['length']} tokens is too large to simulate: choose a smaller batch"
        )
    return point


def _environment() -> Any:
    from course_utils.measure.machine import environment

    return environment()


def expected_s(points: Sequence[Mapping[str, Any]]) -> float:
    """About how long the simulation of these points takes, on two quiet cores."""
    return _START_S + sum(map(_expected_s, points))


def _expected_s(point: Mapping[str, Any]) -> float:
    return 0.3 + point["layers"] * (0.08 if point["strategy"] in ("ddp", "zero1") else 0.15)


def _simulated(
    points: Sequence[dict[str, Any]],
    label: str | None,
    timeout_s: float | None,
    wanted: Callable[[], bool] | None = None,
) -> Iterator[dict[str, Any]]:
    """What the child process says of each point."""
    timeout_s = max(180.0, 20 * expected_s(points)) if timeout_s is None else timeout_s
    deadline = time.monotonic() + timeout_s
    shown = contextlib.nullcontext() if label is None else progress(label, expected_s(points))
    with shown as bar, _child() as (process, lines, errors):
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it may have ended already; what it said is read below
            process.stdin.write(json.dumps(points) + "\n")
            process.stdin.flush()
        for number, point in enumerate([None, *points]):
            try:
                line = _next_line(lines, deadline, wanted)
            except _UnwantedError:
                return
            except queue.Empty:
                raise ClusterError(
                    f"the simulation took more than {timeout_s:.0f} s and was ended, after {max(0, number - 1)} of "
                    f"{len(points)} points. Ask for fewer points or layers, or give it more time with timeout_s=."
                ) from None
            if line is None:
                errors.seek(0)
                said = errors.read().strip().splitlines() or ["it said nothing"]
                at = "while it started" if point is None else f"at {point['strategy']} on {point['ranks']} ranks"
                raise ClusterError(
                    f"the simulation ended {at}, with exit code {process.wait()}. It said last: {said[-1].strip()}"
                )
            if bar is not None:
                bar.advance(_START_S if point is None else _expected_s(point))
            if point is not None:
                yield json.loads(line)


class _UnwantedError(Exception):
    """Nobody waits for the simulation any more."""


def _next_line(lines: queue.Queue[str | None], deadline: float, wanted: Callable[[], bool] | None) -> str | None:
    """What the child said next; ``queue.Empty`` if it says nothing until the deadline."""
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        if wanted is None:
            return lines.get(timeout=left_s)
        if not wanted():
            raise _UnwantedError
        try:
            return lines.get(timeout=min(0.2, left_s))
        except queue.Empty:
            if left_s == 0:
                raise


@contextlib.contextmanager
def _child() -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str | None], IO[str]]]:
    """The process that simulates, its lines (None after the last) and its stderr; it ends with the block."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(package_root().parent), os.environ.get("PYTHONPATH")))),
        "CUDA_VISIBLE_DEVICES": "",  # fake tensors need no GPU, and a context there would take memory
    }
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "course_utils.ranks.cluster_step"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env=variables,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield process, lines, errors
        finally:
            process.kill()
            process.wait()
            reader.join(timeout=10)
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
