"""Drawings of the lesson: the ways from main memory to a GPU, and what a trace of three of its loops looks like."""

from __future__ import annotations

from course_utils.show.canvas import ResultFigure
from course_utils.show.shapes import BLUE, BLUE_INK, EDGE, NOTE, ORANGE, ORANGE_INK, PALE_BLUE, PALE_GREEN, Pen

GREEN_INK = "#00664B"


def host_to_device_paths() -> ResultFigure:
    """Draw how a tensor gets from main memory to a GPU: through a staging buffer, or straight from pinned memory."""
    width, height = 8.0, 3.7
    pen = Pen(width, height)
    # Main memory and GPU memory as two areas, with the link between them.
    for x, w, name in ((0.12, 5.5, "Main memory"), (6.55, 1.33, "GPU memory")):
        pen.area(x, 0.12, w, height - 0.56)
        pen.write(x + 0.02, height - 0.31, name, size=10.5, weight="bold")
    pen.write(6.085, height - 0.31, "the link", NOTE, ha="center")
    pen.ax.plot([5.77, 5.77], [0.2, height - 0.52], color=EDGE, lw=1, ls=":")
    pen.ax.plot([6.4, 6.4], [0.2, height - 0.52], color=EDGE, lw=1, ls=":")

    rows = ((1.98, "Your tensor is pageable: two copies"), (0.32, "Your tensor is pinned: one copy"))
    for y, title in rows:
        pen.write(0.27, y + 1.06, title, size=10, style="italic")
        pen.box(6.67, y, 1.09, 0.84, "tensor on\nthe GPU", PALE_GREEN)
    upper, lower = (y for y, _ in rows)

    pen.box(0.27, upper, 1.35, 0.84, "your tensor,\npageable")
    pen.box(3.55, upper, 1.97, 0.84, "staging buffer of\nthe driver, pinned", PALE_BLUE)
    pen.arrow((1.68, upper + 0.42), (3.51, upper + 0.42), ORANGE, "--")
    pen.write(2.57, upper + 0.58, "copy 1: by the CPU,", ORANGE_INK, va="bottom", ha="center")
    pen.write(2.57, upper + 0.26, "piece by piece", ORANGE_INK, va="top", ha="center")
    pen.arrow((5.57, upper + 0.42), (6.65, upper + 0.42), BLUE)
    pen.write(6.085, upper + 0.58, "copy 2:", BLUE_INK, va="bottom", ha="center")
    pen.write(6.085, upper + 0.26, "by DMA", BLUE_INK, va="top", ha="center")

    pen.box(0.27, lower, 1.35, 0.84, "your tensor,\npinned", PALE_BLUE)
    pen.arrow((1.68, lower + 0.42), (6.65, lower + 0.42), BLUE)
    above, below = "the only copy: the GPU reads it by DMA;", "the CPU only starts it"
    pen.write(3.7, lower + 0.58, above, BLUE_INK, va="bottom", ha="center")
    pen.write(3.7, lower + 0.26, below, BLUE_INK, va="top", ha="center")
    return pen.described(
        "Two ways from main memory to a GPU. A pageable tensor is copied twice: by the CPU, piece by piece, into a "
        "pinned staging buffer of the driver, and from there by DMA across the link into GPU memory. A pinned tensor "
        "is copied once: by DMA across the link, straight into GPU memory."
    )


# The lesson's example, in milliseconds.
_WORK, _STAGING, _TRANSFER = 30, 20, 10
_SHOWN = 150


