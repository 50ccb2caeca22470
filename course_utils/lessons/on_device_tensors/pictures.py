"""What the lesson shows: the H200's copies, and the opening's two lines on your GPU."""

from __future__ import annotations

from course_utils import recorded
from course_utils.results.sweep import Sweep
from course_utils.show.cards import Card
from course_utils.show.formats import format_seconds
from course_utils.show.tables import Column, Grid

COPIES = {  # a line, and its case in the record
    'x.to("cuda")': "pageable",
    'pinned.to("cuda")': "pinned",
    'x.to("cuda", non_blocking=True)': "pageable, non_blocking",
    'pinned.to("cuda", non_blocking=True)': "pinned, non_blocking",
    'x.pin_memory().to("cuda", non_blocking=True)': "pin_memory() in the loop",
}
_SIZES = "4 KiB", "1 MiB", "16 MiB"


def copies() -> Card:
    """What each way to copy takes on the H200, and for which sizes Python goes on behind a busy GPU."""
    copy = recorded("pinned_memory/copy", machine="nvidia-h200")
    columns, goes_on = [Column("", tuple(COPIES), numeric=False)], []
    for size in _SIZES:
        columns.append(Column(size, tuple(format_seconds(copy[size][case].median_s) for case in COPIES.values())))
    for case in COPIES.values():
        sizes = [size for size in _SIZES if copy[size][case].measurement.queued_ahead_s]
        goes_on.append(("yes" if len(sizes) == len(_SIZES) else f"to {sizes[-1]}") if sizes else "no")
    columns.append(Column("no wait for the GPU", tuple(goes_on), numeric=False))
    says = "Only with non_blocking=True need Python not wait. Where x lies pinned already, a large copy is shorter."
    return Card(says, table=Grid("", tuple(columns)), **copy.stamp("medians, the GPU idle"))


def two_lines(lines: Sweep) -> Card:
    """When Python goes on after each of the opening's lines, and when the GPU has done all."""
    rows = [(("idle", "busy")[each.value > 0], case) for each in lines for case in each.comparison]
    python = tuple(format_seconds(case.measurement.enqueue_median_s) for _, case in rows)
    done = Column("all is done", tuple(format_seconds(case.median_s) for _, case in rows))
    names = Column("", tuple(f"GPU {state}: {case.label}" for state, case in rows), numeric=False)
    says = (
        f"Busy GPU: Python goes on after {python[-2]} where the tensor is moved, {python[-1]} where it is made there."
    )
    return Card(says, table=Grid("", (names, Column("Python goes on", python), done)), **lines.stamp("medians"))
