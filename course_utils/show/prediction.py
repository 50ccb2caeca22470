"""Predictions: write down what you expect before you measure, then see how far off you were.

In JupyterLab a prediction is a small form. Everywhere else it is a line of text that ``prediction.answer(3)`` answers.
Answers live in the kernel's memory only.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from course_utils.show.formats import Range, format_interval, format_ratio

if TYPE_CHECKING:
    from ipywidgets import Widget

_CLOSE = 1.1
_TIMES = ("x", "×", "times")
_locked: dict[tuple[Any, ...], Prediction] = {}


def _number_text(value: float, unit: str) -> str:
    number = format_ratio(value) if unit in _TIMES else f"{value:.3g}"
    if float(f"{value:.3g}") == value:  # what somebody typed, or an exact count: no zeros added
        number = f"{value:g}"
    return f"{number}x" if unit in _TIMES else f"{number} {unit}".strip()


def _parse(text: str, unit: str) -> float:
    """Read what a person typed: ``3``, ``3x``, ``2,5``, ``12 GB/s``.

    Raises:
        ValueError: with a sentence that says what to type.
    """
    cleaned = text.strip()
    for suffix in (unit, *_TIMES):
        if suffix and cleaned.lower().endswith(suffix.lower()):
            cleaned = cleaned[: -len(suffix)].strip()
            break
    if not cleaned:
        raise ValueError("Type a number first, for example 2.")
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+", cleaned):
        raise ValueError(
            f"Type {cleaned.replace(',', '')} without a comma, or {cleaned.replace(',', '.')} with a point."
        )
    if re.fullmatch(r"[+-]?\d*,\d+", cleaned):
        cleaned = cleaned.replace(",", ".")
    try:
        value = float(cleaned)
    except ValueError:
        raise ValueError(f"{text.strip()!r} is not a number. Type digits, for example 2 or 0.5.") from None
    if not math.isfinite(value):
        raise ValueError("Type a finite number, for example 2 or 0.5.")
    return value


@dataclass(frozen=True)
class Reveal:
    """A prediction beside the answer, in words and as a small picture.

    Attributes:
        words: the comparison in sentences.
        predicted: the number that was predicted; None if there was none or if it was a choice.
        measured: the number that was measured; None for a choice.
        interval: interval of the measured number, if known.
        unit: of both numbers.
    """

    words: str
    predicted: float | None = None
    measured: float | None = None
    interval: Range | None = None
    unit: str = ""

    def __repr__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        sentences = f"<p>{html.escape(self.words)}</p>"
        return sentences if self.measured is None else f"{sentences}\n{_number_line(self)}"


class Prediction:
    """A question, and what somebody answered before the measurement. Made by :func:`predict`."""

    def __init__(
        self, question: str, unit: str, low: float | None, high: float | None, choices: Sequence[str] | None
    ) -> None:
        self.question = question
        self.unit = unit
        self.low = low
        self.high = high
        self.choices = tuple(choices) if choices is not None else None
        self._answer: float | str | None = None

    @property
    def answered(self) -> bool:
        """Whether an answer is locked in."""
        return self._answer is not None

    @property
    def value(self) -> float | str | None:
        """The locked answer: a number, a choice, or None."""
        return self._answer

    @property
    def _key(self) -> tuple[Any, ...]:
        return (self.question, self.unit, self.low, self.high, self.choices)

    def _checked(self, value: Any) -> float | str:
        """The answer in its proper type, or a ValueError with a sentence for the person who gave it."""
        if self.choices is not None:
            if value is None:
                raise ValueError("Choose one of the answers first.")
            if value not in self.choices:
                raise ValueError(f"{value!r} is not one of the answers. Choose one of: {', '.join(self.choices)}.")
            return value
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"{value!r} is not a number. Type digits, for example 2 or 0.5.")
        number = _parse(str(value), self.unit)
        if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
            raise ValueError(f"{_number_text(number, self.unit)} is out of range. {self._range_words}")
        return number

    @property
    def _range_words(self) -> str:
        if self.low is not None and self.high is not None:
            return f"Give a number from {self.low:g} to {self.high:g}."
        if self.low is not None:
            return f"Give a number of at least {self.low:g}."
        return f"Give a number of at most {self.high:g}." if self.high is not None else "Give a number."

    def answer(self, value: float | str) -> Prediction:
        """Lock in an answer from code.

        Args:
            value: a number, or one of the choices.

        Returns:
            The prediction itself.

        Raises:
            ValueError: if the answer is no number, out of range or not a choice, or if another one is locked already.
        """
        checked = self._checked(value)
        if self.answered and checked != self._answer:
            raise ValueError(f"{self._locked_words} Restart the kernel to answer afresh.")
        self._answer = checked
        _locked[self._key] = self
        return self

    @property
    def _answer_words(self) -> str:
        return self._answer if isinstance(self._answer, str) else _number_text(self._answer or 0.0, self.unit)

    @property
    def _locked_words(self) -> str:
        return f"Locked: you said {self._answer_words}."

    def reveal(self, actual: Any, use: str = "speedup") -> Reveal:
        """Compare the prediction with the answer. Never an error because nothing was predicted.

        Args:
            actual: a number, one of the choices, or a case of a comparison.
            use: which number of a case is meant: ``speedup`` (2 is twice as fast), ``ratio`` (2 takes twice as long) or
                ``median_s``.

        Returns:
            Words and a picture; it shows itself.

        Raises:
            ValueError: if ``actual`` does not answer the question.

        Example:
            >>> predict("How many times faster?").reveal(2.0)
            You made no prediction. The answer on this machine: 2x.
        """
        case = actual if hasattr(actual, "verdict") else None
        if self.choices is not None:
            return self._reveal_choice(actual, case)
        interval = None
        if case is not None:
            measured = float(getattr(case, use))
            shown = {"speedup": case.interval.inverse(), "ratio": case.interval}.get(use, case.measurement.interval_s)
            interval = shown if shown.bounded else None
        elif isinstance(actual, int | float) and not isinstance(actual, bool) and math.isfinite(actual):
            measured = float(actual)
        else:
            raise ValueError(f"reveal() needs a number or a case of a comparison, got {actual!r}")
        found = _number_text(measured, self.unit)
        if interval is not None and self.unit in _TIMES:
            found += f" (95% interval {format_interval(interval)})"
        elif interval is not None:
            found += f" (95% interval {interval.low:.3g} to {interval.high:.3g})"
        if not isinstance(self._answer, int | float):
            words = f"You made no prediction. The answer on this machine: {found}."
            return Reveal(words + self._verdict_words(case), None, measured, interval, self.unit)
        words = f"You said {self._answer_words}; measured {found}. {_distance(self._answer, measured, interval)}"
        return Reveal(words + self._verdict_words(case), self._answer, measured, interval, self.unit)

    @staticmethod
    def _verdict_words(case: Any) -> str:
        if case is None or case.is_baseline:
            return ""
        verdict = case.words if case.verdict == "UNCLEAR" else case.verdict
        return f" Verdict on {case.label}: {verdict}."

    def _reveal_choice(self, actual: Any, case: Any) -> Reveal:
        found = actual
        if case is not None:
            found = next((c for c in self.choices or () if c.upper() == case.verdict), None)
            if found is None and case.verdict == "UNCLEAR":
                words = f"You said {self._answer_words}." if self.answered else "You made no prediction."
                return Reveal(f"{words} This machine gave no clear answer.{self._verdict_words(case)}")
        if found not in (self.choices or ()):
            raise ValueError(f"{actual!r} is not one of the answers: {', '.join(self.choices or ())}")
        if not self.answered:
            words = f"You made no prediction. The answer on this machine: {found}."
        elif found == self._answer:
            words = f"You said {found}, and that is what was measured."
        else:
            words = f"You said {self._answer}; measured: {found}."
        return Reveal(words + self._verdict_words(case))

    def __repr__(self) -> str:
        if self.answered:
            return f"Prediction: {self.question} {self._locked_words}"
        example = repr(self.choices[0]) if self.choices else "2"
        options = f" ({' / '.join(self.choices)})" if self.choices else ""
        return f"Prediction: {self.question}{options} Answer with .answer({example})."

    def _repr_html_(self) -> str:
        answer = f"<p>{html.escape(self._locked_words)}</p>" if self.answered else ""
        options = f"<p>{html.escape(' / '.join(self.choices))}</p>" if self.choices and not self.answered else ""
        return f"<p><strong>Your prediction:</strong> {html.escape(self.question)}</p>{options}{answer}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {"text/plain": repr(self), "text/html": self._repr_html_()}
        if _in_kernel():
            widget = self.widget()
            bundle.update(widget._repr_mimebundle_(include=include, exclude=exclude))
            bundle["text/plain"] = repr(self)
        return bundle

    def widget(self) -> Widget:
        """The form: question, input and a button that locks the answer in.

        Returns:
            A fresh ipywidgets box; all forms of one prediction share its answer.
        """
        import ipywidgets

        question = ipywidgets.HTML(f"<strong>{html.escape(self.question)}</strong>")
        message = ipywidgets.HTML()
        button = ipywidgets.Button(
            description="Lock in my answer", button_style="primary", layout=ipywidgets.Layout(width="auto")
        )
        entry: Any
        if self.choices is not None:
            entry = ipywidgets.RadioButtons(
                options=self.choices, index=None, layout=ipywidgets.Layout(width="max-content", max_width="100%")
            )
            row: list[Any] = [entry]
        else:
            entry = ipywidgets.Text(
                placeholder="a number, such as 2", layout=ipywidgets.Layout(width="12em"), continuous_update=True
            )
            entry.tooltip = self.question
            row = [entry, ipywidgets.Label({"x": "times", "×": "times"}.get(self.unit, self.unit))]
        box = ipywidgets.VBox(
            [
                question,
                ipywidgets.HBox(row, layout=ipywidgets.Layout(flex_flow="row wrap")),
                ipywidgets.HBox([button, message], layout=ipywidgets.Layout(flex_flow="row wrap")),
            ],
            layout=ipywidgets.Layout(padding="0.5em 0", max_width="100%"),
        )
        box.add_class("course-predict")

        def show_locked() -> None:
            entry.disabled = True
            button.disabled = True
            button.description = "Locked"
            button.icon = "lock"
            message.value = html.escape(f"{self._locked_words} Now measure it.")

        def lock(_: Any) -> None:
            try:
                self.answer(entry.value)
            except ValueError as error:
                message.value = html.escape(str(error))
                if self.answered:
                    entry.disabled = button.disabled = True
            else:
                show_locked()

        button.on_click(lock)
        if self.answered:
            entry.value = self._answer if self.choices is not None else f"{self._answer:g}"
            show_locked()
        return box


def _in_kernel() -> bool:
    """Whether a notebook's kernel runs this, so that a form can be shown."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    shell = get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def _distance(predicted: float, measured: float, interval: Range | None) -> str:
    """How far off a prediction was, in a sentence."""
    if interval is not None and interval.low <= predicted <= interval.high:
        return "Right: it lies inside the interval."
    side = "too high" if predicted > measured else "too low"
    if predicted == measured:
        return "Exactly right."
    if predicted > 0 and measured > 0:
        factor = max(predicted / measured, measured / predicted)
        if factor <= _CLOSE:
            return f"Close: {100 * (factor - 1):.0f}% {side}." if factor >= 1.005 else "Close: less than 1% off."
        if factor < 2:
            return f"Your prediction was {100 * abs(predicted / measured - 1):.0f}% {side}."
        return f"Your prediction was {side} by a factor of {factor:.2g}."
    return f"Your prediction was {side} by {abs(predicted - measured):.3g}."


