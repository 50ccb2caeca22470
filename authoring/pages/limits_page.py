"""The page that says how near each lesson comes to what a machine can do at best, and why not nearer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from authoring import shares
from authoring.pages.generated import markdown_table
from authoring.pages.lesson_list import Lesson
from authoring.shares import LessonLimits, Share
from course_utils.records import store
from course_utils.records.kinds.ceilings import Ceilings
from course_utils.records.kinds.environment import Environment
from course_utils.show.canvas import (
    LINE_IN,
    MARGIN_IN,
    WIDTH_IN,
    ResultFigure,
    axes_in,
    draw_footer,
    fit,
    footer_lines,
    new_figure,
    styled,
    text_in,
)
from course_utils.show.formats import format_percent, format_rate

_KINDS = {"cuda": "a CUDA GPU", "mps": "an Apple GPU", "cpu": "a CPU"}
_NOT_YET = "Nobody has written down the reason yet."
# Figure: a row for each point, and how far the axis goes; what lies beyond is drawn at its end.
_ROW_IN, _FARTHEST = 0.3, 1.25


def limits_page(lessons: Sequence[Lesson]) -> tuple[str, dict[str, ResultFigure]]:
    """How near the limits, as Markdown, and the figures that the page shows.

    Args:
        lessons: all lessons.

    Returns:
        The page, and a figure for each recorded machine, by the file name that the page expects in ``_generated``.

    Raises:
        course_utils.records.store.RecordError: if a record is damaged.
        authoring.shares.LimitsError: if ``limits.yml`` cannot be read.
    """
    limits = shares.load_limits()
    records = [store.load_lesson(path) for path in sorted(store.reference_root().glob("*/*.json"))]
    number = {lesson.slug: lesson.number for lesson in lessons}
    # GPUs first, and on each machine the lessons in their order.
    records.sort(
        key=lambda record: (
            record.environment.device_kind == "cpu",
            record.environment.machine,
            number.get(record.lesson, len(number)),
        )
    )
    rows = shares.shares(records, limits)
    page = [
        "# How near the limits",
        "",
        "A **[ceiling](glossary.md#ceiling)** is what one machine can do at best: bytes per second of a large copy, "
        "operations per second of a large matrix product. [Lesson 00](../notebooks/00_measuring.ipynb) measures it "
        "with the clock of all other measurements ([How we measure](how_we_measure.md)). What a program reaches of it "
        "is its share. The rest is what the same work in the same dtype could still gain, if nothing else held it up. "
        "Shares of two ceilings do not rank two cases: a tenth of a high one can be more than all of a low one.",
        "",
        "A small share is no fault by itself. A program can wait for what has no ceiling here: for Python, if it is "
        "[launch-bound](glossary.md#launch-bound), for the step before, or for fresh memory. Or it does work that its "
        "rate does not count. So where a share is below a half, the reason stands under the table. It also does where "
        "a share is well above 100%: then another limit than the one named is the one that binds.",
        "",
        "This page is made from the records each time the book is built. Of a sweep over sizes you see the last point. "
        "The reasons speak of all of them.",
        "",
    ]
    if all(record.environment.device_kind == "cpu" for record in records):
        page += ["> **No GPU run is recorded yet.** All shares are those of CPUs.", ""]
    figures: dict[str, ResultFigure] = {}
    page += ["## The ceilings of each machine", ""]
    for machine, mine in itertools.groupby(records, key=lambda record: record.environment.machine):
        page += _machine(machine, next(iter(mine)).environment, records, rows, number, figures)
    page += ["## Lesson by lesson", ""]
    for lesson in (lesson for lesson in lessons if lesson.built):
        told = limits.get(lesson.slug, LessonLimits(none=_NOT_YET))
        page += [f"### [{lesson.number:02d} · {lesson.title}](../notebooks/{lesson.stem}.ipynb)", ""]
        page += [told.none, ""] if told.none else _lesson([row for row in rows if row.lesson == lesson.slug], told)
    return "\n".join(page), figures


def _machine(
    machine: str,
    environment: Environment,
    records: Sequence[store.LessonRecord],
    rows: Sequence[Share],
    numbers: Mapping[str, int],
    figures: dict[str, ResultFigure],
) -> list[str]:
    """A machine's ceilings, and its figure."""
    found = next(
        (
            record.result(shares.CEILINGS)
            for record in records
            if record.environment.machine == machine and shares.CEILINGS in record.experiments
        ),
        None,
    )
    page = [f"### {_name(environment)}", ""]
    if found is None:
        page += ["Lesson 00 is not recorded here, so its ceilings are not known.", ""]
    else:
        page += [_ceilings_table(found), f"{found.environment.caption}{_threads(found.environment)}.", ""]
    held = _shown(row for row in rows if row.environment.machine == machine and row.share is not None)
    if held:
        figure = shares_figure(held, numbers)
        figures[f"limits-{machine}.svg"] = figure
        page += [f"![{figure.alt}](_generated/limits-{machine}.svg)", ""]
    return page


