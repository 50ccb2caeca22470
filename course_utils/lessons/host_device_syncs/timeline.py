"""A training loop on a GPU made of arithmetic: what Python and the GPU do when, and when Python waits."""

from __future__ import annotations

from dataclasses import dataclass

from course_utils.show.timeline import Span

PREPARES, QUEUES, WAITS, KERNELS = "prepares the batch", "queues the step", "waits in .item()", "works on the step"


@dataclass(frozen=True)
class Timeline:
    """Who did what when."""

    python: tuple[Span, ...]
    gpu: tuple[Span, ...]
    steps: int

    @property
    def step_s(self) -> float:
        """Seconds a step, from the first batch until Python has the last value."""
        return max(self.python[-1].end_s, self.gpu[-1].end_s) / self.steps


def simulate_loop(
    steps: int,
    prepare_s: float,
    gpu_s: float,
    read_every: int,
    *,
    kernels: int = 1,
    launch_s: float = 0.0,
    latency_s: float = 0.0,
    read_s: float = 0.0,
) -> Timeline:
    """Work out when Python and the GPU are busy in a loop that reads a value every so many steps, and at its end.

    Assumed: one stream; the GPU works through its queue in order and never slows Python down; the queue is never full;
    a read waits for all that is queued; kernels of a step are equally long.

    Args:
        steps: of the loop.
        prepare_s: seconds that Python needs for a batch before it queues the first kernel of a step.
        gpu_s: seconds that the GPU works on a step.
        read_every: Python reads a value after each of so many steps.
        kernels: of a step.
        launch_s: seconds that Python needs to queue one kernel.
        latency_s: seconds from there until the GPU can begin with it.
        read_s: what a read costs Python after all queued work is done.

    Example:
        >>> waits, runs_ahead = (simulate_loop(100, 1e-3, 4e-3, read_every) for read_every in (1, 100))
        >>> round(waits.step_s * 1e3, 2), round(runs_ahead.step_s * 1e3, 2)
        (5.0, 4.01)
    """
    if min(steps, read_every, kernels) < 1:
        raise ValueError(f"steps, read_every and kernels are at least 1: {steps}, {read_every}, {kernels}")
    python: list[Span] = []
    gpu: list[Span] = []
    now_s = free_s = 0.0
    for step in range(1, steps + 1):
        python.append(Span(now_s, now_s + prepare_s, PREPARES, str(step)))
        now_s += prepare_s
        queued_s = now_s
        for _ in range(kernels):
            now_s += launch_s
            begin_s = max(free_s, now_s + latency_s)
            free_s = begin_s + gpu_s / kernels
            gpu.append(Span(begin_s, free_s, KERNELS, str(step)))
        python.append(Span(queued_s, now_s, QUEUES))
        if step % read_every == 0 or step == steps:
            begun_s, now_s = now_s, max(now_s, free_s) + read_s
            python.append(Span(begun_s, now_s, WAITS))
    return Timeline(tuple(python), tuple(gpu), steps)
