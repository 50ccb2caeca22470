"""For torchrun programs: meet the other ranks, hand values to the notebook, time rounds, count memory by kind.

They do no harm elsewhere: a program that plain torchrun starts, on this machine or on a cluster, runs as it would
without them, and rank 0 prints what it has to say.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_utils.ranks.entry import FOLDER_VARIABLE, report_file
from course_utils.records.files import write_whole
from course_utils.records.result import compact

# A lesson's record should stay below 200 kB, and it may hold several runs of several ranks.
MOST_REPORT_BYTES = 32_000
# A rank that waits in a collective operation of these does so on the CPU, and sleeps.
_WAITS_ON_CPU = ("gloo", "mpi", "fake")
_reported: dict[str, Any] = {}
# The process group of the program, and one beside it in which ranks wait for each other.
_waiting: tuple[weakref.ref[Any], Any] | None = None


def join_ranks() -> tuple[int, int, torch.device]:
    """Meet the other processes. torchrun has put into the environment who you are and where they are."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.device_count() >= local_ranks:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size(), device


def report(**values: Any) -> None:
    """Hand values of this rank to the notebook that started it with :func:`course_utils.ranks.launch.run_ranks`.

    May be called several times; a value replaces an earlier one of the same name. Started otherwise, rank 0 prints the
    values.

    Args:
        **values: numbers, texts, truth values, None, tensors with one dimension at most, and lists and dictionaries of
            these. A number that is not finite becomes None. End names of seconds with ``_s`` and of bytes with
            ``_bytes``: tables and figures go by that. A list is a series of samples or a curve, a dictionary of bytes
            is memory by kind.

    Raises:
        TypeError: if a value is none of these.
        ValueError: if this rank's report is larger than a record should hold.

    Example:
        >>> report(loss=[2.0, 1.5], memory_bytes={"weights": 4096})
        loss: 2 values, the first 2, the last 1.5
        memory_bytes: weights 4096
    """
    new = {name: _plain(value, name) for name, value in values.items()}
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        _print_on_rank_0(*(f"{name}: {_in_words(value)}" for name, value in new.items()))
        return
    sizes = {name: len(json.dumps(compact(value))) for name, value in {**_reported, **new}.items()}
    if sum(sizes.values()) > MOST_REPORT_BYTES:
        largest = max(sizes, key=sizes.__getitem__)
        raise ValueError(
            f"this rank's report has {sum(sizes.values()) / 1000:.0f} kB, and a record has room for "
            f"{MOST_REPORT_BYTES / 1000:.0f} kB a rank; {largest!r} alone takes {sizes[largest] / 1000:.0f} kB: "
            "report fewer values, for example every tenth step"
        )
    _reported.update(new)
    backend = dist.get_backend() if dist.is_available() and dist.is_initialized() else None
    file = report_file(Path(folder), int(os.environ["RANK"]))
    write_whole(file, json.dumps({"values": _reported, "backend": backend}))


def _print_on_rank_0(*lines: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()


def _plain(value: Any, name: str) -> Any:
    """A value as JSON holds it."""
    if hasattr(value, "tolist") and getattr(value, "ndim", 2) <= 1:  # NumPy's or torch's
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(item, name) for item in value]
    raise TypeError(
        f"report() cannot hand over {name!r}, a {type(value).__name__}: pass numbers, texts, truth values, or lists "
        "and dictionaries of these, for example with .item() or str()"
    )