def _name(environment: Environment) -> str:
    cores = f", {environment.cpu_cores} cores" if environment.device_kind == "cpu" else ""
    return f"{environment.device_name}{cores}"


def _threads(environment: Environment) -> str:
    if environment.device_kind != "cpu":
        return ""
    return f" · {_count(environment.torch_threads)}"


def _count(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def _ceilings_table(found: Ceilings) -> str:
    return markdown_table(["Limit", "Value"], [[entry.name, entry.in_words()] for entry in found])


def _shown(rows: Iterable[Share]) -> list[Share]:
    """Of a sweep over sizes the last point alone; of one over kinds of work all."""
    kept: list[Share] = []
    for _, mine in itertools.groupby(rows, key=lambda row: (row.environment.machine, row.experiment)):
        of_one = list(mine)
        last = of_one[-1].value
        kept += [row for row in of_one if row.value == last or not isinstance(last, int | float)]
    return kept


def _lesson(rows: Sequence[Share], told: LessonLimits) -> list[str]:
    """A lesson's shares, machine by machine, and the reasons for each kind of device."""
    if not rows:
        return ["No machine has recorded its rates yet.", ""]
    page = []
    for _, mine in itertools.groupby(rows, key=lambda row: row.environment.machine):
        here = list(mine)
        environment = here[0].environment
        page += [f"{environment.caption}{_threads(environment)}:", ""]
        page.append(markdown_table(["Experiment", "Case", "Rate", "Share of its ceiling"], map(_cells, _shown(here))))
        page += [_held_against(here), ""]
    for kind, words in _KINDS.items():
        wanting = (row.experiment for row in rows if row.wants_reason and row.environment.device_kind == kind)
        experiments: dict[str, list[str]] = {}
        for name in dict.fromkeys(wanting):
            why = told.experiments[name].why if name in told.experiments else {}
            experiments.setdefault(why.get(kind, _NOT_YET), []).append(_short(name))
        if experiments:
            page += [f"Why, on {words}:", ""]
            page += [f"- **{', '.join(names)}**: {reason}" for reason, names in experiments.items()]
            page.append("")
    return page


def _held_against(rows: Sequence[Share]) -> str:
    """The ceilings behind a lesson's shares, with their values: those of one thread are not those of two."""
    told: dict[str, list[str]] = {}
    for row in rows:
        if row.ceiling is not None and row.ceiling_value is not None and row.ceiling_threads is not None:
            # Of a GPU the host's threads are no limit.
            on_cpu = row.environment.device_kind == "cpu"
            threads = f", measured with {_count(row.ceiling_threads)}" if on_cpu else ""
            told.setdefault(threads, []).append(f"{row.ceiling} {format_rate(row.ceiling_value, row.unit)}")
    parts = [f"Ceilings{threads}: {', '.join(dict.fromkeys(values))}." for threads, values in told.items()]
    return " ".join(parts) or "No ceiling of this machine is known."


def _short(experiment: str) -> str:
    return experiment.partition("/")[2].replace("_", " ")


def _point(row: Share) -> str:
    return _short(row.experiment) if row.over is None else f"{_short(row.experiment)}, {row.over} {_value(row)}"


def _value(row: Share) -> str:
    return f"{row.value:,}" if isinstance(row.value, int) else str(row.value)


def _cells(row: Share) -> list[str]:
    share = "no ceiling here" if row.share is None else f"{format_percent(row.share)} of {row.ceiling}"
    share += ", launch-bound" if row.launch_bound else ""
    # A rate and its unit stay on one line.
    return [_point(row), row.case, format_rate(row.rate, row.unit).replace(" ", "\N{NO-BREAK SPACE}"), share]


@styled
def shares_figure(rows: Sequence[Share], numbers: Mapping[str, int]) -> ResultFigure:
    """Shares of one machine's ceilings: a bar for each experiment up to its highest share, and a dot for every case.

    Args:
        rows: of one machine, all with a share; a row of the figure for each experiment and point.
        numbers: of lessons, by slug.

    Returns:
        The figure, with its description in ``alt``.
    """
    points = [list(mine) for _, mine in itertools.groupby(rows, key=lambda row: (row.experiment, row.value))]
    environment = rows[0].environment
    footer = footer_lines(
        f"A dot is a case. The bar ends at the highest share, which is named. An arrow: beyond {_FARTHEST:.0%}.",
        environment.caption,
    )
    label_in, named_in = 2.6, 2.2
    bottom_in = MARGIN_IN + len(footer) * LINE_IN + 0.5
    height_in = _ROW_IN * len(points)
    fig = new_figure(bottom_in + height_in + 0.5)
    title = f"How near its ceilings: {_name(environment)}"
    text_in(fig, MARGIN_IN, bottom_in + height_in + 0.38, title, fontsize=12, weight="bold", va="top")
    width_in = WIDTH_IN - label_in - named_in
    ax = axes_in(fig, label_in, bottom_in, width_in, height_in)
    for edge in (shares.LOW, 1.0):
        ax.axvline(edge, color="#555555", lw=1, ls="--", zorder=1)
    said = []
    for y, cases in enumerate(points):
        best = max(cases, key=_share)
        ax.barh(y, min(_share(best), _FARTHEST), height=0.62, color="#56B4E9", alpha=0.45, lw=0, zorder=0)
        for case in cases:
            beyond = _share(case) > _FARTHEST
            ax.plot(
                [min(_share(case), _FARTHEST)], [y], ">" if beyond else "o", ms=6, mew=0, color="#0072B2", clip_on=False
            )
        words = f"{format_percent(_share(best))} · {best.case}"
        (shown,) = fit(words, named_in - 0.3, 9.5, max_lines=1)
        y_in = bottom_in + height_in * (1 - (y + 0.5) / len(points))
        text_in(fig, WIDTH_IN - named_in + 0.2, y_in, shown, fontsize=9.5, va="center")
        said.append(f"{_label(best, numbers)}: {best.case}, {format_percent(_share(best))} of {best.ceiling}")
    labels = [fit(_label(cases[0], numbers), label_in - 0.2, 9.5, max_lines=1)[0] for cases in points]
    ax.set_yticks(range(len(points)), labels)
    ax.set_ylim(len(points) - 0.5, -0.5)
    ax.set_xlim(0, _FARTHEST)
    ax.set_xticks([0, shares.LOW, 1.0], ["0", format_percent(shares.LOW), "100%"])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("share of the ceiling")
    draw_footer(fig, footer)
    fig.alt = f"{title}. The highest share of each experiment: {'; '.join(said)}. {environment.caption}."
    return fig


def _share(row: Share) -> float:
    assert row.share is not None  # only such rows are drawn
    return row.share


def _label(row: Share, numbers: Mapping[str, int]) -> str:
    """What a row of the figure is called: lesson and experiment, and the point without its parameter's name."""
    return f"{numbers[row.lesson]:02d} · {_short(row.experiment)}{'' if row.over is None else f', {_value(row)}'}"
