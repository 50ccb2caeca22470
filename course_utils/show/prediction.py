"""Predictions: write down what you expect before you measure, then see how far off you were.

In JupyterLab a prediction is a small form. Everywhere else it is a line of text that ``prediction.answer(3)`` answers.
Answers live in the kernel's memory only.
"""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from course_utils.show.formats import Range, format_interval, format_ratio

if TYPE_CHECKING:
    from ipywidgets import Widget

    from course_utils.show.viewer import StoredView

_CLOSE = 1.1
_TIMES = ("x", "×", "times")
_locked: dict[tuple[Any, ...], Prediction] = {}


def _number_text(value: float, unit: str) -> str:
    number = format_ratio(value) if unit in _TIMES else f"{value:.3g}"
    if float(f"{value:.3g}") == value:  # what somebody typed, or an exact count: no zeros added
        number = f"{value:g}"
    return f"{number}x" if unit in _TIMES else f"{number} {unit}".strip()


def _parse(text: str, unit: str) -> float:
    """Reads ``3``, ``3x``, ``2,5`` or ``12 GB/s``; a ValueError says what to type instead."""
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


@dataclass
class Prediction:
    """A question, and what somebody answered before the measurement. Made by :func:`predict`."""

    question: str  # what is asked
    unit: str = "x"  # of the number
    low: float | None = None  # the smallest number that makes sense, if any
    high: float | None = None  # the largest, if any
    value: float | None = None  # the answer that is locked in; None until there is one

    def _checked(self, value: Any) -> float:
        """The answer as a number, or a ValueError with a sentence for the person who gave it."""
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"{value!r} is not a number. Type digits, for example 2 or 0.5.")
        number = _parse(str(value), self.unit)
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        if not low <= number <= high:
            limits = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            limits = f"of at most {high:g}" if low == -math.inf else limits
            raise ValueError(f"{_number_text(number, self.unit)} is out of range. Give a number {limits}.")
        return number

    def answer(self, value: float | str) -> Prediction:
        """Lock in an answer from code, and return the prediction.

        Raises:
            ValueError: if the answer is no number or out of range, or if another one is locked already.
        """
        number = self._checked(value)
        if self.value is not None and number != self.value:
            raise ValueError(f"{self._locked_words} Restart the kernel to answer afresh.")
        self.value = number
        _locked[(self.question, self.unit, self.low, self.high)] = self
        return self

    @property
    def _locked_words(self) -> str:
        return f"Locked: you said {_number_text(self.value or 0.0, self.unit)}."

    def reveal(self, actual: Any, use: Literal["speedup", "ratio"] = "speedup") -> StoredView:
        """Compare the prediction with the answer, in words and a picture. It is no error if nothing was predicted.

        Args:
            actual: a number, or a case of a comparison.
            use: which number of a case is meant: ``speedup`` (2 is twice as fast) or ``ratio`` (2 takes twice as long).

        Raises:
            ValueError: if ``actual`` is neither.

        Example:
            >>> predict("How many times faster?").reveal(2.0)
            You made no prediction. The answer on this machine: 2x.
        """
        from course_utils.show.viewer import StoredView

        measured, interval, verdict = actual, None, ""
        if isinstance(getattr(actual, "verdict", None), str):
            measured = getattr(actual, use)
            if not actual.is_baseline:
                words = actual.words if actual.verdict == "UNCLEAR" else actual.verdict
                verdict = f" Verdict on {actual.label}: {words}."
            bounds = actual.interval.inverse() if use == "speedup" else actual.interval
            interval = bounds if bounds.bounded else None
        if isinstance(measured, bool) or not isinstance(measured, int | float) or not math.isfinite(measured):
            raise ValueError(f"reveal() needs a number or a case of a comparison, got {actual!r}")
        answer = _number_text(measured, self.unit)
        if interval is not None:
            answer += f" (95% interval {format_interval(interval)})"
        if self.value is None:
            words = f"You made no prediction. The answer on this machine: {answer}."
        else:
            distance = _distance(self.value, measured, interval)
            words = f"You said {_number_text(self.value, self.unit)}; measured {answer}. {distance}"
        drawing = _number_line(words + verdict, measured, self.value, interval, self.unit)
        return StoredView(words + verdict, f"<p>{html.escape(words + verdict)}</p>\n{drawing}")

    def __repr__(self) -> str:
        return f"Prediction: {self.question} {'Answer with .answer(2).' if self.value is None else self._locked_words}"

    def _repr_html_(self) -> str:
        answer = "" if self.value is None else f"<p>{html.escape(self._locked_words)}</p>"
        return f"<p><strong>Your prediction:</strong> {html.escape(self.question)}</p>{answer}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {"text/plain": repr(self), "text/html": self._repr_html_()}
        if _in_kernel():
            widget = self.widget()
            bundle.update(widget._repr_mimebundle_(include=include, exclude=exclude))
            bundle["text/plain"] = repr(self)
        return bundle

    def widget(self) -> Widget:
        """A fresh form: question, input and a button that locks the answer in, as Enter does."""
        import ipywidgets

        layout = ipywidgets.Layout
        message = ipywidgets.HTML()
        button = ipywidgets.Button(description="Lock in my answer", button_style="primary", layout=layout(width="auto"))
        entry = ipywidgets.Text(placeholder="a number, such as 2", layout=layout(width="12em"), tooltip=self.question)
        unit = ipywidgets.Label("times" if self.unit in _TIMES else self.unit)
        rows = [ipywidgets.HBox(row, layout=layout(flex_flow="row wrap")) for row in ([entry, unit], [button, message])]
        question = ipywidgets.HTML(f"<strong>{html.escape(self.question)}</strong>")
        box = ipywidgets.VBox([question, *rows], layout=layout(padding="0.5em 0", max_width="100%"))
        box.add_class("course-predict")

        def show_locked() -> None:
            entry.disabled = button.disabled = True
            button.description, button.icon = "Locked", "lock"
            message.value = html.escape(f"{self._locked_words} Now measure it.")

        def lock(_: Any) -> None:
            try:
                self.answer(entry.value)
            except ValueError as error:
                message.value = html.escape(str(error))
                entry.disabled = button.disabled = self.value is not None
            else:
                show_locked()

        def hear(_: Any, content: dict[str, Any], __: Any) -> None:
            if content.get("event") == "submit":  # Enter
                lock(entry)

        button.on_click(lock)
        entry.on_msg(hear)
        if self.value is not None:
            entry.value = f"{self.value:g}"
            show_locked()
        return box


