"""Memory per rank of a GPT's training step under DDP, ZeRO and full sharding, on clusters that are not there.

The simulation (``cluster_step.py``) runs in a process of its own and is asked through one line of JSON: a process group
of yours is not disturbed, and nothing that goes wrong there takes the kernel with it. No torch is imported here.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

from course_utils.measure.machine import environment
from course_utils.records.files import variables_for_children
from course_utils.records.kinds.cluster_check import CLUSTER_PARTS, CheckedPoint, ClusterCheck
from course_utils.records.kinds.cluster_plan import ClusterPlan, ClusterPoint, GPTShape
from course_utils.records.store import RecordError, keep, package_root
from course_utils.show.formats import format_bytes
from course_utils.show.progress import progress
from course_utils.show.suggestions import did_you_mean

T = TypeVar("T")

STRATEGIES: Mapping[str, str] = {
    "ddp": "DistributedDataParallel: every rank has all weights, gradients and optimizer state",
    "zero1": "DDP with ZeroRedundancyOptimizer: the optimizer's state is split, tensor by tensor",
    "fsdp_no_reshard": "fully_shard per block, reshard_after_forward=False: weights stay gathered until their backward "
    "pass; gradients and optimizer state are split, as in ZeRO-2",
    "fsdp": "fully_shard per block, reshard_after_forward=True: weights are gathered for each block anew",
    "hsdp": "as fsdp, within groups of `group` ranks; each group has a copy of the model",
    "fsdp_root": "fully_shard on the whole model only: everything is gathered at once",
}
CHOICES: Mapping[str, tuple[Any, ...]] = {
    "strategy": tuple(STRATEGIES),
    "precision": ("fp32", "bf16"),
    "optimizer": ("foreach", "loop", "fused"),
    "backend": ("nccl", "gloo"),
    "checkpointing": (False, True),
    "gradient_as_bucket_view": (False, True),
}
# Beyond this nothing is learned that a smaller one would not show, and sizes in bytes come near the end of an int64.
_MOST_PARAMETERS, _MOST_LAYERS, _MOST_RANKS, _MOST_ACTIVATIONS = 10**13, 256, 16384, 2**56
NOTES = (
    "Parts at the peak: the most that all took at one time, on the rank that has most. Activations are all that is no"
    " other part; in the optimizer's step, its temporaries.",
    "Tensors only, one step after the first. What CUDA and NCCL take for themselves, what the allocator loses to "
    "fragmentation, and what other streams delay is not in these numbers, and is not validated.",
)
_SHAPE = tuple(f.name for f in dataclasses.fields(GPTShape))
# Settings of a step, as real ranks have them here.
_DEFAULTS = {
    "batch": 1,
    "length": None,
    "precision": "fp32",
    "checkpointing": False,
    "optimizer": "foreach",
    "gradient_as_bucket_view": True,
    "backend": "gloo",
    "group": 8,
}
_SIZES = tuple(f"{part}_bytes" for part in (*CLUSTER_PARTS, "peak"))
_START_S, _POINT_S = 4.0, 2.0  # until the simulating process answers, and for each point, about


class ClusterError(RuntimeError):
    """The simulation failed. The message has its last words."""


def simulate_cluster(
    model: GPTShape,
    *,
    ranks: Sequence[int] | int = (8, 64, 1024),
    strategies: Sequence[str] | str = ("ddp", "zero1", "fsdp_no_reshard", "fsdp"),
    name: str | None = None,
    **settings: Any,
) -> ClusterPlan:
    """Simulate a training step of a GPT on many ranks, and say what each rank needs in memory.

    PyTorch's own code runs, on tensors without data and in a process group without other members, so that a model of
    any size takes seconds and no memory. The step is ``zero_grad``, forward, cross entropy, backward, AdamW.

    Args:
        model: the size of a ``materials.models.GPT``.
        ranks: numbers of ranks.
        strategies: how the model is spread over them: keys of ``course_utils.ranks.cluster.STRATEGIES``.
        name: ``lesson/experiment``, to keep the plan in a record.
        **settings: of the step: ``batch``, sequences on each rank (1); ``length``, tokens of a sequence (the model's
            context); ``precision``, ``bf16`` (autocast for ``ddp`` and ``zero1``; for the others a
            ``MixedPrecisionPolicy`` with reduction in fp32) or ``fp32``; ``checkpointing``, whether each block keeps
            its input only (False); ``optimizer``, AdamW's implementation: ``foreach``, ``loop`` or ``fused``;
            ``gradient_as_bucket_view``, DDP's option (True); ``backend``, ``nccl``, or ``gloo``, whose reduce-scatter
            works on a copy; ``group``, the ranks that share the shards under ``hsdp`` (8: one machine).

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
    simulated = _with_progress(asked, name or "simulate_cluster", len(asked))
    return keep(_plan(asked, itertools.starmap(_point, simulated), name))