def _number_line(reveal: Reveal) -> str:
    """A number line with prediction and measurement, as inline SVG on a white card (fine on a dark page)."""
    measured, predicted, interval = reveal.measured, reveal.predicted, reveal.interval
    assert measured is not None
    values = [v for v in (measured, predicted) if v is not None]
    if interval is not None:
        values += [interval.low, interval.high]
    times = reveal.unit in _TIMES
    if times:
        values.append(1.0)
    log = min(values) > 0 and (times or max(values) > 4 * min(values))
    transform = math.log if log else float
    low, high = transform(min(values)), transform(max(values))
    pad = 0.12 * (high - low) or (0.3 if log else 0.3 * abs(low) or 1.0)
    low, high = low - pad, high + pad
    left, width = 20, 480

    def x(value: float) -> float:
        return round(left + width * (transform(value) - low) / (high - low), 1)

    def label(value: float, y: int, text: str, colour: str) -> str:
        at = x(value)
        anchor = "start" if at < 130 else "end" if at > 390 else "middle"
        return f'<text x="{at}" y="{y}" text-anchor="{anchor}" fill="{colour}">{html.escape(text)}</text>'

    parts = [f'<line x1="{left}" y1="60" x2="{left + width}" y2="60" stroke="#777" />']
    if times:
        parts += [
            f'<line x1="{x(1)}" y1="50" x2="{x(1)}" y2="70" stroke="#777" />',
            label(1, 118, "1x: no difference", "#555"),
            f'<line x1="{x(1)}" y1="70" x2="{x(1)}" y2="106" stroke="#bbb" stroke-dasharray="2 3" />',
        ]
    if interval is not None:
        parts.append(
            f'<line x1="{x(interval.low)}" y1="60" x2="{x(interval.high)}" y2="60" stroke="#0072B2" stroke-width="6" />'
        )
    parts.append(f'<circle cx="{x(measured)}" cy="60" r="6" fill="#0072B2" />')
    parts.append(label(measured, 92, f"measured {_number_text(measured, reveal.unit)}", "#005a8c"))
    if predicted is not None:
        at = x(predicted)
        parts.append(f'<path d="M{at} 53 l-7 -12 h14 z" fill="#D55E00" />')
        parts.append(label(predicted, 32, f"you said {_number_text(predicted, reveal.unit)}", "#a84300"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 130" width="520" '
        f'style="max-width:100%;height:auto" role="img" '
        f'aria-label="{html.escape(reveal.words)}" font-family="sans-serif" font-size="15">'
        f'<rect width="520" height="130" fill="#fff" />{"".join(parts)}</svg>'
    )


def predict(
    question: str,
    unit: str = "x",
    low: float | None = None,
    high: float | None = None,
    kind: Literal["number", "choice"] = "number",
    choices: Sequence[str] | None = None,
) -> Prediction:
    """Ask for a prediction. Put the returned value on a cell's last line to show its form.

    Running the cell again keeps an answer that is locked; it is forgotten when the kernel ends.

    Args:
        question: what to predict.
        unit: of the number; ``x`` means "times": as fast or as long, as the question says.
        low: the smallest number that makes sense, if any.
        high: the largest number that makes sense, if any.
        kind: ``number``, or ``choice`` (the same as giving ``choices``).
        choices: the possible answers of a choice.

    Returns:
        The prediction; ``.reveal(actual)`` compares it with the answer.

    Raises:
        ValueError: if the question is empty, the range is, or a choice has fewer than two answers.

    Example:
        >>> predict("How many times faster is pinned?").answer("3x").reveal(1.5)
        You said 3x; measured 1.5x. Your prediction was too high by a factor of 2.
    """
    if not question.strip():
        raise ValueError("predict() needs a question")
    if kind not in ("number", "choice"):
        raise ValueError(f"kind must be 'number' or 'choice', got {kind!r}")
    if (kind == "choice" or choices is not None) and len(set(choices or ())) < 2:
        raise ValueError("a choice needs at least two different answers: choices=['yes', 'no']")
    if low is not None and high is not None and low >= high:
        raise ValueError(f"low must be below high, got low={low:g} and high={high:g}")
    prediction = Prediction(question, unit, low, high, choices)
    return _locked.get(prediction._key, prediction)
