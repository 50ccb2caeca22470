"""What figures have in common: title, machine and date around the panels, one style, axes with plain numbers.

Only matplotlib's object interface is used: a figure shows itself once, whether or not a notebook has set up pyplot.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from course_utils.show import colours
from course_utils.show.colours import AMBER, BLUE, GREEN, ORANGE, PINK, SKY
from course_utils.show.formats import plain_number

WIDTH_IN = 6.4  # of all figures: at a phone's width their letters can still be read
MARGIN_IN = 0.12
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
    "axes.edgecolor": colours.GREY_88,
    "xtick.color": colours.GREY_33,
    "ytick.color": colours.GREY_33,
    "text.color": colours.GREY_22,
    "axes.labelcolor": colours.GREY_22,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": False,
    "text.parse_math": False,  # a label with a dollar sign is a label, not a formula
}
# Okabe and Ito's palette, which colour-blind people can tell apart.
CASE_COLOURS = (colours.GREY_44, BLUE, ORANGE, GREEN, PINK, AMBER, SKY, "black")
LEGEND_X = MARGIN_IN / WIDTH_IN
_ROW_NAME = 28  # letters of a line


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


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The course's own style, whatever style the notebook has set."""
    with matplotlib.style.context(["default", STYLE]):
        yield


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draw in the course's own style. An experiment that nobody has recorded is returned: it says so itself."""

    @functools.wraps(draw)
    def drawn(*results: Any, **options: Any) -> Any:
        unrecorded = next((each for each in results if getattr(each, "needs", None) is not None), None)
        return draw(*results, **options) if unrecorded is None else unrecorded

    return style()(drawn)


def wrapped(text: str, width: int, most: int = 3) -> str:
    """The text in lines of so many letters; what does not fit ends in an ellipsis."""
    return "\n".join(textwrap.wrap(text, width, max_lines=most, placeholder="…"))


def _fitted(text: str, size: float, weight: str = "normal", most: int = 2) -> str:
    """The text in a few lines as wide as a figure, by the width that its own letters have on average."""
    letters = 0.95 * len(text) * (WIDTH_IN - 2 * MARGIN_IN) / text_width_in(text, size, weight)
    return wrapped(text, max(1, int(letters)), most)


def titled_figure(title: str, panels_in: float, *notes: str) -> ResultFigure:
    """A figure with a title, if there is one, and small notes: how it was measured, on which machine, when.

    Its panels, with what is written around them and their legends, fill ``panels_in`` inches between the two.
    """
    title = _fitted(title, 12, "bold", most=3)
    small = "\n".join(_fitted(note, 9) for note in notes if note)
    top_in = 0.22 + 0.21 * (title.count("\n") + 1) if title else 0.08
    bottom_in = MARGIN_IN + 0.06 + (0.19 * (small.count("\n") + 1) if small else 0)
    height = top_in + panels_in + bottom_in
    fig = ResultFigure(figsize=(WIDTH_IN, height))
    FigureCanvasAgg(fig)
    room = (LEGEND_X / 2, bottom_in / height, 1 - LEGEND_X, panels_in / height)
    fig.set_layout_engine("constrained", rect=room, h_pad=0.05, w_pad=0.08)
    fig.text(LEGEND_X, 1 - 0.12 / height, title, fontsize=12, weight="bold", va="top")
    fig.text(LEGEND_X, MARGIN_IN / height, small, fontsize=9, color=colours.GREY_55, va="bottom", linespacing=1.4)
    return fig


def legend(fig: Figure, handles: Sequence[Any], names: Sequence[str], columns: int) -> None:
    """A legend at the upper end of the panels' room, which shrinks by its lines."""
    layout = fig.get_layout_engine()
    left, bottom, width, height = layout.get()["rect"]
    look = {"frameon": False, "columnspacing": 1.2, "handletextpad": 0.5, "borderaxespad": 0.1, "borderpad": 0}
    fig.legend(handles, names, loc="upper left", bbox_to_anchor=(LEGEND_X, bottom + height), ncols=columns, **look)
    taken = 0.24 * math.ceil(len(handles) / columns) / fig.get_figheight()
    layout.set(rect=(left, bottom, width, height - taken))


@functools.lru_cache(maxsize=512)
def text_width_in(text: str, size: float, weight: str = "normal") -> float:
    """Width of a line of text, in inches."""
    font = get_font(findfont(FontProperties(family="DejaVu Sans", weight=weight)))
    font.set_size(size, 72)
    font.set_text(text)
    return font.get_width_height()[0] / 64 / 72 + 0.03