def _plan(asked: Sequence[Mapping[str, Any]], points: Iterable[ClusterPoint], name: str | None = None) -> ClusterPlan:
    unused = set() if any(settings["strategy"] == "hsdp" for settings in asked) else {"group"}
    parameters = {key: asked[0].get(key) for key in (*_SHAPE, *_DEFAULTS) if key not in unused}
    return ClusterPlan(
        points=tuple(points),
        errors=stored_check().errors,
        environment=environment(),
        name=name,
        parameters={key: value for key, value in parameters.items() if value is not None},
        notes=NOTES,
    )


def least_ranks(model: GPTShape, memory_bytes: float, *, strategy: str = "fsdp", **settings: Any) -> ClusterPlan:
    """The least number of ranks on which a step fits, by simulation: a power of two up to 8, then whole machines of 8.

    It begins where 16 bytes a parameter fit. Each step up is twice as long as the one before, until one fits; then
    machines between that and the last one that was too few are tried.

    Args:
        model: its size.
        memory_bytes: that a rank's tensors may take. Leave room: a device's context, NCCL and gaps are not counted.
        strategy: how the model is spread.
        **settings: of :func:`simulate_cluster`.

    Returns:
        A plan of what was tried, in order, up to the first point that fits: ``plan.ranks[-1]`` is the answer.

    Raises:
        ValueError: if it fits on no number of ranks; the message says what is too large.

    Example:
        >>> small = GPTShape(width=64, layers=2, heads=2, vocabulary=256, context=32)
        >>> least_ranks(small, 1.5 * 2**20, precision="fp32").ranks
        (2, 4)
    """
    kept = 16 * model.parameters / memory_bytes  # AdamW in fp32: on fewer ranks not even that fits
    first = 0 if strategy in ("ddp", "zero1") else max(0, math.ceil(math.log2(kept)))
    machines = max(1, math.ceil(kept / 8))  # of 8 ranks
    counts = [2**exponent for exponent in range(first, 3)]
    counts += [count for exponent in range(12) if (count := 8 * (machines - 1 + 2**exponent)) <= _MOST_RANKS]
    asked = settings_of(model, strategies=strategy, ranks=counts, **settings)
    points: list[ClusterPoint] = []
    fits: list[int] = []

    def next_settings() -> Iterator[dict[str, Any]]:
        """What is simulated next, by what the last point held: upwards until one fits, then between."""
        few = 8 * (machines - 1)
        for settings in asked:
            yield settings
            if fits or _own_bytes(points[-1]) > memory_bytes or strategy == "ddp":
                break
            few = settings["ranks"]
        while fits and min(fits) - few > 8:
            middle = (few + min(fits)) // 16 * 8
            yield {**asked[0], "ranks": middle}
            few = few if middle in fits else middle

    for settings_now, sizes in _with_progress(next_settings(), "least_ranks", points=3):
        points.append(_point(settings_now, sizes))
        if points[-1].peak_bytes <= memory_bytes:
            fits.append(points[-1].ranks)
    if fits:
        return _plan(asked, sorted((p for p in points if p.ranks <= min(fits)), key=lambda p: p.ranks))
    point, fixed = points[-1], _own_bytes(points[-1])
    raise ValueError(
        f"it fits on no number of ranks: {point.label} peaks at {format_bytes(point.peak_bytes)}, of which"
        f" {format_bytes(fixed)} (activations, gathered weights) are a rank's own, and there are"
        f" {format_bytes(memory_bytes)}. Take a smaller batch, checkpointing=True, or cut the model itself (tensor"
        " parallelism)."
    )


def _own_bytes(point: ClusterPoint) -> int:
    return point.at_peak["activations"] + point.at_peak["gathered"]


