"""The pen of all drawings: a canvas in inches, boxes, arrows, and the colours that tell things apart."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch

from course_utils.show.canvas import ResultFigure

# Okabe and Ito's palette; the darker inks are for text on white. A word or a line style
# carries each difference as well.
ORANGE, BLUE = "#D55E00", "#0072B2"
ORANGE_INK, BLUE_INK = "#A34800", "#005A8C"
INK, NOTE, FAINT, EDGE = "#222222", "#555555", "#F3F3F3", "#888888"
PLAIN, PALE_BLUE, PALE_GREEN = "#FFFFFF", "#DCEBF5", "#E3EFE0"


def canvas(width_in: float, height_in: float) -> tuple[ResultFigure, Axes]:
    """A figure whose axes are measured in inches."""
    fig = ResultFigure(figsize=(width_in, height_in), dpi=110, facecolor="white")
    FigureCanvasAgg(fig)
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width_in), ylim=(0, height_in))
    ax.axis("off")
    return fig, ax


def rounded(radius_in: float) -> str:
    """A box style with rounded corners, for ``FancyBboxPatch``."""
    return f"round,pad=0,rounding_size={radius_in}"


def box(ax: Axes, x: float, y: float, width: float, height: float, text: str, colour: str, bold: bool = True) -> None:
    """Draw a box with a text in its middle. Position and size are in inches; (x, y) is the lower left corner."""
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=rounded(0.06), fc=colour, ec=EDGE, lw=1))
    ax.text(
        x + width / 2,
        y + height / 2,
        text,
        ha="center",
        va="center",
        fontsize=10,
        color=INK,
        weight="bold" if bold else "normal",
        linespacing=1.3,
    )


def arrow(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, style: str = "-", width: float = 3
) -> None:
    """Draw an arrow from one point to another, in inches. ``style`` is a matplotlib line style."""
    head = "-|>,head_width=0.35,head_length=0.7"
    ax.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": head, "color": colour, "lw": width, "ls": style})
