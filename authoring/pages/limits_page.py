"""The page that says how near each lesson comes to what a machine can do at best, and why not nearer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from authoring import limits
from authoring.lesson_files import LessonFile, LessonLimits
from authoring.limits import Share
from authoring.pages.generated import markdown_table, page
from course_utils.records import store
from course_utils.records.kinds.environment import Environment
from course_utils.show.canvas import ResultFigure, label_right, name_rows, row_in, styled, titled_figure, wrapped
from course_utils.show.colours import BLUE, GREY_55, SKY
from course_utils.show.formats import format_percent, format_rate

_DEVICES = {"cuda": "a CUDA GPU", "mps": "an Apple GPU", "cpu": "a CPU"}
_SHARES_HEADER = ("Experiment", "Case", "Rate", "Share of its ceiling")
_NOT_YET = "Nobody has written down the reason yet."
# Figure: a row for each point, and how far the axis goes; what lies beyond is drawn at its end.
_ROW_IN, _FARTHEST = 0.3, 1.25


def limits_page(lessons: Sequence[LessonFile]) -> tuple[str, dict[str, ResultFigure]]:
    """How near the limits, as Markdown, and its figures by the file names that it expects in ``_generated``."""
    records = [store.load_lesson(path) for path in sorted(store.reference_root().glob("*/*.json"))]
    number = {lesson.slug: lesson.number for lesson in lessons}
    # GPUs first, and on each machine the lessons in their order.
    records.sort(
        key=lambda record: (
            record.environment.device_kind == "cpu",
            record.environment.machine,
            number[record.lesson],
        )
    )
    shares = limits.shares(records, limits.load_limits(lessons))
    of_machines = itertools.groupby(records, key=lambda record: record.environment.machine)
    machines = [_machine(list(own), shares, number) for _, own in of_machines]
    text = page(
        "limits.md",
        cpus_only=all(record.environment.device_kind == "cpu" for record in records),
        machines=machines,
        lessons=[lesson for lesson in lessons if lesson.built],
        rows={slug: [row for row in shares if row.lesson == slug] for slug in {row.lesson for row in shares}},
        not_yet=_NOT_YET,
        by_machine=lambda rows: [list(here) for _, here in itertools.groupby(rows, key=_machine_name)],
        caption=lambda environment: f"{environment.caption}{_threads(environment)}",
        ceilings_table=lambda ceilings: markdown_table(["Limit", "Value"], ([e.name, e.in_words()] for e in ceilings)),
        table=lambda rows: markdown_table(_SHARES_HEADER, map(_cells, _shown(rows))),
        held_against=_held_against,
        reasons=_reasons,
    )
    return text, {machine["file"]: machine["figure"] for machine in machines if machine["figure"]}


def _machine_name(row: Share) -> str:
    return row.environment.machine


def _machine(
    records: Sequence[store.LessonRecord], shares: Iterable[Share], number: Mapping[str, int]
) -> dict[str, Any]:
    """What the page shows of one machine: its ceilings, and its shares as a figure in a file of this name."""
    environment = records[0].environment
    holding = [record for record in records if limits.CEILINGS in record.experiments]
    shown = _shown(row for row in shares if row.environment.machine == environment.machine and row.share is not None)
    return {
        "name": environment.title,
        "file": f"limits-{environment.machine}.png",
        "ceilings": holding[0].result(limits.CEILINGS) if holding else None,
        "figure": shares_figure(shown, number) if shown else None,
    }


def _threads(environment: Environment) -> str:
    return f" · {_count(environment.torch_threads)}" if environment.device_kind == "cpu" else ""


def _count(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def _shown(rows: Iterable[Share]) -> list[Share]:
    """Of a sweep over sizes the last point alone; of one over kinds of work all."""
    shown: list[Share] = []
    for _, group in itertools.groupby(rows, key=lambda row: (row.environment.machine, row.experiment)):
        points = list(group)
        last = points[-1].value
        shown += [row for row in points if row.value == last or not isinstance(last, int | float)]
    return shown


def _reasons(rows: Sequence[Share], held: LessonLimits) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """For each kind of device the reasons of what is far from its ceiling, with the experiments that they speak of."""
    for kind, device in _DEVICES.items():
        names = [row.experiment for row in rows if row.wants_reason and row.environment.device_kind == kind]
        reasons: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            why = held.experiments[name].why if name in held.experiments else {}
            reasons.setdefault(why.get(kind, _NOT_YET), []).append(_short(name))
        if reasons:
            yield device, reasons


def _held_against(rows: Sequence[Share]) -> str:
    """The ceilings behind a lesson's shares, with their values: those of one thread are not those of two."""
    values: dict[str, list[str]] = {}
    for row in rows:
        if row.ceiling_value is not None:
            # Of a GPU the host's threads are no limit.
            on_cpu = row.environment.device_kind == "cpu"
            threads = f", measured with {_count(row.ceiling_threads)}" if on_cpu else ""
            values.setdefault(threads, []).append(f"{row.ceiling} {format_rate(row.ceiling_value, row.unit)}")
    parts = [f"Ceilings{threads}: {', '.join(dict.fromkeys(each))}." for threads, each in values.items()]
    return " ".join(parts) or "No ceiling of this machine is known."