def check_cluster(measured: Sequence[Mapping[str, Any]], *, name: str | None = None) -> ClusterCheck:
    """Put what was measured on real ranks beside the simulation of the same step: the method's own error.

    Args:
        measured: one mapping for each point, of the rank that has most, in a step after the first: ``strategy``,
            ``ranks``, the fields of :class:`GPTShape`, settings of :func:`simulate_cluster` (here precision is fp32 and
            backend gloo by default), and at least one of ``peak_bytes``, ``weights_bytes``, ``gradients_bytes``,
            ``optimizer_bytes``, ``gathered_bytes`` and ``activations_bytes``.
        name: ``lesson/experiment``, to keep the check in a record.

    Returns:
        The check. ``plan.against(check)`` shows its error beside a plan's predictions.

    Raises:
        ValueError: if a point lacks something, or makes no sense.
        ClusterError: if the simulation fails.
    """
    if not measured:
        raise ValueError("check_cluster() needs at least one measured point")
    asked = []
    for number, point in enumerate(measured, 1):
        try:
            if not any(point.get(key) for key in _SIZES):
                raise ValueError(f"it needs sizes in bytes, at least one of: {', '.join(_SIZES)}")
            asked.append(_checked({key: value for key, value in point.items() if key not in _SIZES}))
        except ValueError as error:
            raise ValueError(f"measured point {number}: {error}") from None
    points = []
    simulated = _with_progress(asked, name or "check_cluster", len(asked))
    for point, (settings, sizes) in zip(measured, simulated, strict=True):
        predicted = {**sizes["largest"], "peak": sizes["peak_bytes"]}
        real = {key.removesuffix("_bytes"): point[key] for key in _SIZES if point.get(key) is not None}
        points.append(
            CheckedPoint(
                strategy=settings["strategy"],
                ranks=settings["ranks"],
                parameters=_shape(settings).parameters,
                setting=setting_words(settings),
                measured=real,
                simulated={part: predicted[part] for part in real},
            )
        )
    return keep(ClusterCheck(points=tuple(points), environment=environment(), name=name))


def stored_check() -> ClusterCheck:
    """The committed check of `check_cluster`: 2 to 4 real ranks on gloo against the simulation."""
    return _stored("cluster_memory/*.json", ClusterCheck.from_record)


def stored_plans(kind: str = "gpt") -> tuple[ClusterPlan, ...]:
    """The committed plans of `simulate_cluster`, with the errors of :func:`stored_check`.

    Args:
        kind: ``gpt``, of about 7 and 1.3 billion parameters; ``llama``, of 1.5, 8 and 71 billion, each on 8, 64 and
            1024 ranks, with and without checkpointing; or ``published``, of steps whose peak others have measured.

    Raises:
        RecordError: if they are missing or damaged.
    """
    common = {"notes": NOTES, "errors": (), "name": None}

    def plans(record: Mapping[str, Any]) -> list[ClusterPlan]:
        environment = record["environment"]
        return [ClusterPlan.from_record({**common, "environment": environment, **plan}) for plan in record["plans"]]

    errors = stored_check().errors
    return tuple(dataclasses.replace(plan, errors=errors) for plan in _stored(f"cluster_plans/{kind}.json", plans))


