"""Exercises: a check for each, that runs without a GPU and answers a wrong turn with a hint of its own.

One module for each lesson, ``course_utils/exercises/<slug>.py``, with one check for each exercise. A check is a
function with the decorator :func:`exercise`. It looks at what the learner's answer *does* on cases that the learner
does not see, never at its text::

    @exercise(
        "Double it",
        right="Every number comes back twice as large.",
        hints={
            "squares": "You square the number. Which input tells squaring and doubling apart?",
            "prints": "You print the number. The caller gets nothing.",
            "in_place": "You change the list that was passed in. The caller may still need it.",
        },
    )
    def check_double(answer):
        if ask(answer, 3) == 9:
            return "squares"
        if ask(answer, 3) != 6:
            raise NotRight(f"For 3 you return {ask(answer, 3)}, not 6.")
        return None

The check returns the key of a hint, or None if the answer is right, or raises :class:`NotRight` with a sentence about a
mistake that nobody foresaw. The notebook's cell ends with ``check_double(double)``, which shows a :class:`Feedback`.

The starting cell defines a function that raises ``NotImplementedError`` or returns None, or a name that is None; the
check then says "Not answered yet". Starting cells and solutions use nothing of the notebook but its imports.
Each lesson's ``wrong_answers.py`` holds one wrong answer for each hint; ``tests/lessons/test_exercises.py`` runs
them, the starting cells and the solutions.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["right", "not yet", "not answered"]
_OPENINGS: Mapping[str, str] = {"right": "Right.", "not yet": "Not yet.", "not answered": "Not answered yet."}


class NotRight(Exception):  # noqa: N818 - it reads as what it says about the answer
    """The answer is wrong in a way that no hint was written for. Its message says how, to the learner."""


class NotAnswered(Exception):  # noqa: N818
    """The learner has not begun."""


@dataclass(frozen=True)
class Feedback:
    """What a check says about an answer.

    Attributes:
        outcome: ``right``, ``not yet`` or ``not answered``.
        words: what to think about next, or why it is right.
        hint: the key of the misconception that was recognised, if any.
    """

    outcome: Outcome
    words: str
    hint: str | None = None

    def __repr__(self) -> str:
        return f"{_OPENINGS[self.outcome]} {self.words}"

    def _repr_html_(self) -> str:
        return f"<p><strong>{_OPENINGS[self.outcome]}</strong> {html.escape(self.words)}</p>"


@dataclass(frozen=True)
class Exercise:
    """A check with its name and its hints. Call it with an answer.

    Attributes:
        name: the exercise's name, as its heading in the notebook has it.
        right: what to say about a right answer: why it is right.
        hints: a key for each misconception, and the hint that leads out of it without giving the answer away.
        examine: looks at an answer; returns a key of ``hints``, or None if it is right.
    """

    name: str
    right: str
    hints: Mapping[str, str]
    examine: Callable[[Any], str | None]

    def __call__(self, answer: Any) -> Feedback:
        """Check an answer.

        Args:
            answer: what the exercise asks for, usually a function.

        Returns:
            Feedback, which shows itself. A wrong answer is never an exception.
        """
        if answer is None or answer is ...:
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
                f"The check could not make sense of your answer ({type(error).__name__}: {error}). "
                "Look at what the task says about what comes in and what goes out.",
            )
        if key is None:
            return Feedback("right", self.right)
        return Feedback("not yet", self.hints[key], hint=key)

    def _not_answered(self) -> Feedback:
        return Feedback("not answered", f"Write your answer to “{self.name}” above and run the cell again.")


def exercise(name: str, *, right: str, hints: Mapping[str, str]) -> Callable[[Callable[[Any], str | None]], Exercise]:
    """Make a check out of a function that examines an answer. See the top of this module.

    Args:
        name: the exercise's name, as its heading in the notebook has it.
        right: what to say about a right answer.
        hints: a key for each misconception (three at least), and its hint.
    """

    def decorate(examine: Callable[[Any], str | None]) -> Exercise:
        return Exercise(name, right, hints, examine)

    return decorate


def _unimplemented(error: NotImplementedError) -> NotAnswered | NotRight:
    """The starting cell raises the bare error; one with a message is PyTorch's, about an operation that it lacks."""
    return NotRight(f"Your code raised NotImplementedError: {error}") if error.args else NotAnswered()


def listed(values: Any, at_most: int = 1000) -> list[Any]:
    """Take what a learner returned as a list. Generators are run here, where their errors are the learner's.

    Args:
        values: what the learner returned.
        at_most: more than this is taken for a loop without an end.

    Returns:
        The values.

    Raises:
        NotAnswered: if a generator raises ``NotImplementedError``.
        NotRight: if it is not iterable, has no end, or raises; the message says what.
    """
    try:
        found = list(itertools.islice(values, at_most + 1))
    except NotImplementedError as error:
        raise _unimplemented(error) from None
    except TypeError as error:
        if not isinstance(values, Iterable):
            raise NotRight(f"A list is asked for, and you return {type(values).__name__}.") from None
        raise NotRight(f"Your code raised TypeError: {error}") from error
    except Exception as error:
        raise NotRight(f"Your code raised {type(error).__name__}: {error}") from error
    if len(found) > at_most:
        raise NotRight(f"What you return has more than {at_most} values, or no end.")
    return found


def ask(answer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the learner's function on a hidden case.

    Args:
        answer: the learner's function.
        *args: for it.
        **kwargs: for it.

    Returns:
        What it returns.

    Raises:
        NotAnswered: if it raises ``NotImplementedError`` or returns None or ``...``: the starting cell, untouched.
        NotRight: if it is no function, or raises; the message says what.
    """
    if not callable(answer):
        raise NotRight(f"A function is asked for, and this is {type(answer).__name__}: pass it without calling it.")
    try:
        result = answer(*args, **kwargs)
    except NotImplementedError as error:
        raise _unimplemented(error) from None
    except Exception as error:
        raise NotRight(f"Your code raised {type(error).__name__}: {error}") from error
    if result is None or result is ...:
        raise NotAnswered
    return result
