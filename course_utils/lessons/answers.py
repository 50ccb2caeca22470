"""Exercises: a check for each, that runs without a GPU and answers a wrong turn with a hint of its own.

A lesson's ``checks.py`` has one check for each exercise: a function with the decorator :func:`exercise`. It looks at
what the learner's answer *does* on cases that the learner does not see, never at its text::

    @exercise
    def check_double(answer):
        if ask(answer, 3) == 9:
            return "squares"  # the key of a hint in hints.yml; None if the answer is right
        if ask(answer, 3) != 6:
            raise NotRight(f"For 3 you return {ask(answer, 3)}, not 6.")  # a mistake that nobody foresaw
        return None

``hints.yml`` beside it has the words: ``check_double: {name: ..., right: ..., hints: {squares: ...}}``. The notebook's
cell ends with ``check_double(double)``, which shows a :class:`Feedback`. The starting cell defines a function that
raises ``NotImplementedError``, or a name that is None, or it holds broken code to repair. Starting cells and solutions
use nothing of the notebook but its imports. A test tries one wrong answer for each hint; where a check compares with
formulas (:func:`recognise`), they stand in ``WAYS``, and are tried themselves.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from course_utils.show.cards import Card, Toned

Outcome = Literal["right", "not yet", "not answered"]
# The colour is a tone of the cards; mark and words say the same without it.
_OPENINGS: Mapping[str, Toned] = {
    "right": Toned("✓ Right.", "faster"),
    "not yet": Toned("✗ Not yet.", "slower"),
    "not answered": Toned("… Not answered yet.", "unclear"),
}
# Code that is not the learner's: the course, Python itself, and what is installed.
_NOT_THEIRS = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_paths()[each] for each in ("stdlib", "purelib", "platlib")),
)
_MESSAGE_WIDTH = 240  # letters; PyTorch's messages can fill a screen


class NotRight(Exception):  # noqa: N818 - it reads as what it says about the answer
    """The answer is wrong in a way that no hint was written for. Its message says how, to the learner."""


class NothingReturned(NotRight):
    """The learner's function returned None where a value is asked for."""

    def __init__(self) -> None:
        super().__init__("Your function returned None: did you forget `return`?")


class NotAnswered(Exception):  # noqa: N818
    """The learner has not begun."""


@dataclass(frozen=True)
class Feedback:
    """What a check says about an answer; ``hint`` is the key of the misconception that was recognised, if any."""

    outcome: Outcome
    words: str
    hint: str | None = None

    @property
    def _card(self) -> Card:
        return Card([_OPENINGS[self.outcome], f" {self.words}"])

    def __repr__(self) -> str:
        return repr(self._card)

    def _repr_html_(self) -> str:
        return self._card._repr_html_()


@dataclass(frozen=True)
class Exercise:
    """A check with its name and its hints. Call it with an answer.

    Attributes:
        name: as its heading in the notebook has it.
        right: why a right answer is right.
        hints: a key for each misconception, and the hint that leads out of it without giving the answer away.
        examine: looks at an answer; returns a key of ``hints``, or None if it is right.
    """

    name: str
    right: str
    hints: Mapping[str, str]
    examine: Callable[[Any], str | None]

    def __call__(self, answer: Any) -> Feedback:
        """Check an answer, usually a function. A wrong answer is never an exception."""
        if answer is None:
            return self._not_answered("Your answer is None. If a function of yours made it, is its `return` missing? ")
        if answer is ...:
            return self._not_answered()
        try:
            key = self.examine(answer)
        except NotAnswered:
            return self._not_answered()
        except NotRight as problem:
            return Feedback("not yet", str(problem))
        except Exception as error:
            # An answer can be strange in a way that nobody foresaw: a learner never sees the check's own traceback.
            return Feedback(
                "not yet",
                f"The check could not make sense of your answer ({_what_and_where(error)}). "
                "Look at what the task says about what comes in and what goes out.",
            )
        if key is None:
            return Feedback("right", self.right)
        return Feedback("not yet", self.hints[key], hint=key)

    def _not_answered(self, why: str = "") -> Feedback:
        return Feedback("not answered", f"{why}Write your answer to “{self.name}” above and run the cell again.")


