"""A training step on the bench: the same state before each timing, changes put in force and taken back."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from course_utils.measure.busy import Watch
from course_utils.measure.devices import Device
from course_utils.results import paired
from course_utils.show.progress import progress
from own_program.diagnosis.phases import wrapped
from own_program.diagnosis.state import Found, SavedState
from own_program.diagnosis.step_changes import StepChange, Work

# Steps that are compared, and of a long step.
PARITY_STEPS, OF_LONG = 3, 2
LONG_STEP_S = 0.1
# Short steps are called more often, so that their shortest time tells something.
_ENOUGH_S, _MOST_STEPS = 0.02, 20
# Changes may move the weights a little further or less far, where rounding decides the sign of a tiny gradient.
_MOVES_ALIKE, _NO_WAY = 0.1, 1e-30
# In a short step another program's turn is longer than the step: the shortest of several timings counts.
_SHORT_S, _MOST_TIMINGS = 0.05, 5


@dataclass(frozen=True)
class StepOutcome:
    """What a few steps gave, all from the same state."""

    losses: tuple[float, ...]  # what the backward passes began with; of several numbers the mean
    distance: float  # how far the weights went, all together
    step_s: float  # seconds of a step, of those after the first the shortest
    first_s: float

    def difference(self, other: StepOutcome) -> float:
        """How far the other's losses are from these, relative to them; 0 for the same bits.

        Infinite where the weights have not gone as far.
        """
        if len(other.losses) != len(self.losses):
            return math.inf
        pairs = zip(self.losses, other.losses, strict=True)
        worst = max(abs(a - b) / max(abs(a), 1e-12) if a != b else 0.0 for a, b in pairs)
        far = abs(other.distance - self.distance) > _MOVES_ALIKE * self.distance + _NO_WAY
        return math.inf if far or math.isnan(worst) else worst


@dataclass
class Bench:
    """A step that is called again and again, from the same state."""

    work: Work
    found: Found
    device: Device
    state: SavedState
    count: int = PARITY_STEPS  # of the steps that are compared

    def __post_init__(self) -> None:
        self._on = contextlib.ExitStack()

    def arrange(self, changes: Sequence[StepChange] = ()) -> None:
        """Put the state back as it was, and changes in force."""
        self.close()
        for change in changes:
            if (context := change.on(self.work)) is not None:
                self._on.enter_context(context)

    def close(self) -> None:
        """Take back what is in force, and put the state back."""
        self._on.close()
        self.state.restore()

    def timed(self) -> float:
        """Seconds of a call."""
        self.device.synchronize()
        start = time.perf_counter()
        self.work.call()
        self.device.synchronize()
        return time.perf_counter() - start

    def steps(self, changes: Sequence[StepChange] = ()) -> StepOutcome:
        """A few steps with some changes in force."""
        self.arrange(changes)
        parameters = self.found.parameters
        before = [p.detach().clone() for p in parameters]
        roots: list[torch.Tensor] = []

        def noted(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            begins = tree_leaves((args[:1], kwargs.get("tensors")))
            roots.extend(t.detach().mean() for t in begins if isinstance(t, torch.Tensor))
            return backward(*args, **kwargs)

        with wrapped(torch.autograd, "backward", noted):
            seconds = [self.timed() for _ in range(self.count)]
        moves = [p.detach() - old for p, old in zip(parameters, before, strict=True)]
        distance = math.hypot(*(float(torch.linalg.vector_norm(move, dtype=torch.float64)) for move in moves))
        while sum(seconds) < _ENOUGH_S and len(seconds) < _MOST_STEPS:
            seconds.append(self.timed())
        return StepOutcome(tuple(map(float, roots)), distance, min(seconds[1:]), seconds[0])


@dataclass
class StepRounds:
    """Rounds of one step with different changes in force, and twice without any, in random order.

    A change that is decided leaves the rounds, and its time is left to the others.
    """

    bench: Bench
    several: Sequence[StepChange]
    title: str
    budget_s: float
    most_s: float  # what they may take where that completes the rounds that a verdict needs
    busy: str = ""
    noise: float | None = None
    interrupted: bool = False
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def judged(self) -> Mapping[str, paired.Judgement]:
        """Run the rounds; name of a change to what they say of it. Empty where they were too few."""
        changes = {"": (), **{change.name: (change,) for change in self.several}, "again": ()}
        self.seconds = {name: [] for name in changes}
        known: dict[str, paired.Judgement] = {}
        with Watch() as watch, progress(self.title, self.budget_s) as bar:
            try:
                self._run(changes, known, bar)
            except KeyboardInterrupt:
                self.interrupted = True
            finally:
                self.bench.close()
        self.busy = watch.sentence
        if len(self.seconds["again"]) >= paired.MIN_ROUNDS:
            confidence = paired.look_confidence(len(self.seconds["again"]), last=True)
            self._judge(changes, known, confidence)
        return known

    def _run(self, changes: dict[str, tuple[StepChange, ...]], known: dict[str, paired.Judgement], bar: Any) -> None:
        started, done = time.perf_counter(), 0
        self.bench.arrange()
        times = timings(self.bench.timed())
        while len(changes) > 2 and done < paired.MOST_ROUNDS:
            began, round_s = time.perf_counter(), {}
            for name in random.sample(list(changes), len(changes)):
                self.bench.arrange(changes[name])
                round_s[name] = min(self.bench.timed() for _ in range(times))
            for name, one_s in round_s.items():
                self.seconds[name].append(one_s)
            done += 1
            now = time.perf_counter()
            bar.advance(now - began)
            if done in paired.LOOKS:
                self._judge(changes, known, paired.look_confidence(done, last=False))
                for name in [name for name in known if name in changes and known[name].is_enough(now - started)]:
                    del changes[name]
            soon_s = now - started + max(1, paired.MIN_ROUNDS - done) * (now - began)
            if soon_s > (self.budget_s if done >= paired.MIN_ROUNDS else self.most_s):
                return

    def _judge(self, changes: Mapping[str, Any], known: dict[str, paired.Judgement], confidence: float) -> None:
        base, again = self.seconds[""], self.seconds["again"]
        self.noise = paired.noise_floor(paired.ratio_interval(paired.log_ratios(again, base), confidence))
        for name in changes:
            if name not in ("", "again"):
                known[name] = paired.judge(self.seconds[name], base, again, confidence)


def timings(step_s: float) -> int:
    """How many timings of a step there are in a round, of which the shortest counts."""
    return max(1, min(_MOST_TIMINGS, math.ceil(_SHORT_S / step_s)))