def _in_words(value: Any) -> str:
    if isinstance(value, list) and len(value) > 1:
        return f"{len(value)} values, the first {_in_words(value[0])}, the last {_in_words(value[-1])}"
    if isinstance(value, list):
        return ", ".join(map(_in_words, value)) or "no values"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_words(item)}" for key, item in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def timed_rounds(
    cases: Mapping[str, Callable[[], Any] | None],
    *,
    name: str = "rounds",
    rounds: int = 20,
    calls: int = 1,
    warmup: int = 2,
    seed: int = 0,
    items: float | Mapping[str, float] | None = None,
    agreement: str = "",
) -> dict[str, list[float]]:
    """Time cases side by side on all ranks, as :func:`course_utils.compare` does in one process.

    In every round each case runs once, in a random order that is the same on all ranks. Before each timing each rank
    waits for its device, and then for the others: on the CPU, so that the GPU of a rank that waits is idle. The first
    case is the baseline; it runs twice in every round, and the second time is the A/A control. The raw seconds are
    reported: ``run.comparison(name)`` compares the times of the slowest rank.

    Every rank must call this with the same cases in the same order.

    Args:
        cases: label to function without arguments. None on a rank that has nothing to do in that case: it waits.
        name: what the result is called.
        rounds: how many; a verdict needs 8, and 20 to 40 are good.
        calls: calls in one timing; more for cases under a millisecond.
        warmup: calls of each case before the first round; the very first one is timed apart.
        seed: for the order of the cases.
        items: samples or tokens that one call handles on all ranks together; a number for all cases, or one for each.
        agreement: what the program has checked of the cases' results, in words.

    Returns:
        Seconds of one call on this rank, one value a round, by label; no values for a case that is None here.

    Raises:
        ValueError: if there are fewer than two cases or no round, or ``items`` names other cases.

    Example:
        >>> x = list(range(1000))
        >>> len(timed_rounds({"sum": lambda: sum(x), "max": lambda: max(x)}, rounds=8, name="on_lists")["max"])
        on_lists: 8 rounds of sum, max
        8
    """
    labels = list(cases)
    if len(labels) < 2 or rounds < 1:
        raise ValueError(
            f"timed_rounds() compares two cases or more, the first is the baseline, in one round or more; got "
            f"{len(labels)} cases and {rounds} rounds"
        )
    if isinstance(items, Mapping) and set(items) != set(labels):
        raise ValueError(f"items= must be one number or name exactly the cases {', '.join(labels)}")
    first = {label: _timed(fn, 1) for label, fn in cases.items()}
    timed = [*cases.values(), cases[labels[0]]]  # the baseline again: the A/A control
    for fn in timed:
        for _ in range(warmup):
            _timed(fn, 1)
    seconds: list[list[float]] = [[] for _ in timed]
    for order in itertools.islice(_orders(len(timed), random.Random(seed)), rounds):
        for place in order:
            elapsed = _timed(timed[place], calls)
            if elapsed is not None:
                seconds[place].append(elapsed / calls)
    own = dict(zip(labels, seconds, strict=False))
    if not os.environ.get(FOLDER_VARIABLE):
        _print_on_rank_0(f"{name}: {rounds} rounds of {', '.join(labels)}")
        return own
    values = {
        "labels": labels,
        "seconds": own,
        "control": seconds[-1],
        "first_call_s": first,
        "calls": calls,
        "items": dict(items) if isinstance(items, Mapping) else dict.fromkeys(labels, items),
        "agreement": agreement,
    }
    report(**{name: values})
    return own


def _orders(count: int, dice: random.Random) -> Iterator[Sequence[int]]:
    """Random orders without end. All come equally often, as long as they can be gone through."""
    while True:
        if count > 4:
            yield dice.sample(range(count), count)
        else:
            orders = list(itertools.permutations(range(count)))
            yield from dice.sample(orders, len(orders))


def _timed(fn: Callable[[], Any] | None, calls: int) -> float | None:
    """Wait until all ranks and their devices have nothing to do, then time; None where there is nothing to time."""
    _synchronize()
    _wait_for_others()
    if fn is None:
        return None
    start = time.perf_counter()
    for _ in range(calls):
        fn()
    _synchronize()
    return max(time.perf_counter() - start, 1e-9)


def _wait_for_others() -> None:
    """Wait until all ranks are here, on the CPU: NCCL's barrier would keep the GPUs of those that wait busy."""
    global _waiting
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    if dist.get_backend() in _WAITS_ON_CPU:
        dist.barrier()
        return
    if _waiting is None or _waiting[0]() is not dist.group.WORLD:
        # Once for a program: every rank comes by here at the same time.
        _waiting = weakref.ref(dist.group.WORLD), dist.new_group(backend="gloo")
    # Not barrier(): with a device bound to the process group, that one would take a tensor on the GPU.
    dist.all_reduce(torch.zeros(1), group=_waiting[1])


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def memory_by_kind(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, int]:
    """Bytes that this rank holds now for a model and its optimizer, by kind.

    Of a sharded parameter (a DTensor) the local shard counts. Memory that several tensors share counts once. Not seen
    are activations, and buffers that DistributedDataParallel keeps for itself.

    Args:
        model: the model, wrapped or not.
        optimizer: its optimizer; a ``ZeroRedundancyOptimizer`` counts with the state of this rank.

    Returns:
        ``weights`` (buffers included), ``optimizer state`` and ``gradients``.

    Example:
        >>> import torch
        >>> memory_by_kind(torch.nn.Linear(8, 4, bias=False))
        {'weights': 128, 'optimizer state': 0, 'gradients': 0}
    """
    state = {} if optimizer is None else getattr(optimizer, "optim", optimizer).state
    kinds = {
        "weights": [*model.parameters(), *model.buffers()],
        "optimizer state": [value for values in state.values() for value in values.values()],
        "gradients": [parameter.grad for parameter in model.parameters()],
    }
    counted: set[tuple[torch.device, int]] = set()
    sizes = dict.fromkeys(kinds, 0)
    for kind, tensors in kinds.items():
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).untyped_storage()
            key = (storage.device, storage.data_ptr())
            if key not in counted:
                counted.add(key)
                sizes[kind] += storage.nbytes()
    return sizes