def _stored(files: str, build: Callable[[Mapping[str, Any]], T]) -> T:
    """What is in a file; of several machines' checks in the last one."""
    folder = package_root() / "ranks" / "plans"
    path = max(folder.glob(files), default=folder / files)
    try:
        return build(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{path.name} is missing or damaged ({error!r}). Restore it from git.") from error


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
    common = {**shape, "precision": "bf16", "backend": "nccl", **settings}
    return [
        _checked({**common, "strategy": strategy, "ranks": count})
        for count in dict.fromkeys(ranks)
        for strategy in dict.fromkeys(strategies)
    ]


def _shape(settings: Mapping[str, Any]) -> GPTShape:
    return GPTShape(**{key: settings.get(key) for key in _SHAPE})


def _point(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> ClusterPoint:
    return ClusterPoint(
        strategy=settings["strategy"],
        ranks=settings["ranks"],
        **{f"{part}_bytes": sizes["largest"][part] for part in CLUSTER_PARTS},
        peak_bytes=sizes["peak_bytes"],
        at_peak=sizes["at_peak"],
        peak_phase=sizes["peak_phase"],
    )


def setting_words(settings: Mapping[str, Any]) -> str:
    """The settings of a step in words."""
    words = [
        settings["precision"],
        f"batch {settings['batch']} x {settings['length']}",
        "checkpointing" if settings["checkpointing"] else "",
        f"AdamW {settings['optimizer']}",
        "" if settings["gradient_as_bucket_view"] else "buckets beside gradients",
        f"groups of {settings['group']}" if settings["strategy"] == "hsdp" else "",
        settings["backend"],
    ]
    return ", ".join(filter(None, words))


def _checked(point: Mapping[str, Any]) -> dict[str, Any]:
    """The point with the defaults. Raises ValueError if it makes no sense."""
    llama = {"kv_heads", "hidden"}
    required = {"strategy", "ranks", *_SHAPE} - llama
    known = required | llama | _DEFAULTS.keys()
    if wrong := sorted((required - point.keys()) | (point.keys() - known)):
        raise ValueError(f"it lacks, or has without need: {', '.join(wrong)}; its keys are {', '.join(sorted(known))}")
    point = {**_DEFAULTS, **point}
    if point["length"] is None:
        point["length"] = point["context"]
    point = {key: value for key, value in point.items() if value is not None or key not in llama}
    if "kv_heads" in point and "hidden" not in point:
        raise ValueError("kv_heads is a Llama's: say hidden, too, the width inside its MLP")
    for key in (*(point.keys() & {*_SHAPE}), "ranks", "batch", "length", "group"):
        if type(point[key]) is not int or point[key] < 1:
            raise ValueError(f"{key} is a whole number of at least 1, got {point[key]!r}")
    for key, choices in CHOICES.items():
        if point[key] not in choices:
            raise ValueError(f"there is no {key} {point[key]!r}; there are: {', '.join(map(str, choices))}")
    if point["width"] % point["heads"]:
        raise ValueError(f"width must be a multiple of heads, got width={point['width']} and heads={point['heads']}")
    if point["heads"] % point.get("kv_heads", 1):
        raise ValueError(f"heads must be a multiple of kv_heads, got {point['heads']} and {point['kv_heads']}")
    if point["strategy"] == "hsdp" and point["ranks"] % point["group"]:
        raise ValueError(
            f"hsdp needs whole groups: {point['ranks']} ranks are no multiple of group={point['group']}. With N GPUs in"
            " a machine, take whole machines and group=N."
        )
    if point["length"] > point["context"]:
        raise ValueError(f"length is at most the model's context of {point['context']}, got {point['length']}")
    activations = (
        point["batch"] * point["length"] * max(4 * point["width"], point.get("hidden", 0), point["vocabulary"])
    )
    for what, size, most in (
        ("parameters of the model", _shape(point).parameters, _MOST_PARAMETERS),
        ("layers", point["layers"], _MOST_LAYERS),
        ("ranks", point["ranks"], _MOST_RANKS),
        ("numbers in a layer, for this batch and length,", activations, _MOST_ACTIVATIONS),
    ):
        if size > most:
            raise ValueError(f"{size:,} {what} are too many to simulate: at most {most:,}")
    return point


# The process that simulates


def _with_progress(
    asked: Iterable[dict[str, Any]], label: str, points: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each point, of about so many, with what is said of it."""
    mine, for_child = itertools.tee(asked)
    with progress(label, _START_S + _POINT_S * points) as bar, contextlib.closing(_simulated(for_child)) as simulated:
        for sizes in simulated:
            bar.advance(_POINT_S)
            yield next(mine), sizes


def _simulated(points: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What one child process says of each point; the next one is taken when the last one is answered."""
    shared = _shared.get()
    with contextlib.nullcontext(shared) if shared else _child() as (child, errors):
        for point in points:
            with contextlib.suppress(BrokenPipeError):  # it has ended: what it said last is read below
                print(json.dumps(point), file=child.stdin, flush=True)
            line = child.stdout.readline()
            if not line:
                errors.seek(0)
                last = (errors.read().strip().splitlines() or ["nothing"])[-1].strip()
                raise ClusterError(
                    f"the simulation ended at {point['strategy']} on {point['ranks']} ranks, with exit code "
                    f"{child.wait()}. It said last: {last}"
                )
            yield json.loads(line)


_shared: contextvars.ContextVar[tuple[subprocess.Popen[str], IO[str]] | None] = contextvars.ContextVar(
    "_shared", default=None
)


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Let one process do all that is simulated within the block: to start one takes seconds.

    Example:
        >>> small = GPTShape(width=64, layers=2, heads=2, vocabulary=256, context=32)
        >>> with one_process():
        ...     kept, again = (simulate_cluster(small, ranks=2, checkpointing=each) for each in (False, True))
        >>> kept["fsdp", 2].peak_bytes > again["fsdp", 2].peak_bytes
        True
    """
    with _child() as child:
        before = _shared.set(child)
        try:
            yield
        finally:
            _shared.reset(before)


@contextlib.contextmanager
def _child() -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The process that simulates, and what it says of errors; it ends with the block."""
    variables = {
        **variables_for_children(os.environ),
        "CUDA_VISIBLE_DEVICES": "",  # fake tensors need no GPU, and a context there would take memory
    }
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "course_utils.ranks.cluster_step"],
            stdin=subprocess.PIPE,  # closes when this process ends
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env=variables,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        ) as process,
    ):
        try:
            yield process, errors
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # what it did not read is still to be sent
                process.stdin.close()