def three_traces() -> ResultFigure:
    """Draw what a profiler would show of three loops: worked out from the example's times, not recorded."""
    width, height = 8.0, 4.5
    pen = Pen(width, height)
    left, lane_h, pitch = 1.33, 0.25, 0.31
    unit = (width - left - 0.15) / _SHOWN
    colours = {"kernels": GREEN_INK, "copy": BLUE, "sync": NOTE, "call": ORANGE, "next": BLUE_INK}
    ways = (
        ("Row 1 · Pageable, .to() waits, each piece sent while the next is staged: 50 ms a step", _pageable()),
        ("Row 3 · Pinned by the loader's thread, .to() waits: 40 ms a step", _pinned()),
        ("Row 4 · Pinned by the loader's thread, prefetched: 30 ms a step", _prefetched()),
    )
    for (title, lanes), top in zip(ways, (4.3, 3.05, 1.8), strict=True):
        pen.write(0.12, top, title, "black", 10, style="italic")
        for lane, name in enumerate(lanes):
            y = top - 0.46 - lane * pitch
            pen.write(0.12, y + lane_h / 2, name, size=9)
            pen.area(left, y, _SHOWN * unit, lane_h, 0.02)
            for what, start, end in lanes[name]:
                pen.area(left + start * unit + 0.015, y, (end - start) * unit - 0.03, lane_h, 0.04, fc=colours[what])
                pen.write(left + (start + end) / 2 * unit, y + lane_h / 2, what, "white", 9, ha="center")
    pen.write(0.12, 0.47, "call: cudaMemcpyAsync", ORANGE_INK, 9)
    pen.write(2.45, 0.47, "sync: cudaStreamSynchronize", NOTE, 9)
    pen.write(5.4, 0.47, "next: waits for the loader", BLUE_INK, 9)
    pen.write(0.12, 0.12, "copy: Memcpy HtoD", BLUE_INK, 9)
    pen.axis((left, 0.27), (width - 0.15, 0.27), lw=1)
    pen.write(width - 0.15, 0.12, "time, 150 ms (worked out from the example, not recorded)", NOTE, 9, ha="right")
    return pen.described(
        "What a trace of three loops would show, worked out from 30 ms of work, 20 of staging and 10 of transfer. "
        "Pageable: the Python thread is in cudaMemcpyAsync while the driver waits for the kernels and then stages; on "
        "the main stream a copy of 20 ms, as long as the staging, and the kernels take turns. Pinned: so do copies of "
        "10 ms and the kernels, and the Python thread waits in cudaStreamSynchronize. Prefetched: the copies run on "
        "the side stream under the kernels, which follow each other without a gap. The Python thread waits for no "
        "copy; it runs ahead, and waits for the loader."
    )


_Lanes = dict[str, list[tuple[str, int, int]]]


def _pageable() -> _Lanes:
    python, main, now, asked = [], [], 0, 0
    while asked < _SHOWN:
        copied = now + max(_STAGING, _TRANSFER)  # each piece is sent while the next is staged
        python.append(("call", asked, copied))
        main += [("copy", now, copied), ("kernels", copied, copied + _WORK)]
        now, asked = copied + _WORK, copied  # the next call waits for this work
    return _cut(python, main)


def _pinned() -> _Lanes:
    python, main, now, asked = [], [], 0, 0
    while asked < _SHOWN:
        copied = now + _TRANSFER
        python.append(("sync", asked, copied))
        main += [("copy", now, copied), ("kernels", copied, copied + _WORK)]
        now, asked = copied + _WORK, copied
    return _cut(python, main)


def _prefetched() -> _Lanes:
    # Drawn from where the first batch is on the GPU and the second is pinned. The CPU queues each batch as it comes,
    # and waits for the loader's thread again, which stages one after the other.
    python = [("next", come, come + _STAGING) for come in range(0, _SHOWN, _STAGING)]
    side, main, copied, free = [], [], 0, 0
    for come in range(0, _SHOWN, _STAGING):
        # The next batch's copy waits for that batch, and for the work before this one's.
        sent = max(come, copied, free)
        side.append(("copy", sent, sent + _TRANSFER))
        main.append(("kernels", free, free + _WORK))
        copied, free = sent + _TRANSFER, free + _WORK
    return _cut(python, main, side)


def _cut(*lanes: list[tuple[str, int, int]]) -> _Lanes:
    """The lanes by name, cut off where the drawing ends."""
    names = ("Python thread", "main stream", "side stream")
    shown = ([(what, a, min(b, _SHOWN)) for what, a, b in lane if a < _SHOWN] for lane in lanes)
    return dict(zip(names, shown, strict=False))
