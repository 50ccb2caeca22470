"""The sheet that figures are drawn on: sizes in inches, text that is measured before it is placed, axes, one style.

Only matplotlib's object interface is used: a figure shows itself once, whether or not a notebook has set up pyplot.
"""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

WIDTH_IN = 8.0
MARGIN_IN = 0.12
LINE_IN = 0.19
STYLE = {
    "figure.dpi": 110,
    "savefig.dpi": 110,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.titlesize": 10,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9.5,
    "axes.edgecolor": "#888888",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "text.color": "#222222",
    "axes.labelcolor": "#222222",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": False,
    "text.parse_math": False,  # a label with a dollar sign is a label, not a formula
}
# Okabe and Ito's palette, which colour-blind people can tell apart.
CASE_COLOURS = ("#444444", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LEGEND_X = MARGIN_IN / WIDTH_IN


class ResultFigure(Figure):
    """A figure that shows itself in a notebook, and describes itself in words.

    Attributes:
        alt: what the figure shows, for people who cannot see it.
    """

    alt: str = "An empty figure."

    def _repr_png_(self) -> bytes:
        from PIL import Image

        raw, small = BytesIO(), BytesIO()
        self.savefig(raw, format="png", dpi=self.dpi)
        image = Image.open(raw).convert("RGB")
        # A palette halves the size of notebooks and pages. Few colours are in use, so nobody sees the difference.
        image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            small, format="png", optimize=True
        )
        return small.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"image/png": self._repr_png_(), "text/plain": repr(self)}, {"image/png": {"alt": self.alt}}

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"


def new_figure(height_in: float, width_in: float = WIDTH_IN) -> ResultFigure:
    """An empty figure of a size in inches."""
    fig = ResultFigure(figsize=(width_in, height_in))
    FigureCanvasAgg(fig)
    return fig


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw with the course's own style, whatever style the notebook has set."""

    @functools.wraps(draw)
    def wrapper(*args: Any, **kwargs: Any) -> Figure:
        with matplotlib.style.context(["default", STYLE]):
            return draw(*args, **kwargs)

    return wrapper


def axes_in(fig: Figure, left: float, bottom: float, width: float, height: float, **kwargs: Any) -> Axes:
    """Add axes at a place given in inches from the lower left corner."""
    w, h = fig.get_size_inches()
    return fig.add_axes((left / w, bottom / h, width / w, height / h), **kwargs)


def text_in(fig: Figure, x: float, y: float, text: str, **kwargs: Any) -> Any:
    """Add text at a place given in inches from the lower left corner."""
    w, h = fig.get_size_inches()
    return fig.text(x / w, y / h, text, **kwargs)


@functools.lru_cache(maxsize=512)
def text_width_in(text: str, size: float, weight: str = "normal") -> float:
    """Width of a line of text, in inches."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
    font.set_size(size, 72)
    font.set_text(text)
    return font.get_width_height()[0] / 64 / 72 + 0.03


def fit(text: str, width_in: float, size: float, weight: str = "normal", max_lines: int = 3) -> list[str]:
    """Wrap text into lines that are no wider than ``width_in``; what does not fit ends in an ellipsis."""
    limit = max(8, len(text))
    while limit > 8:
        lines = textwrap.wrap(text, limit)
        if all(text_width_in(line, size, weight) <= width_in for line in lines):
            break
        limit -= 1
    lines = textwrap.wrap(text, limit) or [""]
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], lines[max_lines - 1][: limit - 1].rstrip() + "…"]
    return lines


def draw_footer(fig: Figure, lines: Sequence[str], size: float = 9.0) -> None:
    """Small lines at the very bottom: how it was measured, on which machine, when."""
    for i, line in enumerate(reversed(lines)):
        text_in(fig, MARGIN_IN, MARGIN_IN + i * LINE_IN, line, fontsize=size, color="#555555", va="bottom")


def footer_lines(*texts: str, size: float = 9.0, width_in: float = WIDTH_IN) -> list[str]:
    """The lines of a footer, wrapped so that each fits the figure."""
    return [line for text in texts if text for line in fit(text, width_in - 2 * MARGIN_IN, size, max_lines=2)]


def span(values: Sequence[float]) -> float:
    """The largest of some positive values over the smallest."""
    return max(values) / min(values)


def plain_number(value: float, _: Any = None) -> str:
    """A number for a tick: no exponent, and thousands apart."""
    return f"{value:,.0f}".replace(",", " ") if value >= 1000 else f"{value:.4g}"


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Round tick values between two positive ends: powers of ten, with 1-2-5 or finer steps where there is room."""
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    best: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        inside = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(inside) > count and best:
            break
        best = inside
    while len(best) > count:
        best = best[::2]
    return best


def ratio_ticks(low: float, high: float, count: int) -> list[float]:
    """Tick values for a logarithmic axis of ratios: halves and doubles, with one step between where there is room."""
    octaves = range(math.floor(math.log2(low)) - 1, math.ceil(math.log2(high)) + 1)
    steps = (1.0, 1.4) if math.log2(high / low) * 2 <= count + 1 else (1.0,)
    inside = [step * 2.0**octave for octave in octaves for step in steps if low <= step * 2.0**octave <= high]
    return inside if 2 <= len(inside) <= count + 2 else log_ticks(low, high, count)


def scale_axis(
    ax: Axes,
    which: str,
    values: Sequence[float],
    log: bool,
    count: int = 5,
    pad: float = 0.06,
    log_ticks: Callable[[float, float, int], list[float]] = log_ticks,
) -> None:
    """Set limits, scale and ticks of the x or y axis so that all values lie inside."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    set_limits = ax.set_xlim if which == "x" else ax.set_ylim
    low, high = min(values), max(values)
    if log:
        (ax.set_xscale if which == "x" else ax.set_yscale)("log")
        factor = max((high / low) ** pad, 1.02)
        low, high = low / factor, high * factor
        set_limits(low, high)
        ticks = log_ticks(low, high, count)
        if len(ticks) >= 2:
            axis.set_major_locator(FixedLocator(ticks))
        else:
            axis.set_major_locator(MaxNLocator(count - 1))
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    else:
        room = pad * (high - low) or 0.02 * abs(high) or 1.0
        set_limits(low - room, high + room)
        axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(plain_number))


def case_colour(index: int) -> str:
    """The colour of the n-th case, line or part of a bar."""
    return CASE_COLOURS[index % len(CASE_COLOURS)]
