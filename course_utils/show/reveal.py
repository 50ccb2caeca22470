"""What was measured as the answer to a prediction: a card, with and without somebody's guess."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from course_utils.show.cards import Axis, Bar, Card, Row, Toned, amount_axis, plain, speed_axis
from course_utils.show.formats import format_percent, format_ratio

# The two directions of a comparison. A number below 1 is turned around, and takes the other one.
FAST, LONG = "times as fast", "times as long"
_OTHER = {FAST: LONG, LONG: FAST}
_CLOSE = 1.1
_PLAIN = "measured"  # the tone of what is no verdict
# How far off a guess is: factors, and what the measured value is up to each of them, more than guessed or less.
_FACTORS = (1.4, 1.75, *(n + 0.5 for n in range(2, 11)), 100, math.inf)
_MORE = ("a little more than", "one and a half times", "twice", "three times", "four times", "five times", "six times")
_MORE += ("seven times", "eight times", "nine times", "ten times", "more than ten times", "more than a hundred times")
_LESS = ("a little less than", "two thirds of", "half", "a third of", "a quarter of", "a fifth of", "a sixth of")
_LESS += (
    "a seventh of",
    "an eighth of",
    "a ninth of",
    "a tenth of",
    "less than a tenth of",
    "less than a hundredth of",
)


class Unit(NamedTuple):
    """What a predicted number counts."""

    name: str

    @property
    def endings(self) -> list[str]:
        """What follows a number, and what follows one that was turned around."""
        if self.name.startswith("times "):
            return [name.replace("times", "×", 1) for name in (self.name, _OTHER.get(self.name)) if name]
        return [self.name if self.name == "%" else f" {self.name}"]

    def words(self, value: float) -> str:
        """A measured value."""
        return self._turned(value, format_ratio if "×" in self.endings[0] else _short)

    def guess(self, value: float | str) -> str:
        """What somebody said: three digits, and no zeros that nobody typed."""
        return value if isinstance(value, str) else self._turned(value, _short)

    def _turned(self, value: float, digits: Callable[[float], str]) -> str:
        turned = value < 1 and len(self.endings) > 1
        return digits(1 / value if turned else value) + self.endings[turned]

    def bar(self, value: float) -> Bar:
        """A value as a bar: from 1 on an axis of speeds, from 0 on one of amounts."""
        if self.name in _OTHER:
            speed = value if self.name == FAST else 1 / value
            return Bar(min(speed, 1.0), max(speed, 1.0))
        return Bar(0.0, value)

    def axis(self, values: Sequence[float]) -> Axis:
        """The axis for the bars of some values."""
        ends = [end for value in values for end in self.bar(value).values]
        return speed_axis(ends) if self.name in _OTHER else amount_axis(ends, self.words)


@dataclass(frozen=True)
class Answer:
    """What was measured, as the answer to a question.

    Attributes:
        unit: that of the number that was asked for.
        value: the number or the choice that is right; None where the machine cannot tell.
        parts: a sentence without its end, which depends on the guess.
        tone: the verdict's, if there is one: a tone of the cards.
        choices: what could be chosen.
        interval: the value's.
        notes: what else is known.
    """

    unit: Unit
    value: float | str | None
    parts: tuple[str | Toned, ...]
    tone: str = _PLAIN
    choices: tuple[str, ...] = ()
    interval: tuple[float, float] = (math.inf, -math.inf)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, actual: Any, unit: Unit, choices: tuple[str, ...]) -> Answer:
        """From a number, a choice or a case of a comparison; a ValueError if it is none that was asked for."""
        if isinstance(getattr(actual, "verdict", None), str):
            return cls._of_case(actual, unit, choices)
        if choices and actual in choices:
            return cls(unit, actual, ("It is ", Toned(actual, _PLAIN)), choices=choices)
        if choices or isinstance(actual, bool) or not isinstance(actual, int | float) or not math.isfinite(actual):
            wanted = f"one of {', '.join(choices)}" if choices else "a number"
            raise ValueError(f"reveal() needs {wanted} or a case of a comparison, got {actual!r}")
        return cls(unit, actual, _sentence(unit.words(actual), _PLAIN))

    @classmethod
    def _of_case(cls, case: Any, unit: Unit, choices: tuple[str, ...]) -> Answer:
        tone = case.verdict.lower()
        if tone == "unclear" or case.comparison.too_busy:
            words = "".join(map(plain, case.comparison.too_busy)).rstrip(".") or case.words
            verdict, colon, why = words.partition(": ")
            said = Toned(verdict[0].upper() + verdict[1:], "unclear")
            return cls(unit, None, (said, colon + why), "unclear", choices)
        if choices:
            names = {
                "faster": (case.label, tone),
                "slower": (case.comparison.baseline, tone),
                "same": ("the same", tone),
            }
            chosen = [choice for choice in choices if choice in names[tone]]
            if not chosen:
                raise ValueError(
                    f"the answer is {' or '.join(map(repr, names[tone]))}, and the choices are {', '.join(choices)}"
                )
            return cls(unit, chosen[0], ("It is ", Toned(chosen[0], tone)), tone, choices, notes=(f"{case.words}.",))
        if unit.name not in _OTHER:
            raise ValueError(f"a case of a comparison answers in {FAST!r} or {LONG!r}, not in {unit.name!r}")
        is_speed = unit.name == FAST
        value, interval = (case.speedup, case.interval.inverse()) if is_speed else (case.ratio, case.interval)
        within = f"the same (within {format_percent(case.comparison.practical)})"
        words = within if tone == "same" else unit.words(value)
        return cls(unit, value, _sentence(words, tone), tone, interval=(interval.low, interval.high))

    def card(self, guess: float | str | None) -> Card:
        """The answer as a card, beside a guess if there is one."""
        said = [] if guess is None else ["You said ", Toned(self.unit.guess(guess)), ". "]
        end = "." if guess is None else next(end for until, end in self.ends if _is_in(guess, until))
        rows, axis = (), None
        if isinstance(self.value, int | float):
            axis = self.unit.axis([self.value, guess] if guess is not None else self._around())
            mine, bar = ("?", Bar()) if guess is None else (self.unit.guess(guess), self.unit.bar(guess))
            measured = Row("measured", value=self.parts[-1].text, tone=self.tone, bar=self.unit.bar(self.value))
            rows = (Row("you", value=mine, tone="behind", bar=bar), measured)
        return Card([*said, *self.parts, end], rows, axis, notes=self.notes)

    def _around(self) -> list[float]:
        """Values that leave room on the axis for a guess that is not there yet."""
        factor = 5 if self.unit.name in _OTHER else 2
        most = self.value * factor
        if self.unit.name == "%" and self.value <= 100:  # a guess beyond it is rare
            most = min(most, 100)
        return [self.value, most, self.value / factor]

    @property
    def ends(self) -> list[tuple[float | str | None, str]]:
        """How the sentence ends: for each choice, or for guesses up to a number (None: for all others)."""
        if self.value is None:
            return [*((choice, ".") for choice in self.choices), (None, ".")]
        if isinstance(self.value, str):
            return [(each, f": {'as' if each == self.value else 'not what'} you expected.") for each in self.choices]
        return [(until, f"{words}.") for until, words in self._distances()]

    def _distances(self) -> list[tuple[float | None, str]]:
        """How far off guesses are, each with the largest guess that it is said of, from far too low to far too high."""
        value, name = float(self.value), self.unit.name
        if value <= 0:
            return [(None, "")]
        low, high = min(value / _CLOSE, self.interval[0]), max(value * _CLOSE, self.interval[1])
        lower = [min(value / factor, low) for factor in (_CLOSE, *_FACTORS[:-1])]
        higher = [max(value * factor, high) for factor in _FACTORS]
        distances = [(until, f": {more} what you expected") for until, more in zip(lower, _MORE, strict=True)][::-1]
        distances.append((high, ": as you expected"))
        distances += [(until, f": {less} what you expected") for until, less in zip(higher, _LESS, strict=True)]
        if name in _OTHER and not low <= 1 <= high:  # who guessed on the other side of 1 was wrong about the direction
            words = ["slower", "faster"] if (value > 1) == (name == LONG) else ["faster", "slower"]
            other = f": {words[0]}, where you expected {words[1]}"
            if value > 1:
                distances.insert(0, (0.9999, other))
            else:
                distances = [*((min(until, 1.0), words) for until, words in distances), (math.inf, other)]
        # Four digits are enough, and 0.9999 is not 1.
        return [(None if until == math.inf else float(f"{until:.4g}"), words) for until, words in distances]

    @property
    def for_script(self) -> dict[str, Any]:
        """What `prediction.js` needs to put a guess into the card."""
        given: dict[str, Any] = {"ends": self.ends, "bar": None}
        if isinstance(self.value, int | float):
            # Where a guess x lies, in percent of the width: start + slope * x, or slope * log(x).
            card = self.card(None)
            origin, scale = (1.0, math.log) if card.axis.log else (0.0, float)
            slope = (card.percent(card.axis.high) - card.percent(origin)) / scale(card.axis.high)
            slope = -slope if self.unit.name == LONG else slope
            given["bar"] = {"log": card.axis.log, "start": card.percent(origin), "slope": round(slope, 4)}
        return given


def _short(number: float) -> str:
    """Three digits, without the zeros at the end."""
    return f"{float(f'{number:.3g}'):.15g}"


def _sentence(words: str, tone: str) -> tuple[str, Toned]:
    return (f"It {'takes' if words.endswith('as long') else 'is'} ", Toned(words, tone))


def _is_in(guess: float | str, until: float | str | None) -> bool:
    return until is None or guess == until or (not isinstance(until, str) and guess <= until)
