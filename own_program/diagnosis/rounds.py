"""A training step on the bench: the same state before each timing, changes put in force and taken back."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from course_utils.measure.cases import Case, CaseError, RunningCase
from course_utils.measure.devices import Device, Sample
from course_utils.measure.rounds import LONG_CALL_S, Rounds
from course_utils.records import paired
from own_program.diagnosis.phases import wrapped
from own_program.diagnosis.state import Found, Snapshot
from own_program.diagnosis.trials import Trial, Work

PARITY_STEPS = 3
# Changes may move the weights a little further or less far, where rounding decides the sign of a tiny gradient.
_MOVES_ALIKE = 0.1
STEP = "as it is"
_MOST_TIMINGS = 5


@dataclass(frozen=True)
class Steps:
    """What a few steps gave, all from the same state.

    Attributes:
        losses: what the backward passes began with, or what the steps returned; empty where that is no single number.
        moves: how far the weights went, one tensor for each parameter; where there are losses, the distance alone.
        seconds: of each.
    """

    losses: tuple[float, ...]
    moves: tuple[torch.Tensor, ...]
    distance: float
    seconds: tuple[float, ...]

    @property
    def step_s(self) -> float:
        """Seconds of a step, of those after the first the shortest."""
        return min(self.seconds[1:])

    def difference(self, other: Steps) -> float:
        """How far the other is from this one, relative to it, in losses or in the weights' way; 0 for the same bits."""
        if self.losses:
            if len(other.losses) != len(self.losses):
                return math.inf
            pairs = zip(self.losses, other.losses, strict=True)
            worst = max(abs(a - b) / max(abs(a), 1e-12) if a != b else 0.0 for a, b in pairs)
            far = abs(other.distance - self.distance) > _MOVES_ALIKE * self.distance
            return math.inf if far or math.isnan(worst) else worst
        between = _norm([a - b for a, b in zip(self.moves, other.moves, strict=True)])
        return between / self.distance if between else 0.0


@dataclass
class Bench:
    """A step that is called again and again, from the same state."""

    work: Work
    found: Found
    device: Device
    state: Snapshot
    adopted: tuple[Trial, ...] = ()  # these changes are part of the step from now on

    def __post_init__(self) -> None:
        self._on = contextlib.ExitStack()

    def arrange(self, changes: Sequence[Trial]) -> None:
        """Take back what is in force, put the state back, and put other changes in force."""
        self._on.close()
        self.state.restore()
        for change in (*self.adopted, *changes):
            self._on.enter_context(change.on(self.work))

    def close(self) -> None:
        """Take back what is in force."""
        self._on.close()

    def steps(self, changes: Sequence[Trial] = ()) -> Steps:
        """A few steps with some changes in force."""
        self.arrange(changes)
        parameters = self.found.parameters
        before = [p.detach().clone() for p in parameters]
        losses: list[float | None] = []
        seconds, roots = [], []

        def noted(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            begins = tree_leaves((args[:1], kwargs.get("tensors")))
            roots.extend(t.detach().clone() for t in begins if isinstance(t, torch.Tensor) and t.numel() == 1)
            return backward(*args, **kwargs)

        with wrapped(torch.autograd, "backward", noted):
            for _ in range(PARITY_STEPS):
                roots.clear()
                start = time.perf_counter()
                returned = self.work.call()
                self.device.synchronize()
                seconds.append(time.perf_counter() - start)
                # What a step returns may be an accuracy, or nothing.
                losses += [float(root) for root in roots] or [loss_of(returned)]
        moves = [p.detach() - old for p, old in zip(parameters, before, strict=True)]
        known = all(loss is not None for loss in losses)
        return Steps(tuple(losses) if known else (), () if known else tuple(moves), _norm(moves), tuple(seconds))


@dataclass(frozen=True)
class _Arrangement:
    """What a case needs to be in force: it stands where the rounds keep the switches of a case."""

    bench: Bench
    changes: tuple[Trial, ...]

    def restore(self) -> None:
        self.bench.arrange(self.changes)


class StepRounds(Rounds):
    """Rounds of one step with different changes in force; the first case has none.

    A change that is decided leaves the rounds, and its time is left to the others.
    """

    # There are two of them in a diagnosis, and somebody waits for both.
    most_overrun = 1.5

    def __init__(self, bench: Bench, cases: Mapping[str, Sequence[Trial]], title: str, budget_s: float) -> None:
        super().__init__(dict.fromkeys((STEP, *cases), bench.work.call), title, budget_s, "warm", bench.device)
        self._bench = bench
        self._changes = {STEP: (), **cases}
        self._times = 1

    def _built(self, label: str, source: Case, keep_output: bool) -> RunningCase:
        return RunningCase(label, self._bench.work.call, _Arrangement(self._bench, tuple(self._changes[label])))

    def _set_calls(self, order: list[RunningCase], estimates: list[float]) -> float:
        round_s = super()._set_calls(order, estimates)
        self._times = timings(estimates[0])
        for case in order:
            case.preceded = False  # the first timing of several does the same
        return self._times * round_s

    def _timed(self, case: RunningCase, calls: int) -> Sample:
        """The shortest of several timings: in a short step another program's turn is longer than the step."""
        return min((super(StepRounds, self)._timed(case, calls) for _ in range(self._times)), key=lambda s: s.elapsed_s)

    def judged(self) -> dict[str, paired.Judgement]:
        """Run the rounds; label to what they say of it. Empty if they were stopped before the first was complete."""
        judged: dict[str, paired.Judgement] = {}

        def decided(seconds: Sequence[Sequence[float]], confidence: float, spent_s: float) -> bool:
            base, *others, again = seconds
            for case, own in zip(order[1:-1], others, strict=True):
                judgement = paired.judge(own, base, again, confidence)
                if judgement.is_enough(spent_s):
                    judged[case.label] = judgement
            order[1:-1] = [case for case in order[1:-1] if case.label not in judged]
            self._orders.clear()  # they are of as many as there were
            return len(order) == 2

        with self:
            self.first_calls(keep_outputs=False)
            order = [*self.cases, self.add_control()]
            try:
                self.run(order, decided)
            except CaseError as error:
                raise error.__cause__ or error from None
            except KeyboardInterrupt:
                self.interrupted = True
                return {}
            finally:
                self._bench.close()
        base, *others, again = ([sample.elapsed_s for sample in case.samples] for case in order)
        self.noise = paired.noise_floor(paired.ratio_interval(paired.log_ratios(again, base), self.confidence))
        for case, own in zip(order[1:-1], others, strict=True):
            judged[case.label] = paired.judge(own, base, again, self.confidence)
        return judged


def timings(step_s: float) -> int:
    """How many timings of a step there are in a round, of which the shortest counts."""
    return max(1, min(_MOST_TIMINGS, math.ceil(LONG_CALL_S / step_s)))


def loss_of(returned: Any) -> float | None:
    """The loss among what a step returns: the value named so, or the first single number."""
    if isinstance(returned, Mapping) and "loss" in returned:
        returned = returned["loss"]
    for leaf in tree_leaves(returned):
        if isinstance(leaf, torch.Tensor) and leaf.numel() == 1:
            return float(leaf.detach())
        if isinstance(leaf, int | float) and not isinstance(leaf, bool):
            return float(leaf)
    return None


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
