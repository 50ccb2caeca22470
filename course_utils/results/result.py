"""What all results share: how they show themselves, how they become records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar

from course_utils.results.environment import Environment
from course_utils.results.paired import PRACTICAL, Interval
from course_utils.results.serialization import Serialized
from course_utils.show.cards import Shown
from course_utils.show.formats import is_number

V = TypeVar("V")


@dataclass(frozen=True)
class Fact:
    """One thing that a result says: a value that can be counted and set against another run's, and the words for it."""

    label: str  # what it is about; no two facts of a result share it
    # a number, text or truth value; of a case its ratio to the baseline; None where no one value tells all
    value: float | str | bool | None
    words: str  # the value as text, with its unit and its interval
    # the same for who reads nothing else; the words if empty
    sentence: str = ""
    detail: str = ""  # what is behind it
    row: str = ""  # the row of a table that it is a cell of
    unit: str | None = None  # of a number without an interval: a key of `VALUE_FORMATS`
    verdict: str = ""  # FASTER, SLOWER, SAME or UNCLEAR; empty where nothing is compared
    interval: Interval | None = None  # 99% interval of a ratio or of a median time
    # factor up to which the run's A/A control takes ratios for noise, infinite if it is too short to say; 1 where
    # nothing is compared
    floor: float = 1.0
    practical: float = PRACTICAL  # relative difference below which nobody cares
    points: Mapping[float, float | None] | None = None  # of a curve: x to y

    @property
    def ratio_interval(self) -> Interval | None:
        """The interval of a case's ratio to its baseline; None if there is none."""
        has_one = self.verdict and self.interval and self.interval.bounded and self.interval.low > 0
        return self.interval if has_one else None

    @property
    def number(self) -> float | None:
        """The value, if it is a number."""
        return float(self.value) if is_number(self.value) else None


class Named(dict[str, Any]):
    """Values by name; a name that nothing has is answered with those that there are."""

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"no {name!r} here; there are: {', '.join(self) or 'none'}")


def by_name(named: Mapping[Any, V], name: Any, what: str) -> V:
    """What has a name; one that nothing has is answered with those that there are."""
    if name not in named:
        raise KeyError(f"no {what}; there are: {', '.join(map(str, named))}")
    return named[name]


JUST_NOW = "You, just now"
# What did the work that a result tells of, and the words for it.
WORKED_BY = {
    "gpu": "measured on the GPU",
    "cpu": "measured on the CPU",
    "arithmetic": "worked out",  # formulas, shapes, fake tensors: no clock, no device
    "simulation": "simulated",
}


def checked_worked_by(worked_by: str) -> str:
    """What did the work, if that is a key of `WORKED_BY`; a ValueError otherwise."""
    if worked_by not in WORKED_BY:
        raise ValueError(f"worked_by says what did the work: {', '.join(WORKED_BY)}; got {worked_by!r}")
    return worked_by


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Serialized, Shown):
    """What all results share. A kind of result is a subclass, in a module of its own beside this one.

    A kind has to say what it shows (:meth:`card`) and what can be compared (:meth:`facts`); some draw a figure as well
    (``plot``), with `caption` under it. Beside these fields it has its own, the ``environment`` among them.
    """

    kind: ClassVar[str]

    name: str | None = None  # of its record: ``lesson/experiment``
    parameters: Mapping[str, Any] = field(default_factory=dict)  # problem sizes and settings
    notes: tuple[str, ...] = ()  # what a reader must know, in words
    busy: str = ""  # what other programs did while it was measured, in a sentence; empty if nothing was noticed
    # What did the work: a key of `WORKED_BY`; empty where it stands in what this is a part of. No machine's name stands
    # beside what was worked out or simulated, and beside a CPU's work that of the CPU.
    worked_by: str = ""
    says: str = ""  # the card's sentence, made of the result's numbers by who measured; empty for the kind's own
    # Of this run alone, neither recorded nor compared: ``you`` measured it just now, it is ``recorded``, or not said
    whose: str = field(default="", compare=False)
    # the recorded run of the same experiment, for the grey bars behind a live result
    behind: Result | None = field(default=None, compare=False)
    # of a choice of cases or points (`showing`): all of them, for the folded numbers
    whole: Self | None = field(default=None, compare=False)

    def saying(self, says: Callable[[Self], str]) -> Self:
        """The result with another sentence on its card; if ``says`` fails, it stays as it was, and a note tells why.

        Example:
            >>> from course_utils import tabulate
            >>> table = tabulate([{"dtype": "float32", "size": 4}], units={"size": "bytes"})
            >>> table.saying(lambda t: f"A number takes {t.text('float32', 'size')}.").card().words
            'A number takes 4 B.'
        """
        try:
            words = says(self)
            if not isinstance(words, str) or not words.strip():
                raise TypeError(f"a sentence is needed, not {words!r}")
        except Exception as error:  # whatever the wording does wrong, what was measured stays
            problem = error.args[0] if error.args else ""
            note = f"The sentence that says= asks for could not be made: {type(error).__name__}: {problem}."
            return replace(self, notes=(*self.notes, note))
        return replace(self, says=words)

    def facts(self) -> Iterator[Fact]:
        """Yield what the result says. Baselines are left out: every case is seen against its own."""
        raise NotImplementedError

    @property
    def is_measured(self) -> bool:
        """Whether it says something of a machine: neither worked out nor simulated."""
        return self.worked_by not in ("arithmetic", "simulation")

    @property
    def measured_on(self) -> Environment:
        """The machine to name, if `is_measured`: as its CPU, where that did the work beside a GPU."""
        return self.environment.host if self.worked_by == "cpu" else self.environment

    @property
    def who(self) -> str:
        """What did the work, in few words: what people call the machine, ``worked out`` or ``simulated``."""
        return self.measured_on.title if self.is_measured else WORKED_BY[self.worked_by]

    @property
    def caption(self) -> str:
        """Who, with which software and on which day, in one line for under a figure."""
        return self.measured_on.caption if self.is_measured else f"{self.who} · torch {self.environment.torch}"

    @property
    def where(self) -> str:
        """The caption, and which problem sizes, for under a table."""
        return f"{self.caption} · {self.environment.size} sizes"

    @property
    def head(self) -> str:
        """Who and when, for a card to begin with; empty for what was neither measured just now nor recorded."""
        if not self.whose:
            return ""
        if not self.is_measured:  # it comes out the same on any machine and day, so neither is named
            return self.who.capitalize()
        return self.measured_on.recorded if self.whose == "recorded" else JUST_NOW

    def stamp(self, *more: str, grey: bool = False) -> dict[str, Any]:
        """The fields of its card that tell where it comes from: title, who and when, and the small print with ``more``.

        ``grey`` says that the card draws marks of the recorded run, so that a reader asks whose they are.
        """
        # What the head tells is not told again. A live card may be read on another day, and beside another machine.
        parts = [self.caption if self.head in ("", JUST_NOW) else f"torch {self.environment.torch}", *more]
        if grey and self.behind is not None:
            there = self.behind.measured_on
            sizes = f", {there.size} sizes" if there.size != self.environment.size else ""
            parts.append(f"grey: {there.short_name}, {there.day}{sizes}")
        who_and_when = {"title": self.name or "", "head": self.head, "is_recorded": self.whose == "recorded"}
        return who_and_when | {"provenance": " · ".join(filter(None, parts))}

    def titled(self, words: str) -> str:
        """The words as a title: after the record's name, if there is one."""
        return f"{self.name}: {words}" if self.name else words
