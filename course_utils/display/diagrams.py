"""Drawings of mechanisms: what happens, without any measured number."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyBboxPatch

from course_utils.display.figures import ResultFigure

# Okabe and Ito's palette. The words on the arrows carry the difference as well, and so do the arrows' line styles.
_CPU_COPY, _TRANSFER = "#D55E00", "#0072B2"
_CPU_COPY_INK, _TRANSFER_INK = "#A34800", "#005A8C"
_INK, _FAINT, _EDGE = "#222222", "#F3F3F3", "#888888"
_PLAIN, _PINNED, _GPU = "#FFFFFF", "#DCEBF5", "#E3EFE0"


def _canvas(width_in: float, height_in: float) -> tuple[ResultFigure, Axes]:
    """A figure whose axes are measured in inches."""
    fig = ResultFigure(figsize=(width_in, height_in), dpi=110, facecolor="white")
    FigureCanvasAgg(fig)
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width_in), ylim=(0, height_in))
    ax.axis("off")
    return fig, ax


def _round(radius_in: float) -> str:
    return f"round,pad=0,rounding_size={radius_in}"


def _box(ax: Axes, x: float, y: float, width: float, height: float, text: str, colour: str, bold: bool = True) -> None:
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=_round(0.06), fc=colour, ec=_EDGE, lw=1))
    ax.text(
        x + width / 2,
        y + height / 2,
        text,
        ha="center",
        va="center",
        fontsize=10,
        color=_INK,
        weight="bold" if bold else "normal",
        linespacing=1.3,
    )


def _arrow(ax: Axes, start: float, end: float, y: float, colour: str, style: str = "-") -> None:
    ax.annotate(
        "",
        xy=(end, y),
        xytext=(start, y),
        arrowprops={"arrowstyle": "-|>,head_width=0.35,head_length=0.7", "color": colour, "lw": 3, "ls": style},
    )


def host_to_device_paths() -> ResultFigure:
    """Draw how a tensor gets from main memory to a GPU: through a staging buffer, or straight from pinned memory.

    Returns:
        A figure that shows itself.
    """
    width, height = 8.0, 3.7
    fig, ax = _canvas(width, height)
    # Main memory and GPU memory as two areas, with the link between them.
    for x, w, name in ((0.12, 5.5, "Main memory"), (6.55, 1.33, "GPU memory")):
        ax.add_patch(FancyBboxPatch((x, 0.12), w, height - 0.56, boxstyle=_round(0.08), fc=_FAINT, ec="none"))
        ax.text(x + 0.1, height - 0.31, name, fontsize=10.5, color=_INK, weight="bold", va="center")
    ax.text(6.085, height - 0.31, "the link", fontsize=9.5, color="#555555", va="center", ha="center")
    ax.plot([5.77, 5.77], [0.2, height - 0.52], color=_EDGE, lw=1, ls=":")
    ax.plot([6.4, 6.4], [0.2, height - 0.52], color=_EDGE, lw=1, ls=":")

    rows = ((1.98, "Your tensor is pageable: two copies"), (0.32, "Your tensor is pinned: one copy"))
    for y, title in rows:
        ax.text(0.27, y + 1.06, title, fontsize=10, color=_INK, va="center", style="italic")
        _box(ax, 6.67, y, 1.09, 0.84, "tensor on\nthe GPU", _GPU)
    upper, lower = (y for y, _ in rows)

    _box(ax, 0.27, upper, 1.35, 0.84, "your tensor,\npageable", _PLAIN)
    _box(ax, 3.8, upper, 1.67, 0.84, "staging buffer of\nthe driver, pinned", _PINNED)
    _arrow(ax, 1.68, 3.76, upper + 0.42, _CPU_COPY, "--")
    ax.text(2.7, upper + 0.58, "copy 1: by the CPU,", fontsize=9.5, color=_CPU_COPY_INK, ha="center", va="bottom")
    ax.text(2.7, upper + 0.26, "piece by piece", fontsize=9.5, color=_CPU_COPY_INK, ha="center", va="top")
    _arrow(ax, 5.52, 6.65, upper + 0.42, _TRANSFER)
    ax.text(6.085, upper + 0.58, "copy 2:", fontsize=9.5, color=_TRANSFER_INK, ha="center", va="bottom")
    ax.text(6.085, upper + 0.26, "by DMA", fontsize=9.5, color=_TRANSFER_INK, ha="center", va="top")

    _box(ax, 0.27, lower, 1.35, 0.84, "your tensor,\npinned", _PINNED)
    _arrow(ax, 1.68, 6.65, lower + 0.42, _TRANSFER)
    above, below = "the only copy: the GPU reads main memory by DMA;", "the CPU only starts it"
    ax.text(3.7, lower + 0.58, above, fontsize=9.5, color=_TRANSFER_INK, ha="center", va="bottom")
    ax.text(3.7, lower + 0.26, below, fontsize=9.5, color=_TRANSFER_INK, ha="center", va="top")
    fig.alt = (
        "Two ways from main memory to a GPU. A pageable tensor is copied twice: by the CPU, piece by piece, into a "
        "pinned staging buffer of the driver, and from there by DMA across the link into GPU memory. A pinned tensor "
        "is copied once: by DMA across the link, straight into GPU memory."
    )
    return fig


def copy_and_compute_lanes() -> ResultFigure:
    """Draw three batches that are copied and computed, on one stream and on two. Lengths are not measured.

    Returns:
        A figure that shows itself.
    """
    width, height = 8.0, 2.9
    fig, ax = _canvas(width, height)
    copy_w, work_w, left, lane_h = 0.82, 0.95, 1.55, 0.36

    def bar(x: float, y: float, w: float, text: str, colour: str) -> None:
        ax.add_patch(FancyBboxPatch((x + 0.02, y), w - 0.04, lane_h, boxstyle=_round(0.04), fc=colour, ec="none"))
        ax.text(x + w / 2, y + lane_h / 2, text, color="white", fontsize=9.5, ha="center", va="center", weight="bold")

    one, copies, works = 1.98, 0.98, 0.52
    ax.text(0.12, one + lane_h + 0.24, "One stream: in the order in which you queued it", fontsize=10, style="italic")
    ax.text(0.12, one + lane_h / 2, "stream", fontsize=9.5, va="center", color=_INK)
    x = left
    for n in (1, 2, 3):
        bar(x, one, copy_w, f"copy {n}", _TRANSFER)
        bar(x + copy_w, one, work_w, f"work {n}", _CPU_COPY_INK)
        x += copy_w + work_w
    two_streams = "Two streams: batch 2 is copied while batch 1 is worked on"
    ax.text(0.12, copies + lane_h + 0.24, two_streams, fontsize=10, style="italic")
    ax.text(0.12, copies + lane_h / 2, "copy stream", fontsize=9.5, va="center", color=_INK)
    ax.text(0.12, works + lane_h / 2, "main stream", fontsize=9.5, va="center", color=_INK)
    for n in (1, 2, 3):
        start = left + copy_w + (n - 1) * work_w
        bar(left + (n - 1) * copy_w, copies, copy_w, f"copy {n}", _TRANSFER)
        bar(start, works, work_w, f"work {n}", _CPU_COPY_INK)
    ax.annotate(
        "", xy=(width - 0.15, 0.28), xytext=(left, 0.28), arrowprops={"arrowstyle": "-|>", "color": _EDGE, "lw": 1}
    )
    ax.text(width - 0.15, 0.12, "time (a sketch, not measured)", fontsize=9, color="#555555", ha="right", va="center")
    fig.alt = (
        "A sketch of three batches. On one stream copies and work alternate, each waiting for the one before. On two "
        "streams the copy of batch 2 runs while batch 1 is worked on, so that all are done earlier."
    )
    return fig