def _in_kernel() -> bool:
    """Whether a notebook's kernel runs this, so that a form can be shown."""
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


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


def _number_line(words: str, measured: float, predicted: float | None, interval: Range | None, unit: str) -> str:
    """A number line with prediction and measurement, on a white card (fine on a dark page)."""
    import jinja2

    times = unit in _TIMES
    bounds = [] if interval is None else [interval.low, interval.high]
    values = [measured, *bounds, *([1.0] if times else []), *([] if predicted is None else [predicted])]
    log = min(values) > 0 and (times or max(values) > 4 * min(values))
    transform = math.log if log else float
    low, high = transform(min(values)), transform(max(values))
    pad = 0.12 * (high - low) or (0.3 if log else 0.3 * abs(low) or 1.0)

    def x(value: float) -> float:
        return round(20 + 480 * (transform(value) - low + pad) / (high - low + 2 * pad), 1)

    template = Path(__file__).with_name("number_line.svg.j2").read_text(encoding="utf-8")
    return jinja2.Template(template, autoescape=True).render(
        words=words,
        one=x(1) if times else None,
        interval=[x(bound) for bound in bounds] or None,
        measured=x(measured),
        measured_text=_number_text(measured, unit),
        predicted=None if predicted is None else x(predicted),
        predicted_text="" if predicted is None else _number_text(predicted, unit),
    )


def predict(question: str, unit: str = "x", low: float | None = None, high: float | None = None) -> Prediction:
    """Ask for a prediction. Put the returned value on a cell's last line to show its form.

    Running the cell again keeps an answer that is locked; it is forgotten when the kernel ends.

    Args:
        question: what to predict.
        unit: of the number; ``x`` means "times": as fast or as long, as the question says.
        low: the smallest number that makes sense, if any.
        high: the largest number that makes sense, if any.

    Returns:
        The prediction; its ``reveal`` compares it with the answer.

    Example:
        >>> predict("How many times faster is pinned?").answer("3x").reveal(1.5)
        You said 3x; measured 1.5x. Your prediction was too high by a factor of 2.
    """
    return _locked.get((question, unit, low, high)) or Prediction(question, unit, low, high)
