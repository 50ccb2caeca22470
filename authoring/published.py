"""Published rows: what others measured and published, each with its hardware, date, source and catch.

A lesson.yml lists them under ``published``; claims say what a row means for them, and under which condition on its
numbers. A number stands as it is printed in its source, so that anybody can look for it there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from authoring import expressions
from authoring.expressions import EvidenceError, Quantity, in_words

NOT_STATED = "not stated"
# How names of numbers end, and what a number with that ending is in a unit of `TABLE_UNITS`.
_ENDINGS = {
    **{"s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6), "min": ("s", 60.0)},
    **{"kib": ("bytes", 2.0**10), "mib": ("bytes", 2.0**20), "gib": ("bytes", 2.0**30)},
    **{"kb": ("bytes", 1e3), "mb": ("bytes", 1e6), "gb": ("bytes", 1e9)},
    **{"gbs": ("B/s", 1e9), "tflops": ("FLOP/s", 1e12), "x": ("ratio", 1.0), "percent": ("percent", 1e-2)},
}
_DATE = re.compile(r"(?:19|20)\d\d(?:-\d\d(?:-\d\d)?)?")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a row's numbers stand: a file of a repository at one commit, or a page."""

    repository: str = ""
    path: str = ""
    commit: str = ""
    address: str = ""
    title: str = ""

    def __post_init__(self) -> None:
        if self.repository:
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", self.repository) or not self.path:
                raise ValueError("a repository is written owner/name, with the path of the file in it")
            if not re.fullmatch(r"[0-9a-f]{7,40}", self.commit):
                raise ValueError("name the commit at which the file was read: 7 to 40 hexadecimal digits")
        elif not re.fullmatch(r"https?://[^\s/]+/\S*", self.address):
            raise ValueError("name a repository with path and commit, or an address that begins with https://")
        elif not self.title:
            raise ValueError("an address has a title: a link is read before it is followed")

    @property
    def link(self) -> str:
        return self.address or f"https://github.com/{self.repository}/blob/{self.commit}/{self.path}"

    @property
    def who(self) -> str:
        """Whose it is: the repository, or what its title begins with, the author."""
        on_github = re.match(r"https://github\.com/([\w.-]+/[\w.-]+)", self.address)
        return self.repository or (on_github[1] if on_github else self.title.partition(",")[0])

    @property
    def words(self) -> str:
        return self.title or f"{self.repository}, {Path(self.path).name}"


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """A number of a row: one that its source prints, or an expression over such numbers.

    Readers see it under its ``label``; conditions and texts read it by its ``name``, whose ending is its unit. ``low``
    and ``high`` are the ends of an interval.
    """

    value: float | str
    name: str = ""
    label: str = ""
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not (self.name or self.label):
            raise ValueError(f"the number {self.value} has neither a name nor a label")

    @property
    def printed(self) -> float | Quantity:
        unit, factor = _ENDINGS.get(self.name.rpartition("_")[2], ("", 1.0))
        if self.unit or unit:
            return Quantity(self.value * factor, self.unit or unit, self.low, self.high)
        return self.value


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    id: str
    compared: str
    hardware: str = NOT_STATED
    versions: str = NOT_STATED
    date: str
    n: str = NOT_STATED
    uncontrolled: str
    source: Source
    seen: str
    numbers: tuple[PublishedNumber, ...]
    lesson: str = ""

    def __post_init__(self) -> None:
        for name in ("id", "compared", "hardware", "versions", "n", "uncontrolled"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty: say what the source says, or {NOT_STATED!r}")
        if not _DATE.fullmatch(self.date):
            raise ValueError(f"date {self.date!r}: write YYYY-MM-DD, YYYY-MM or YYYY, as a text in quotes")
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", self.seen):
            raise ValueError(f"seen {self.seen!r}: the day on which the source was opened and its numbers compared")
        if not self.numbers:
            raise ValueError("a row without numbers: write them as the source prints them")

    @property
    def device(self) -> str:
        return "hardware not stated" if self.hardware == NOT_STATED else self.hardware

    @cached_property
    def names(self) -> dict[str, Any]:
        return {each.name: each.printed for each in self.numbers if each.name}

    def evaluate(self, expression: str) -> Any:
        """What an expression over the row's numbers gives; an error names the row."""
        try:
            return expressions.evaluate(expression, **self.names).value
        except EvidenceError as error:
            raise EvidenceError(f"{self.lesson}/lesson.yml, published {self.id}: {error}") from error

    def worked_out(self, number: PublishedNumber) -> Any:
        if not isinstance(number.value, str):
            return number.printed
        value = self.evaluate(number.value)
        return Quantity(value, number.unit) if number.unit else value

    def __getitem__(self, name: str) -> Any:
        """The number with a name or a label, as texts ask for it: ``published["row"]["name"]``."""
        for number in self.numbers:
            if name in (number.name, number.label):
                return self.worked_out(number)
        raise KeyError(name)

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        return tuple((each.label, in_words(self.worked_out(each))) for each in self.numbers if each.label)


@dataclass(frozen=True, kw_only=True)
class RowSays:
    """What a row means for a claim, and the condition on its numbers that has to hold for that."""

    row: PublishedRow
    verdict: str  # confirmed, refuted or depends
    condition: str

    @property
    def holds(self) -> bool:
        holds = self.row.evaluate(self.condition)
        if not isinstance(holds, bool):
            raise EvidenceError(f"published {self.row.id}: {self.condition!r} is {holds!r}, and not true or false.")
        return holds


def word_of(says: Sequence[RowSays]) -> str:
    """The verdict that rows give together: `published`, `published otherwise` or `depends (published)`."""
    words = {("confirmed",): "published", ("refuted",): "published otherwise"}
    return words.get(tuple({each.verdict for each in says}), "depends (published)")
