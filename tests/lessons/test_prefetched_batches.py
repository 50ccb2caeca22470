"""`pinned_memory`'s prefetcher on made-up GPUs: no race, few batches, and the step times of the lesson."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from course_utils.records.lessons import find_lesson
from course_utils.records.notebook_files import read_notebook

CELLS = {cell["id"]: cell["source"] for cell in read_notebook(find_lesson("pinned_memory").path)["cells"]}
SOURCE = CELLS["prefetched"]
BATCHES = 40  # far more than take turns in the GPU's memory
IN_ORDER = [float(n) for n in range(BATCHES)]
BEFORE_THE_COPY = "side.wait_stream(torch.cuda.current_stream(side.device))"
BEFORE_THE_WORK = "torch.cuda.current_stream(side.device).wait_stream(side)"


def prefetcher(source: str, cuda: Any) -> Callable[..., Iterator[Any]]:
    scope: dict[str, Any] = {"torch": SimpleNamespace(cuda=cuda), "chain": chain}
    exec(source, scope)
    return scope["prefetched"]


def _move_parts(batch: tuple[Any, ...]) -> list[Any]:
    return [part.to("cuda", non_blocking=True) for part in batch]


def _move_one(batch: Any) -> Any:
    return batch.to("cuda", non_blocking=True)


class Stream:
    """A queue of work, each piece with the pieces that have to be done before it."""

    device = "cuda"

    def __init__(self) -> None:
        self.queue: list[Callable[[], bool]] = []

    def wait_stream(self, other: Stream) -> None:
        waited_for = list(other.queue)
        self.queue.append(lambda: not any(work in other.queue for work in waited_for))


class OnGpu:
    """Memory on the GPU: an address that may be handed out again once its last user has dropped it."""

    def __init__(self, gpu: Gpu, address: int) -> None:
        self.gpu, self.address, self.made_on, self.recorded = gpu, address, gpu.current, []

    def record_stream(self, stream: Stream) -> None:
        self.recorded.append(stream)

    def __del__(self) -> None:
        # As the allocator: memory is free for the stream that made it, and waits for those that were recorded.
        pending = [(stream, list(stream.queue)) for stream in self.recorded]
        self.gpu.free.append((self.address, self.made_on, pending))


class Gpu:
    """Streams that run only when ``run`` says so, and a memory of numbers."""

    def __init__(self) -> None:
        self.main = self.current = Stream()
        self.side = Stream()
        self.memory: dict[int, float] = {}
        self.free: list[tuple[int, Stream, list[tuple[Stream, list[Any]]]]] = []
        self.read: list[float] = []

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.current, before = stream, self.current
        yield
        self.current = before

    def current_stream(self, _: Any = None) -> Stream:
        return self.current

    def allocate(self) -> OnGpu:
        for place, (address, made_on, pending) in enumerate(self.free):
            if made_on is self.current and not any(work in stream.queue for stream, past in pending for work in past):
                del self.free[place]
                return OnGpu(self, address)
        self.memory[len(self.memory)] = float("nan")
        return OnGpu(self, len(self.memory) - 1)

    def copy(self, value: float) -> OnGpu:
        target = self.allocate()
        address = target.address
        self.current.queue.append(lambda: self.memory.__setitem__(address, value) is None)
        return target

    def work(self, address: int, stream: Stream) -> None:
        stream.queue.append(lambda: self.read.append(self.memory[address]) is None)

    def run(self, *order: Stream) -> None:
        """Runs all that can run, the stream that is named first before the others."""
        while any(stream.queue and stream.queue[0]() and [stream.queue.pop(0)] for stream in order):
            pass


def work_on_all(
    eager: str | None, *, source: str = SOURCE, drops: bool = False, epochs: int = 1, elsewhere: bool = False
) -> tuple[list[float], int]:
    """Work on batches 0, 1, 2, ...; one stream, or None, runs at once, and the others as late as they can.

    Args:
        eager: The stream that runs at once.
        source: The prefetcher.
        drops: The loop drops its batch before it asks for the next one.
        epochs: How often the loop runs, always with the same side stream.
        elsewhere: The work is queued on a third stream, which waits for the main one.

    Returns:
        What the work read, and how many blocks of memory it took.
    """
    gpu, third = Gpu(), Stream()
    host = [SimpleNamespace(to=lambda *_, value=float(n), **__: gpu.copy(value)) for n in range(BATCHES)]
    for _ in range(epochs):
        for batch in prefetcher(source, gpu)([(each,) for each in host], _move_parts, gpu.side):
            if elsewhere:
                third.wait_stream(gpu.main)
            gpu.work(batch[0].address, third if elsewhere else gpu.main)
            if drops:
                del batch
            if eager:
                gpu.run(getattr(gpu, eager))
    gpu.run(gpu.side, gpu.main, third)
    return gpu.read, len(gpu.memory)


def without(line: str, instead: str = "pass") -> str:
    assert line in SOURCE
    return SOURCE.replace(line, instead)


@pytest.mark.parametrize("drops", [True, False], ids=["dropped", "kept"])
@pytest.mark.parametrize("eager", ["main", "side", None])
def test_whichever_stream_is_ahead_the_work_reads_its_own_batch_from_three_blocks(
    eager: str | None, drops: bool
) -> None:
    assert work_on_all(eager, drops=drops) == (IN_ORDER, 2 if drops else 3)


def test_a_second_epoch_takes_no_more_memory() -> None:
    read, blocks = work_on_all(None, epochs=3)
    assert read == IN_ORDER * 3
    assert blocks <= 4  # the loop still holds the last batch when the next epoch begins


@pytest.mark.parametrize(("line", "eager"), [(BEFORE_THE_WORK, "main"), (BEFORE_THE_COPY, "side")])
def test_without_either_wait_the_work_reads_something_else(line: str, eager: str) -> None:
    assert str(work_on_all(eager, source=without(line))[0]) != str(IN_ORDER)


@pytest.mark.parametrize("waits", [True, False])
def test_with_record_stream_a_late_gpu_costs_a_block_for_each_batch(waits: bool) -> None:
    recording = without(
        BEFORE_THE_WORK,
        f"{BEFORE_THE_WORK}; coming and coming[0].record_stream(torch.cuda.current_stream(side.device))",
    )
    source = recording if waits else recording.replace(BEFORE_THE_COPY, "pass")
    assert work_on_all(None, source=source) == (IN_ORDER, BATCHES)


def test_work_on_a_third_stream_needs_more_than_the_prefetcher_does() -> None:
    assert work_on_all("side", elsewhere=True)[0] != IN_ORDER


EXAMPLE = (10, 10, 20)  # ms of staging, transfer and work: the example of the lesson


class Timed:
    """A stream, as the time at which its work ends."""

    device = "cuda"

    def __init__(self, end: float = 0) -> None:
        self.end = end

    def wait_stream(self, other: Timed) -> None:
        self.end = max(self.end, other.end)

    def add(self, since: float, length: float) -> None:
        self.end = max(self.end, since) + length


class Clock:
    """The time of the training thread, and of a GPU with two streams."""

    def __init__(self, staged_by: str, staging: float, transfer: float) -> None:
        self.host, self.staged_by = 0.0, staged_by
        self.staging, self.transfer = staging, transfer
        self.main = self.current = Timed()
        self.side = Timed()

    @contextmanager
    def stream(self, stream: Timed) -> Iterator[None]:
        self.current, before = stream, self.current
        yield
        self.current = before

    def current_stream(self, _: Any = None) -> Timed:
        return self.current

    def loader(self, batches: int) -> Iterator[Any]:
        for number in range(1, batches + 1):
            if self.staged_by == "loader":
                self.host = max(self.host, number * self.staging)
            if self.staged_by == "own thread":
                self.host += self.staging
            yield SimpleNamespace(to=self.copy)

    def copy(self, _: Any, non_blocking: bool = False) -> int:
        if self.staged_by.startswith("driver"):  # waits for the stream, stages, and only then sends
            self.host = max(self.host, self.current.end) + self.staging
        self.current.add(self.host, self.transfer)
        if self.staged_by == "driver, small buffer" or not non_blocking:
            self.host = self.current.end
        return 0


def step_ms(
    staged_by: str, way: str, *, reads: bool, bounded: bool = False, times: tuple[float, float, float] = EXAMPLE
) -> float:
    """What a step takes in the long run.

    Args:
        staged_by: Who stages.
        way: How the batches are copied.
        reads: Each step reads a result, as ``.item()`` does.
        bounded: Each step waits for the one before last.
        times: Of staging, transfer and work.
    """
    staging, transfer, work = times
    ends = []
    for batches in (BATCHES, 2 * BATCHES):
        clock, marks = Clock(staged_by, staging, transfer), []
        moved = {
            "waits": lambda loader: (each.to("cuda") for each in loader),
            "does not wait": lambda loader: (each.to("cuda", non_blocking=True) for each in loader),
            "prefetched": lambda loader, gpu=clock: prefetcher(SOURCE, gpu)(loader, _move_one, gpu.side),
        }
        for _ in moved[way](clock.loader(batches)):
            clock.main.add(clock.host, work)
            marks.append(clock.main.end)
            if reads:
                clock.host = max(clock.host, clock.main.end)
            if bounded and len(marks) > 2:
                clock.host = max(clock.host, marks.pop(0))
        ends.append(max(clock.host, clock.main.end))
    return (ends[1] - ends[0]) / BATCHES


@pytest.mark.parametrize(
    ("staged_by", "way", "free", "read"),
    [
        ("driver", "waits", 40, 40),
        ("own thread", "does not wait", 30, 40),
        ("loader", "waits", 30, 30),
        ("loader", "prefetched", 20, 20),
        # Beside the table: without prefetching ahead, from your own thread, and from pageable memory.
        ("loader", "does not wait", 30, 30),
        ("own thread", "prefetched", 20, 30),
        ("driver", "prefetched", 30, 30),
        ("driver, small buffer", "prefetched", 40, 40),
    ],
)
def test_a_step_takes_what_the_table_says(staged_by: str, way: str, free: float, read: float) -> None:
    assert step_ms(staged_by, way, reads=False) == free
    assert step_ms(staged_by, way, reads=True) == read


@pytest.mark.parametrize("times", [EXAMPLE, (10, 30, 20), (10, 20, 5), (30, 10, 20), (5, 10, 20)])
def test_between_the_rows_a_step_takes_what_the_text_says(times: tuple[float, float, float]) -> None:
    staging, transfer, work = times
    assert step_ms("own thread", "prefetched", reads=False, times=times) == max(times)
    assert step_ms("own thread", "prefetched", reads=True, times=times) == max(transfer, staging + work)
    assert step_ms("driver", "prefetched", reads=False, times=times) == staging + max(transfer, work)
    assert step_ms("loader", "does not wait", reads=False, times=times) == max(transfer + work, staging)


@pytest.mark.parametrize("times", [EXAMPLE, (10, 30, 20), (30, 10, 20)])
@pytest.mark.parametrize("way", ["does not wait", "prefetched"])
@pytest.mark.parametrize("staged_by", ["own thread", "loader"])
def test_waiting_for_the_step_before_last_costs_no_time(
    staged_by: str, way: str, times: tuple[float, float, float]
) -> None:
    free, bounded = (step_ms(staged_by, way, reads=False, bounded=each, times=times) for each in (False, True))
    assert free == bounded


class Sample(dict):  # default_collate keeps the type, which PyTorch's tree_map takes for a leaf
    pass


THEIRS = {
    "pairs": (
        lambda image, label: (image, label),
        "return [part.to(device, non_blocking=True) for part in batch]",
        "inputs, targets = move(batch)",
    ),
    "dictionaries of a type of their own": (
        lambda image, label: Sample(image=image, label=label),
        "return {key: part.to(device, non_blocking=True) for key, part in batch.items()}",
        "inputs, targets = move(batch).values()",
    ),
}


@pytest.mark.parametrize("form", THEIRS)
def test_the_best_case_puts_all_of_a_readers_batch_on_the_device(form: str) -> None:
    """The two cells that a reader pastes, with a loader, a step and a ``move`` of their own."""
    row, moves, takes = THEIRS[form]
    use = CELLS["at-best-used"]
    for ours, theirs in {
        'device = "cuda" if torch.cuda.is_available() else "cpu"': 'device = "meta"',
        "DataLoader(dataset, 16": "DataLoader(rows, 1",
        "return [part.to(device, non_blocking=True) for part in batch]": moves,
        "inputs, targets = move(batch)": takes,
    }.items():
        assert ours in use
        use = use.replace(ours, theirs)
    scope: dict[str, Any] = {"rows": [row(torch.ones(4), torch.tensor(number)) for number in range(200)]}
    exec(CELLS["at-best"], scope)
    exec(use, scope)
    assert min(scope["now"], scope["best"]) > 0
    parts = scope["stays"].values() if isinstance(scope["stays"], dict) else scope["stays"]
    assert [part.device.type for part in parts] == ["meta", "meta"]


def test_the_cells_that_time_a_loop_run_together_where_they_are_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, Any] = {}
    for each in ("at-best", "at-best-used"):
        exec(CELLS[each], scope)
    assert capsys.readouterr().out.count("to gain: ") == 2
    with pytest.raises(ValueError, match="4 steps need 8 batches"):
        scope["ms_a_step"](sum, [[1]] * 7, 4)