@functools.cache
def _words(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def exercise(examine: Callable[[Any], str | None]) -> Exercise:
    """Make a check out of a function that examines an answer, with its words from the lesson's ``hints.yml``."""
    words = _words(Path(sys.modules[examine.__module__].__file__).with_name("hints.yml"))
    return Exercise(**words[examine.__name__], examine=examine)


def ask(answer: Any, *args: Any) -> Any:
    """Call the learner's function on a hidden case; NotRight says if it is none, or raises.

    NotAnswered is raised where it raises ``NotImplementedError`` or returns ``...``: the starting cell, untouched.
    """
    result = effect(answer, *args)
    if result is None:
        raise NothingReturned
    if result is ...:
        raise NotAnswered
    return result


def effect(answer: Any, *args: Any) -> Any:
    """The same for a function that works by its effect: it may return None."""
    if not callable(answer):
        raise NotRight(f"A function is asked for, and this is {type(answer).__name__}: pass it without calling it.")
    try:
        return answer(*args)
    except Exception as error:
        # The starting cell raises the bare error; one with a message is PyTorch's, about an operation that it lacks.
        if isinstance(error, NotImplementedError) and not error.args:
            raise NotAnswered from None
        raise NotRight(f"Your code raised {_what_and_where(error)}") from error


def _what_and_where(error: Exception) -> str:
    """An error of the learner's code, in one sentence with the line: no screen full of frames."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (frame for frame in reversed(frames) if not frame.filename.startswith(("<frozen", *_NOT_THEIRS))), None
    )
    where = f" in line {place.lineno}, `{place.line}`" if place and place.line else ""
    message = textwrap.shorten(str(error).strip().partition("\n")[0], _MESSAGE_WIDTH)
    return f"{type(error).__name__}{where}{': ' if message else ''}{message}"


def listed(values: Any, at_most: int = 1000) -> list[Any]:
    """Take what a learner returned as a list. Generators are run here, where their errors are the learner's."""
    if not isinstance(values, Iterable):
        raise NotRight(f"A list is asked for, and you return {type(values).__name__}.")
    kept = effect(lambda: list(itertools.islice(values, at_most + 1)))
    if len(kept) > at_most:
        raise NotRight(f"What you return has more than {at_most} values, or no end.")
    return kept


def number(value: Any, wanted: str = "A number") -> float:
    """A number of Python, NumPy or torch that a learner returned; NotRight says what was ``wanted`` if it is none."""
    try:
        # float() takes texts and truth values for numbers.
        return float(None if isinstance(value, bool | str | bytes) else value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError):
        raise NotRight(f"{wanted} is asked for, and you return {type(value).__name__}.") from None


def truth(value: Any) -> bool:
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool"):
        return bool(value)
    raise NotRight(f"True or False is asked for, and you return {type(value).__name__}.")


def recognise(
    given: Sequence[float],
    ways: Mapping[str | None, Callable[..., float]],
    cases: Sequence[Sequence[Any]],
    says: Callable[..., str],
) -> str | None:
    """The key of the formula that leads to what was given on all cases; that of the right one is None.

    NotRight is raised where none does. ``says`` makes its words of a case that is wrong: of the case's own values, of
    the one given, and of the right one.
    """
    close = functools.partial(math.isclose, rel_tol=1e-6)
    for key, way in ways.items():
        if all(map(close, given, itertools.starmap(way, cases))):
            return key
    right = itertools.starmap(ways[None], cases)
    case, value, wanted = next(each for each in zip(cases, given, right, strict=True) if not close(*each[1:]))
    raise NotRight(says(*case, value, wanted))
