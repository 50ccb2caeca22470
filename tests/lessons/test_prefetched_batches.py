"""`pinned_memory`'s prefetcher on made-up GPUs: no race, few batches; and the timer that a reader takes home."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.data

from course_utils.lessons.pinned_memory import cases
from tests.lessons import pasted

SOURCE = pasted.source("pinned_memory", "prefetched")
PASTED = "at-best-yours", "at-best", "at-best-used"
BATCHES = 40  # far more than take turns in the GPU's memory
IN_ORDER = [float(n) for n in range(BATCHES)]
BEFORE_THE_COPY = "side.wait_stream(torch.cuda.current_stream())"
BEFORE_THE_WORK = "torch.cuda.current_stream().wait_stream(side)"


def test_the_loop_that_is_measured_is_fed_by_the_prefetcher_that_is_shown():
    def body(source: str) -> list[str]:
        lines = (line.partition("#")[0].rstrip() for line in source.splitlines()[1:])
        return [line for line in lines if line and '"""' not in line]

    assert body(inspect.getsource(cases.prefetched)) == body(SOURCE)


def prefetcher(source: str, cuda: Any) -> Callable[..., Iterator[Any]]:
    scope: dict[str, Any] = {"torch": SimpleNamespace(cuda=cuda)}
    exec(source, scope)
    return scope["prefetched"]


class Stream:
    """A queue of work, each piece with the pieces that have to be done before it."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], bool]] = []

    def wait_stream(self, other: Stream) -> None:
        waited_for = list(other.queue)
        self.queue.append(lambda: not any(work in other.queue for work in waited_for))


class OnGpu:
    """Memory on the GPU: an address that may be handed out again once its last user has dropped it."""

    def __init__(self, gpu: Gpu, address: int) -> None:
        self.gpu, self.address, self.made_on = gpu, address, gpu.current

    def __del__(self) -> None:
        self.gpu.free.append((self.address, self.made_on))  # for the stream that made it, as in the allocator


class Gpu:
    """Streams that run only when ``run`` says so, and a memory of numbers."""

    def __init__(self) -> None:
        self.main = self.current = Stream()
        self.side = Stream()
        self.memory: dict[int, float] = {}
        self.free: list[tuple[int, Stream]] = []
        self.read: list[float] = []

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current, before = stream, self.current
        yield
        self.current = before

    def current_stream(self) -> Stream:
        return self.current

    def allocate(self) -> OnGpu:
        for place, (address, made_on) in enumerate(self.free):
            if made_on is self.current:
                del self.free[place]
                return OnGpu(self, address)
        self.memory[len(self.memory)] = float("nan")
        return OnGpu(self, len(self.memory) - 1)

    def copy(self, value: float) -> OnGpu:
        target = self.allocate()
        address = target.address
        self.current.queue.append(lambda: self.memory.__setitem__(address, value) is None)
        return target

    def work(self, address: int) -> None:
        self.main.queue.append(lambda: self.read.append(self.memory[address]) is None)

    def run(self, *order: Stream) -> None:
        """Runs all that can run, the stream that is named first before the others."""
        while any(stream.queue and stream.queue[0]() and [stream.queue.pop(0)] for stream in order):
            pass


def work_on_all(eager: str | None, *, source: str = SOURCE, drops: bool = False) -> tuple[list[float], int]:
    """Work on batches 0, 1, 2, ...; one stream, or None, runs at once, and the other as late as it can.

    Returns:
        What the work read, and how many blocks of memory it took.
    """
    gpu = Gpu()
    for batch in prefetcher(source, gpu)(IN_ORDER, gpu.copy, gpu.side):
        gpu.work(batch.address)
        if drops:  # before the loop asks for the next one
            del batch
        if eager:
            gpu.run(getattr(gpu, eager))
    gpu.run(gpu.side, gpu.main)
    return gpu.read, len(gpu.memory)


@pytest.mark.parametrize("drops", [True, False], ids=["dropped", "kept"])
@pytest.mark.parametrize("eager", ["main", "side", None])
def test_whichever_stream_is_ahead_the_work_reads_its_own_batch_from_three_blocks(
    eager: str | None, drops: bool
) -> None:
    read, blocks = work_on_all(eager, drops=drops)
    assert read == IN_ORDER
    assert blocks <= 3


@pytest.mark.parametrize(("line", "eager"), [(BEFORE_THE_WORK, "main"), (BEFORE_THE_COPY, "side")])
def test_without_either_wait_the_work_reads_something_else(line: str, eager: str) -> None:
    assert line in SOURCE
    assert str(work_on_all(eager, source=SOURCE.replace(line, "pass"))[0]) != str(IN_ORDER)


class Loader:
    """Short epochs of batches, each of which takes so many seconds by the clock, in turn."""

    num_workers, prefetch_factor = 2, 2

    def __init__(self, take: Callable[[float], None], seconds: Sequence[float]) -> None:
        self.take, self.seconds = take, cycle(seconds)

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        for _ in range(3):
            self.take(next(self.seconds))
            yield [torch.zeros(1), torch.zeros(1)]


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        ([5.0], "1.50 to 1.50 times as long: slower"),
        ([0.3], "1.03 to 1.03 times as long: no slower"),  # too little for a change
        ([0.1] * 40 + [4.0] * 40, "can't tell"),  # at times it waits
    ],
)
def test_the_cells_to_paste_say_whether_a_step_of_10_s_waits_and_where_they_cannot_tell(
    seconds: Sequence[float], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]  # seconds, only where something takes time
    loader = Loader(passed.append, seconds)
    monkeypatch.setattr(torch.utils.data, "DataLoader", lambda *_, **__: loader)
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, batch: passed.append(10.0) or self.weight)
    scope: dict[str, Any] = {}
    for name in PASTED:
        exec(pasted.source("pinned_memory", name), scope)
        scope["perf_counter"] = lambda: sum(passed)
    said = capsys.readouterr().out.strip()
    assert said.startswith("Against a batch that stays, ")
    assert said.endswith(says)