def _short(experiment: str) -> str:
    return experiment.partition("/")[2].replace("_", " ")


def _value(row: Share) -> str:
    return f"{row.value:,}" if isinstance(row.value, int) else str(row.value)


def _cells(row: Share) -> list[str]:
    point = _short(row.experiment) if row.over is None else f"{_short(row.experiment)}, {row.over} {_value(row)}"
    share = "no ceiling here" if row.share is None else f"{format_percent(row.share)} of {row.ceiling}"
    share += ", launch-bound" if row.launch_bound else ""
    # A rate and its unit stay on one line.
    return [point, row.case, format_rate(row.rate, row.unit).replace(" ", "\N{NO-BREAK SPACE}"), share]


@styled
def shares_figure(rows: Sequence[Share], numbers: Mapping[str, int]) -> ResultFigure:
    """Shares of one machine's ceilings: a bar for each experiment up to its highest share, and a dot for every case."""
    points = [list(cases) for _, cases in itertools.groupby(rows, key=lambda row: (row.experiment, row.value))]
    labels = [_label(cases[0], numbers) for cases in points]
    environment = rows[0].environment
    title = f"How near its ceilings: {environment.title}"
    note = f"A dot is a case. The bar ends at the highest share, which is named. An arrow: beyond {_FARTHEST:.0%}."
    fig = titled_figure(title, row_in(labels, _ROW_IN) * len(points) + 0.5, note, environment.caption)
    ax = fig.add_subplot()
    for edge in (limits.LOW, 1.0):
        ax.axvline(edge, color=GREY_55, lw=1, ls="--", zorder=1)
    descriptions = []
    for y, cases in enumerate(points):
        best = max(cases, key=lambda case: case.share)
        ax.barh(y, min(best.share, _FARTHEST), height=0.62, color=SKY, alpha=0.45, lw=0, zorder=0)
        for case in cases:
            sign = ">" if case.share > _FARTHEST else "o"
            ax.plot([min(case.share, _FARTHEST)], [y], sign, ms=6, mew=0, color=BLUE, clip_on=False)
        label_right(ax, y, wrapped(f"{format_percent(best.share)} · {best.case}", 30, most=1))
        descriptions.append(f"{labels[y]}: {best.case}, {format_percent(best.share)} of {best.ceiling}")
    name_rows(ax, labels)
    ax.set_xlim(0, _FARTHEST)
    ax.set_xticks([0, limits.LOW, 1.0], ["0", format_percent(limits.LOW), "100%"])
    ax.set_xlabel("share of the ceiling")
    fig.alt = f"{title}. The highest share of each experiment: {'; '.join(descriptions)}. {environment.caption}."
    return fig


def _label(row: Share, numbers: Mapping[str, int]) -> str:
    """What a row of the figure is called: lesson and experiment, and the point without its parameter's name."""
    return f"{numbers[row.lesson]:02d} · {_short(row.experiment)}{'' if row.over is None else f', {_value(row)}'}"