def scale_axis(ax: Axes, which: str, values: Sequence[float], count: int = 5) -> None:
    """Set limits and ticks of the x or y axis so that all values lie inside."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.02 * abs(high) or 1.0
    axis.set_major_locator(MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]))
    ax.set(**{f"{which}lim": (low - room, high + room)})
    axis.set_major_formatter(FuncFormatter(plain_number))


# How many times as fast, or as long: from the roundest number to those that only a small range needs.
_ROUND = (2, 10, 5, 100, 1000, 20, 50, 1.5, 3, 1.2, 1.1, 200, 500, 1.05, 1.02)


def speed_axis(ax: Axes, speeds: Sequence[float], which: str = "y", pad: float = 0.12, apart: float = 0.13) -> None:
    """Make an axis one of speed relative to a baseline: up or right is faster, twice as fast as far as half as fast.

    ``apart`` is the least distance of its ticks, as a share of it.
    """
    low, high = min([*speeds, 1 / 1.05]), max([*speeds, 1.05])
    room = (high / low) ** pad
    ax.set(**{f"{which}scale": "log", f"{which}lim": (low / room, high * room)})
    ticks = [1.0]
    for number in _ROUND:
        for speed in (number, 1 / number):
            distance = min(abs(math.log(speed / tick)) for tick in ticks)
            if low / room <= speed <= high * room and distance >= apart * math.log(high / low * room**2):
                ticks.append(speed)
    words = ["1×" if t == 1 else f"{t:g}× as fast" if t > 1 else f"{1 / t:g}× as long" for t in ticks]
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_minor_locator(NullLocator())
    axis.set_ticks(ticks, labels=words)


def name_ends(ax: Axes, ends: Mapping[str, tuple[float, str]], width: int = 14) -> None:
    """Write the name of each line beside its end, where names would overlap a little further up or down.

    ``ends`` has of each name where its line ends, and its colour.
    """
    names = sorted(ends, key=lambda name: ends[name][0])
    place = ax.transScale + ax.transLimits  # from values to shares of the axes' height
    height_pt = 72 * ax.figure.get_figheight() * 0.5  # of the axes, about: names need not be placed more exactly
    wished = [height_pt * place.transform((0.0, ends[name][0]))[1] for name in names]
    lines = [wrapped(name, width).count("\n") + 1 for name in names]
    placed: list[float] = []
    for i, y in enumerate(wished):
        placed.append(max(y, placed[-1] + 6.5 * (lines[i - 1] + lines[i])) if placed else max(y, 6.5 * lines[i]))
    too_high = max(0.0, placed[-1] + 6.5 * lines[-1] - height_pt)
    for name, wish, y in zip(names, wished, placed, strict=True):
        look = {"va": "center", "color": ends[name][1], "weight": "bold", "annotation_clip": False, "linespacing": 1.05}
        offset = (6, y - too_high - wish)
        ax.annotate(wrapped(name, width), (1, ends[name][0]), offset, ax.get_yaxis_transform(), "offset points", **look)


def grid(ax: Axes, axis: str) -> None:
    """Faint lines behind what is drawn."""
    ax.grid(axis=axis, color=colours.GREY_E6, lw=0.7)
    ax.set_axisbelow(True)


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """One row of the axes for each name, from the top down."""
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_yticks(range(len(names)), [wrapped(name, _ROW_NAME) for name in names])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def row_in(names: Sequence[str], least: float) -> float:
    """The height of a row that has room for its name, in inches."""
    return max(least, 0.17 * max(wrapped(name, _ROW_NAME).count("\n") + 1 for name in names) + 0.12)


def label_right(ax: Axes, y: float, text: str, colour: str = colours.GREY_22) -> None:
    """Write a bold word beside a row, to the right of the axes."""
    look = {"va": "center", "weight": "bold", "color": colour, "annotation_clip": False}
    ax.annotate(text, (1, y), (8, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points", **look)


def strip(ax: Axes, y: float, values: Sequence[float], colour: str, at: float | None = None) -> None:
    """Every sample of one row, beside each other, and a line that sticks out: at the median by default."""
    golden = (math.sqrt(5) - 1) / 2  # multiples of the golden ratio never fall on top of each other
    beside = [y + 0.3 * (2 * ((i * golden) % 1) - 1) for i in range(len(values))]
    alpha = min(0.75, max(0.2, 12 / len(values)))
    ax.plot(values, beside, "o", ms=4, mew=0, color=colour, alpha=alpha, zorder=2)
    at = statistics.median(values) if at is None else at
    ax.plot([at, at], [y - 0.43, y + 0.43], color=colours.GREY_11, lw=1.5, solid_capstyle="butt", zorder=1.5)


def case_colour(index: int) -> str:
    """The colour of the n-th case, line or part of a bar."""
    return CASE_COLOURS[index % len(CASE_COLOURS)]
