"""Predictions: write down what you expect before you measure, then see how far off you were.

In JupyterLab a prediction is a small form. Everywhere else it is a line of text that ``prediction.answer(3)`` answers.
Answers live in the kernel's memory only. What stands in the form counts when the answer is revealed, locked in or not.

Where nobody has answered, the answer is folded under the question, and the form above it is a page's own: it needs no
kernel. So a cell need not be run a second time, nothing waits for an answer in a run of all cells, and the book can
show the same.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.show.cards import Card
from course_utils.show.page import bare
from course_utils.show.reveal import FAST, LONG, Answer, Unit

if TYPE_CHECKING:
    from course_utils.show.prediction_form import PredictionForm
    from course_utils.show.viewer import StoredView

_asked: dict[tuple[Any, ...], Prediction] = {}
_PAGE = Path(__file__).with_name("prediction.html.j2")


@dataclass
class Prediction:
    """A question, and what somebody answered before the measurement. Made by :func:`predict`."""

    question: str  # what is asked
    unit: str = FAST  # of the number
    low: float | None = None  # the smallest number that makes sense, if any
    high: float | None = None  # the largest, if any
    choices: tuple[str, ...] = ()  # what can be chosen, if no number is asked for
    value: float | str | None = None  # the answer that is locked in; None until there is one
    typed: float | str | None = field(default=None, repr=False)  # what stands in the form, if it is an answer

    def answer(self, value: float | str) -> Prediction:
        """Lock in an answer from code, in place of an earlier one, and return the prediction.

        Raises:
            ValueError: if it is no number, out of range or not among the choices.
        """
        if self.choices:
            if value not in self.choices:
                raise ValueError(f"{value!r} is not among the choices: {', '.join(self.choices)}.")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{value!r} is not a number. Give one, for example 2 or 0.5.")
        elif self.low is not None and value < self.low:
            raise ValueError(f"{value:g} is out of range. Give a number of at least {self.low:g}.")
        elif self.high is not None and value > self.high:
            raise ValueError(f"{value:g} is out of range. Give a number of at most {self.high:g}.")
        self.value = value
        self._show()
        return self

    def _show(self) -> None:
        if "form" in self.__dict__:
            self.form.content = self._content

    @property
    def _locked(self) -> str:
        return "" if self.value is None else f"Locked: you said {Unit(self.unit).guess(self.value)}."

    def reveal(self, actual: Any, recorded: Any = None, *more: str, below: Any = None) -> Card | StoredView:
        """Compare the prediction with the answer, in words and a picture. It is no error if nothing was predicted.

        Args:
            actual: a number, one of the choices, or a case of a comparison.
            recorded: the recorded result that it comes from, if it was not found out here and now.
            *more: what the small print is to tell beside that.
            below: what shows the measurement, such as a result: it stays hidden until somebody has predicted.

        Raises:
            ValueError: if ``actual`` is none of these.

        Example:
            >>> predict("How many times as fast is pinned?").answer(3).reveal(1.5).words
            'You said 3× as fast. It is 1.50× as fast: half what you expected.'
        """
        if getattr(actual, "needs", None) is not None:  # an experiment that nobody has recorded says so itself
            return actual
        if self.value is None and self.typed is not None:
            self.answer(self.typed)
        answer = Answer.of(actual, Unit(self.unit), self.choices)
        card = answer.card(self.value)
        if recorded is not None:
            card = dataclasses.replace(card, **recorded.stamp(*more) | {"title": ""})
        if self.value is None:
            return self._folded(answer, card, below)
        if below is None:
            return card
        from course_utils.show.viewer import StoredView

        return StoredView(f"{card!r}\n\n{below!r}", card.html() + _html(below))

    def _folded(self, answer: Answer, card: Card, below: Any) -> StoredView:
        """The question with a form, and the answer folded below it."""
        import jinja2

        from course_utils.show.viewer import StoredView

        content = json.dumps(self._content | answer.for_script | {"then": ""}, allow_nan=False, ensure_ascii=False)
        page = jinja2.Template(_PAGE.read_text(encoding="utf-8"), trim_blocks=True).render(
            question=self.question, card=card.html(), below=_html(below), content=content.replace("<", "\\u003c")
        )
        words = [repr(each) for each in (card, below) if each is not None]
        return StoredView("\n\n".join(["You have not predicted yet.", *words]), page)

    @property
    def _content(self) -> dict[str, Any]:
        """What the form asks, and what is answered, for its script."""
        below = {FAST: " (below 1: slower)", LONG: " (below 1: faster)"}.get(self.unit, "")
        return {
            "question": self.question,
            "choices": self.choices,
            "unit": self.unit + (below if self.low is None or self.low < 1 else ""),
            "endings": Unit(self.unit).endings,
            "low": self.low,
            "high": self.high,
            "answer": self.typed if self.value is None else self.value,
            "locked": self.value is not None,
            "then": "Now measure it.",
        }

    @functools.cached_property
    def form(self) -> PredictionForm:
        """What JupyterLab shows; see `PredictionForm`."""
        from course_utils.show.prediction_form import PredictionForm

        return PredictionForm(self._content, self._hear)

    def _hear(self, answer: float | str | None, locked: bool) -> None:
        self.typed = answer
        self.value = None  # who types has asked to change it
        if locked:
            self.answer(answer)
        self._show()

    def __repr__(self) -> str:
        how = self._locked or f"Answer with .answer({self.choices[0] if self.choices else 2!r})."
        return f"Prediction: {self.question} {how}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from IPython import get_ipython

        in_notebook = getattr(get_ipython(), "kernel", None) is not None
        if not in_notebook:
            return {"text/plain": repr(self)}
        # The HTML is what is left of a notebook that was saved.
        how = self._locked or "Run this cell (Shift+Enter) to answer."
        words = f"<p><b>{html.escape(self.question)}</b><br>{html.escape(how)}</p>"
        form = self.form._repr_mimebundle_(include=include, exclude=exclude)[0]
        return {**form, "text/html": words, "text/plain": repr(self)}


def _html(shown: Any) -> str:
    """What shows a result in a page that has the style."""
    if shown is None or (markup := getattr(shown, "_repr_html_", lambda: None)()):  # a figure's is None
        return "" if shown is None else bare(markup)
    png = base64.b64encode(shown._repr_png_()).decode()
    return f'<img src="data:image/png;base64,{png}" alt="{html.escape(shown.alt)}">'


def predict(
    question: str,
    unit: str = FAST,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
) -> Prediction:
    """Ask for a prediction. Put the returned value on a cell's last line to show its form.

    Running the cell again keeps the answer; it is forgotten when the kernel ends.

    Args:
        question: what to predict.
        unit: of the number: ``times as fast``, ``times as long``, or any other, such as ``%``.
        low: the smallest number that makes sense, if any.
        high: the largest number that makes sense, if any.
        choices: what to choose from, if the answer is no number. A comparison answers with the faster case's label, or
            with ``faster`` or ``slower``; with ``the same`` where there is no difference.

    Returns:
        The prediction; its ``reveal`` compares it with the answer.

    Example:
        >>> predict("Which is faster?", choices=["pinned", "pageable"]).answer("pageable").reveal("pinned").words
        'You said pageable. It is pinned: not what you expected.'
    """
    asked = Prediction(question, unit, low, high, tuple(choices))
    return _asked.setdefault((question, unit, low, high, asked.choices), asked)
