"""What the lesson shows: peak, copies and time beside each other, and the H200's peaks as bars."""

from __future__ import annotations

from course_utils import recorded
from course_utils.results.measurement import bytes_text
from course_utils.results.sweep import Sweep
from course_utils.results.table import Table
from course_utils.show.cards import Bar, Card, Row, amount_axis
from course_utils.show.tables import Column, Grid


def peaks(steps: Sweep, activation: str) -> list[int]:
    return [steps[activation][way].measurement.peak_allocated_bytes for way in ("out of place", "in place")]


def share(steps: Sweep, activation: str) -> float:
    out_of_place, in_place = peaks(steps, activation)
    return round(100 * in_place / out_of_place, 1)  # in percent


def point(steps: Sweep) -> str:
    said = ", ".join(f"{point.value} {share(steps, point.value):.3g}%" for point in steps)
    return f"In place, of the peak out of place: {said}."


def unnoticed(written: Table) -> str:
    silent = [row["gradient off by"] for row in written if row["backward()"] == "no error"]
    return f"{len(silent)} of {len(written.rows)} writes raise no error: gradients are off by up to {max(silent):.0%}."


def beside(steps: Sweep, copies: Table) -> Card:
    """By activation: the peak both ways, the copies that the flag adds, and what it does to the step's time."""
    names = [str(point.value) for point in steps]
    both = [peaks(steps, name) for name in names]
    columns = {
        "peak": [bytes_text(out_of_place) for out_of_place, _ in both],
        "peak, in place": [bytes_text(in_place) for _, in_place in both],
        "copies added": [f"{copies[name]['in place'] - copies[name]['out of place']}" for name in names],
        "step's time": [steps[name]["in place"].cell for name in names],
    }
    table = Grid("", (Column("", (*names,), numeric=False), *(Column(head, (*it,)) for head, it in columns.items())))
    return Card(point(steps), table=table, numbers=steps.card().numbers, **steps.stamp("time: in place, against out"))


def on_the_h200() -> Card:
    """What a step of eight linear layers, each with an operation, needed both ways."""
    outputs = recorded("in_place_operations/keep_output", machine="nvidia-h200")
    two = recorded("in_place_operations/two_formulas", machine="nvidia-h200")
    inputs = recorded("in_place_operations/keep_input", machine="nvidia-h200")
    tables = {"LeakyReLU": two, "SiLU": inputs, "dropout": outputs}
    ways = {"out of place": "", "in place": ", in place"}
    needed = {name + words: table[name][way] for name, table in tables.items() for way, words in ways.items()}
    axis = amount_axis(needed.values(), bytes_text)
    rows = tuple(Row(name, "", bytes_text(size), "", Bar(0.0, size, size)) for name, size in needed.items())
    saved, more = (abs(needed[name] - needed[f"{name}, in place"]) for name in ("LeakyReLU", "dropout"))
    says = f"In place, LeakyReLU saves {bytes_text(saved)}, SiLU nothing, and dropout needs {bytes_text(more)} more."
    return Card(says, rows, axis, heads=("", "peak"), **two.stamp("eight linear layers, each with one operation"))
