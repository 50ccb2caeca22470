"""The pen of the findings' picture, and the colours that tell things apart."""

from __future__ import annotations

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch

from course_utils.show import colours
from course_utils.show.canvas import WIDTH_IN, ResultFigure

ORANGE, BLUE = colours.ORANGE, colours.BLUE
INK, NOTE, FAINT, EDGE = colours.GREY_22, colours.GREY_55, colours.GREY_F3, colours.GREY_88


class Pen:
    """Draws on a figure as wide as all others, which is 8 units; heights are inches.

    (x, y) is a lower left corner, or where words stand.

    Attributes:
        ax: for what is drawn only once.
    """

    def __init__(self, width: float, height_in: float) -> None:
        self._figure = ResultFigure(figsize=(WIDTH_IN, height_in), dpi=110, facecolor="white")
        FigureCanvasAgg(self._figure)
        self.ax = self._figure.add_axes((0, 0, 1, 1))
        self.ax.set(xlim=(0, width), ylim=(0, height_in))
        self.ax.axis("off")

    def write(
        self, x: float, y: float, text: str, colour: str = INK, size: float = 9.5, va: str = "center", **style: Any
    ) -> None:
        """Write words."""
        self.ax.text(x, y, text, color=colour, fontsize=size, va=va, **style)

    def area(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        radius: float = 0.08,
        fc: str = FAINT,
        ec: str = "none",
        **style: Any,
    ) -> None:
        """Fill an area with rounded corners."""
        rounded = f"round,pad=0,rounding_size={radius}"
        self.ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=rounded, fc=fc, ec=ec, **style))

    def described(self, alt: str) -> ResultFigure:
        """The figure, with words for people who cannot see it."""
        self._figure.alt = alt
        return self._figure
