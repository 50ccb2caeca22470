"""What a diagnosis says: a sentence, a plan, where a step's time goes, and what it does not know."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from course_utils import lesson_order
from course_utils.results.environment import Environment
from course_utils.results.paired import Interval, Verdict
from course_utils.results.result import JUST_NOW
from course_utils.show.advice import Advice
from course_utils.show.cards import Axis, Bar, Card, Row, Shown, Toned
from course_utils.show.formats import format_noise, format_percent, format_seconds, listed
from own_program.diagnosis.phases import PHASES
from own_program.diagnosis.state import Found

_MOST_ADVICE = 5
_SMALL = 0.005
# Where a change that is too close to tell may well save so much, nobody can say that nothing stands out.
_MAY_SAVE = 1.1
NOT_COMPILED = "torch.compile was not tried"
# Verdicts of changes that were not timed.
CHANGES_RESULTS, IMPOSSIBLE, NO_TIME = "CHANGES THE RESULTS", "IMPOSSIBLE", "NO TIME"
_NOTED = {
    Verdict.SAME: "Tried and of no use here",
    Verdict.SLOWER: "Tried, and slower",
    Verdict.UNCLEAR: "Tried, and too close to tell (a larger budget_s tells more)",
    IMPOSSIBLE: "Tried, and this step cannot do it",
    NO_TIME: "Not timed for lack of time (pass a larger budget_s)",
    CHANGES_RESULTS: "Not advised, since what comes out would change by more than tolerance",
}


@dataclass
class Tried:
    """A change that was tried, as far as it went."""

    name: str
    verdict: str = ""  # FASTER, SLOWER, SAME, UNCLEAR, or one of those above
    difference: float | None = None  # of its losses from the step's own, relative to them
    ratio: float | None = None  # its time over that of the step as it is, in rounds
    interval: Interval | None = None  # 99%, of that ratio
    step_s: float | None = None  # seconds of one of the first few steps with it

    def may_save(self) -> bool:
        """Whether it is too close to tell, and may well save something."""
        return self.verdict == Verdict.UNCLEAR and self.interval.low * _MAY_SAVE < 1


@dataclass(repr=False)
class Diagnosis(Shown):
    """What :func:`diagnose` found out about a step. It shows itself as a card."""

    environment: Environment
    found: Found
    budget_s: float
    step_s: float | None = None  # seconds of a step, waiting for data included: the median
    interval: Interval | None = None
    phases: dict[str, float] = field(default_factory=dict)  # phase to its share of a step
    tried: list[Tried] = field(default_factory=list)
    plan: list[Advice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    busy: str = ""
    noise: float | None = None
    interrupted: bool = False

    def card(self) -> Card:
        """What a step takes, what to change, and where its time goes."""
        plan = sorted(self.plan, key=lambda advice: -(advice.saves or 0.0))
        noise = f"intervals: 99%, {format_noise(self.noise)}" if self.noise is not None else ""
        stopped = "Stopped early: this is what was known so far." if self.interrupted else ""
        short = ""
        if any(tried.verdict == NO_TIME for tried in self.tried):
            short = f"{self.budget_s:g} s were too short to tell what all changes do: {self._longer()}."
        return Card(
            self._sentence(),
            tuple(self._rows()),
            Axis(0.0, 1.0, ((0.0, "0"), (1.0, format_seconds(self.step_s)))),
            ("", "of a step"),
            plan=tuple(plan[:_MOST_ADVICE]),
            warning=" ".join(filter(None, (stopped, short, self.busy))),
            notes=tuple(self._notes()),
            provenance=" · ".join(filter(None, (self.environment.caption, noise))),
            head=JUST_NOW,
        )

    def _sentence(self) -> list[str | Toned]:
        ends = ""
        if self.interval is not None and self.interval.bounded:
            ends = f" ({format_seconds(self.interval.low)} to {format_seconds(self.interval.high)})"
        said: list[str | Toned] = ["A step takes ", Toned(format_seconds(self.step_s)), f"{ends}. "]
        tried = [advice for advice in self.plan if advice.known == "tried"]
        if tried:
            best = max(tried, key=lambda advice: advice.saves)
            share, low, high = map(format_percent, (best.saves, best.low, best.high))
            less = f"{share} ({low.rstrip('%')} to {high}) shorter"
            said += ["Tried: ", Toned(best.change), ". That makes it ", Toned(less, "faster"), ". "]
        others = [advice for advice in self.plan if advice.known != "tried"]
        if others:
            most = max(others, key=lambda advice: advice.saves or 0.0)
            said.append(f"{most.change[0].upper()}{most.change[1:]}")
            saves = most.saving.removesuffix(f" of {most.of}")
            said += [": that saves ", Toned(saves), " of it."] if saves else ["."]
        return said if self.plan else [*said, self._no_plan()]

    def _longer(self) -> str:
        return f"pass budget_s={math.ceil(2 * self.budget_s)}"

    def _no_plan(self) -> str:
        most = max(self.phases, key=self.phases.__getitem__, default="")
        largest = f" The largest part is {most} ({format_percent(self.phases[most])})." if most else ""
        unknown = f"What could make it shorter is not known yet.{largest}"
        if self.interrupted:
            return f"{unknown} Let diagnose() run to its end."
        if any(tried.verdict == NO_TIME for tried in self.tried):
            return f"{unknown} {self._longer().capitalize()}."
        if unclear := [tried.name for tried in self.tried if tried.may_save()]:
            quiet = "Close other programs, or p" if self.busy else "P"
            return f"Too close to tell, of what was tried: {listed(unclear)}.{largest} {quiet}ass a larger budget_s."
        names = [tried.name for tried in self.tried]
        changes = f" Tried, and not clearly shorter: {listed(names)}." if names else " No change was tried."
        compiled = f" {NOT_COMPILED}." * any(note.startswith(NOT_COMPILED) for note in self.notes)
        trace = f" A trace tells what is inside: lesson {lesson_order.number('profiler'):02d}."
        return f"Nothing stands out.{changes}{compiled}{largest}{trace}"

    def _rows(self) -> Iterator[Row]:
        for phase in PHASES:
            share = self.phases.get(phase, 0.0)
            if share >= _SMALL:
                seconds = format_seconds(share * self.step_s)
                yield Row(phase, format_percent(share), seconds, bar=Bar(0.0, share))

    def _notes(self) -> Iterator[str]:
        yield from self.notes
        for verdict, words in _NOTED.items():
            if names := [tried.name for tried in self.tried if tried.verdict == verdict]:
                yield f"{words}: {listed(names)}."
        yield f"Worked on: {listed([*self.found.models, *self.found.optimizers])}. All of it is as it was before."
