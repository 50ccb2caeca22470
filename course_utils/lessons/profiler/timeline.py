"""A made-up trace: Python's thread queues kernels, and one stream works through the queue.

Real traces are noisy and long. This one has the rule alone: a call takes the thread's time; a kernel begins when it
has been launched and the kernel before it is done; a wait lasts until the queue is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from course_utils.show.colours import AMBER, BLUE, GREY_DD, ORANGE
from course_utils.show.lanes import Span

CPU, GPU = "Python's thread", "GPU stream 7"
COLOURS: Mapping[str, str] = {"call": AMBER, "wait": ORANGE, "label": GREY_DD, "kernel": BLUE}
LONG_S = 1e-3  # what exercise 3 lists
_LAUNCH_S = 10e-6  # from the call to the kernel's first instruction, about


@dataclass
class Timeline:
    """A program that runs on it, call by call.

    Attributes:
        lanes: what has been recorded, by lane; times are seconds from the start.

    Example:
        >>> timeline = Timeline()
        >>> timeline.launch("aten::mm", 1e-4, kernel_s=1e-3)
        >>> timeline.wait("cudaStreamSynchronize")
        >>> round(1e3 * timeline.lanes[CPU][-1].end_s, 2)
        1.11
    """

    lanes: dict[str, list[Span]] = field(default_factory=lambda: {CPU: [], GPU: []})
    _now_s: float = 0.0
    _idle_from_s: float = 0.0

    def call(self, name: str, seconds: float, what: str = "call") -> None:
        """Keep the thread busy."""
        self.lanes[CPU].append(Span(self._now_s, self._now_s + seconds, what, name))
        self._now_s += seconds

    def launch(self, name: str, seconds: float, kernel_s: float) -> None:
        """Call an operator, which queues a kernel."""
        self.call(name, seconds)
        start_s = max(self._now_s + _LAUNCH_S, self._idle_from_s)
        self._idle_from_s = start_s + kernel_s
        self.lanes[GPU].append(Span(start_s, self._idle_from_s, "kernel", name))

    def wait(self, name: str) -> None:
        """Wait until the stream has done all that is queued."""
        self.call(name, max(0.0, self._idle_from_s - self._now_s), "wait")

    @contextmanager
    def label(self, name: str, what: str = "label") -> Iterator[None]:
        """A span around what is called inside."""
        start_s, place = self._now_s, len(self.lanes[CPU])
        yield
        self.lanes[CPU].insert(place, Span(start_s, self._now_s, what, name))

    @property
    def idle_share(self) -> float:
        """The share of the time from first to last event in which the stream had nothing to do."""
        end_s = max(span.end_s for spans in self.lanes.values() for span in spans)
        return 1 - sum(span.end_s - span.start_s for span in self.lanes[GPU]) / end_s


def host_bound() -> Timeline:
    """Short kernels: the GPU is done with each before Python has launched the next."""
    timeline = Timeline()
    for _ in range(24):
        timeline.launch("op", 250e-6, kernel_s=70e-6)
    return timeline


def device_bound() -> Timeline:
    """Long kernels: Python runs ahead, and waits at the end."""
    timeline = Timeline()
    for _ in range(12):
        timeline.launch("op", 80e-6, kernel_s=480e-6)
    timeline.wait("wait")
    return timeline


def data_bound() -> Timeline:
    """Each batch comes late, and the GPU has nothing to do until it is there."""
    timeline = Timeline()
    for _ in range(2):
        timeline.call("next batch", 2e-3)
        for _ in range(4):
            timeline.launch("op", 60e-6, kernel_s=230e-6)
        timeline.wait("wait")
    return timeline


def sync_bound() -> Timeline:
    """Python reads a number of the GPU now and then: the queue is empty each time."""
    timeline = Timeline()
    for _ in range(4):
        for _ in range(3):
            timeline.launch("op", 140e-6, kernel_s=240e-6)
        timeline.wait(".item()")
        timeline.call("print", 600e-6)
    return timeline


def planted() -> Timeline:
    """The trace of exercise 3: a step in which the GPU idles in three places."""
    timeline = Timeline()
    with timeline.label("ProfilerStep#3"):
        timeline.call("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 9e-3)
        timeline.launch("aten::to", 0.2e-3, kernel_s=0.6e-3)
        with timeline.label("forward"):
            for _ in range(4):
                timeline.launch("aten::linear", 0.15e-3, kernel_s=0.9e-3)
                timeline.launch("aten::scaled_dot_product_attention", 0.2e-3, kernel_s=2.2e-3)
        with timeline.label("aten::item", "call"):
            timeline.wait("cudaStreamSynchronize")
        timeline.call("print", 4.5e-3)
        with timeline.label("backward"):
            for _ in range(8):
                timeline.launch("autograd::engine::evaluate_function", 0.3e-3, kernel_s=1.6e-3)
        timeline.wait("cudaEventSynchronize")
        with timeline.label("clip_gradients"):
            for _ in range(14):
                timeline.launch("aten::linalg_vector_norm", 0.5e-3, kernel_s=0.03e-3)
        with timeline.label("Optimizer.step#AdamW.step"):
            timeline.launch("aten::_fused_adamw_", 0.3e-3, kernel_s=2.5e-3)
    timeline.wait("cudaDeviceSynchronize")
    return timeline


def long_calls() -> str:
    """The calls of :func:`planted` that last longer than a millisecond, one in a line."""
    spans = (span for span in planted().lanes[CPU] if span.end_s - span.start_s > LONG_S)
    return "\n".join(f"{1e3 * span.start_s:5.1f} to {1e3 * span.end_s:5.1f} ms  {span.text}" for span in spans)
