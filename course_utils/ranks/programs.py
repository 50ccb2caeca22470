"""For torchrun programs: meet the other ranks, train a little, hand values to the notebook, time rounds, count memory.

Under plain torchrun, on this machine or on a cluster, rank 0 prints what is reported.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from course_utils.files import write_whole
from course_utils.measure.machine import course_size
from course_utils.ranks.entry import FOLDER_VARIABLE, report_file
from course_utils.results import paired
from course_utils.results.serialization import compact

# A lesson's record should stay below 200 kB, and it may hold several runs of several ranks.
MOST_REPORT_BYTES = 32_000
_WARM_UP_CALLS = 2
# A report has room for a few comparisons of so many rounds.
_MOST_ROUNDS = 192
_reported: dict[str, Any] = {}


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


def integer_options(description: str, **defaults: int) -> argparse.ArgumentParser:
    """A parser of whole numbers: ``rounds=20`` is the option ``--rounds``."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    return parser


def loss_of(model: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in float32, in nats per token."""
    return functional.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    """A copy of all gradients, as one vector."""
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def report(**values: Any) -> None:
    """Hand values of this rank to the notebook that started it. Under plain torchrun rank 0 prints them.

    A value replaces an earlier one of the same name. Values are numbers, texts, truth values, None, tensors with one
    dimension at most, and lists and dictionaries of these. A number that is not finite becomes None. End names of
    seconds with ``_s`` and of bytes with ``_bytes``: tables and figures go by that.

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
    size = len(json.dumps(compact({**_reported, **new})))
    if size > MOST_REPORT_BYTES:
        raise ValueError(
            f"this rank's report has {size / 1000:.0f} kB with {', '.join(new)}, and a record has room for "
            f"{MOST_REPORT_BYTES / 1000:.0f} kB a rank: report fewer values, for example every tenth step"
        )
    _reported.update(new)
    backend = dist.get_backend() if dist.is_initialized() else None
    file = report_file(Path(folder), int(os.environ["RANK"]))
    told = {"values": _reported, "backend": backend, "on_gpu": torch.cuda.is_initialized()}
    write_whole(file, json.dumps(told))


def _print_on_rank_0(*lines: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()


def _plain(value: Any, name: str) -> Any:
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
    budget_s: float = 10.0,
    practical: float = paired.PRACTICAL,
    items: float | None = None,
) -> dict[str, list[float]]:
    """Time cases side by side on all ranks, as :func:`course_utils.compare` does in one process.

    In every round each case runs once, in a random order that is the same on all ranks. Before each timing each rank
    waits for its device, and then for the others: on the CPU, so that the GPU of a rank that waits is idle. The first
    case is the baseline; it runs twice in every round, and the second time is the A/A control. Rounds go on until the
    times of the slowest rank decide, or the time is up; at least 8. The raw seconds are reported:
    ``run.comparison(name)`` compares the times of the slowest rank.

    Args:
        cases: label to function without arguments; the same labels in the same order on every rank. None on a rank that
            has nothing to do in that case: it waits.
        name: what the result is called.
        budget_s: the most seconds, beyond the 8 rounds that a verdict needs.
        practical: relative difference below which nobody cares: 0.01 is 1%.
        items: samples or tokens that one call handles on all ranks together.

    Returns:
        Seconds of one call on this rank, one value a round, by label; no values for a case that is None here.

    Example:
        >>> x = list(range(1000))
        >>> len(timed_rounds({"sum": lambda: sum(x), "max": lambda: max(x)}, budget_s=0, name="on_lists")["max"])
        on_lists: 8 rounds of sum, max
        8
    """
    labels = list(cases)
    if len(labels) < 2:
        raise ValueError(f"timed_rounds() compares two cases or more, the first is the baseline; got {len(labels)}")
    if any(others != labels for others in _from_all_ranks(labels)):
        raise ValueError("every rank must time the same cases in the same order: None where it has nothing to do")
    first = {label: _timed(fn) for label, fn in cases.items()}
    timed = [*cases.values(), cases[labels[0]]]  # the baseline again: the A/A control
    for fn in timed:
        for _ in range(_WARM_UP_CALLS):
            _timed(fn)
    budget_s = 0.0 if course_size() == "test" else budget_s
    seconds: list[list[float]] = [[] for _ in timed]
    confidence = 0.0
    started, done = time.perf_counter(), 0
    dice = random.Random(0)  # every rank takes the cases in the same order
    while not confidence:
        for place in dice.sample(range(len(timed)), len(timed)):
            elapsed = _timed(timed[place])
            if elapsed is not None:
                seconds[place].append(elapsed)
        done += 1
        confidence = _reached(seconds, done, time.perf_counter() - started, budget_s, practical)
    own = dict(zip(labels, seconds, strict=False))
    if not os.environ.get(FOLDER_VARIABLE):
        _print_on_rank_0(f"{name}: {done} rounds of {', '.join(labels)}")
        return own
    values = {
        "labels": labels,
        "seconds": own,
        "control": seconds[-1],
        "first_call_s": first,
        "calls": 1,
        "items": dict.fromkeys(labels, items),
        "agreement": "",
        "confidence": confidence,
        "practical": practical,
    }
    report(**{name: values})
    return own


def _reached(seconds: Sequence[Sequence[float]], done: int, spent_s: float, budget_s: float, practical: float) -> float:
    """The confidence of the intervals that decide, if these rounds were the last; 0 if others follow.

    All ranks come to the same answer: they hand each other what they measured.
    """
    is_look = done in paired.LOOKS
    (spent_s, *series), *others = _from_all_ranks([spent_s, *(seconds if is_look else ())])
    for other_s, *other_series in others:
        spent_s = max(spent_s, other_s)
        # The slowest rank counts; a case that a rank has not, it has in no round.
        series = [
            list(map(max, mine, theirs)) if mine and theirs else mine or theirs
            for mine, theirs in zip(series, other_series, strict=True)
        ]
    if is_look:
        confidence = paired.look_confidence(done, last=False)
        baseline, *cases, control = series
        judged = (paired.judge(case, baseline, control, confidence, practical) for case in cases if case and baseline)
        if all(case.is_enough(spent_s) for case in judged):
            return confidence
    over = done >= paired.MIN_ROUNDS and spent_s * (done + 1) / done > budget_s
    return paired.look_confidence(done, last=True) if over or done >= _MOST_ROUNDS else 0.0


def _from_all_ranks(values: list[Any]) -> list[list[Any]]:
    """What each rank hands over, handed over on the CPU."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [values]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, values, group=None if dist.get_backend() == "gloo" else _group_on_cpu())
    return gathered


def _timed(fn: Callable[[], Any] | None) -> float | None:
    """Wait until all ranks and their devices have nothing to do, then time; None where there is nothing to time."""
    _synchronize()
    _wait_for_others()
    if fn is None:
        return None
    start = time.perf_counter()
    fn()
    _synchronize()
    return max(time.perf_counter() - start, 1e-9)


def _wait_for_others() -> None:
    """Wait until all ranks are here, on the CPU: NCCL's barrier would keep the GPUs of those that wait busy."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    if dist.get_backend() == "gloo":
        dist.barrier()
    else:
        # Not barrier(): with a device bound to the process group, that one would take a tensor on the GPU.
        dist.all_reduce(torch.zeros(1), group=_group_on_cpu())


@functools.cache
def _group_on_cpu() -> dist.ProcessGroup:
    return dist.new_group(backend="gloo")


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def memory_by_kind(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, int]:
    """Bytes that this rank holds now for a model and its optimizer, by kind.

    Of a sharded parameter (a DTensor) or a ``ZeroRedundancyOptimizer`` what is on this rank counts; memory that several
    tensors share counts once. Activations, and DistributedDataParallel's own buffers, are not seen.

    Example:
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
