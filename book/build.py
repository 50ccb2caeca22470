"""Build the book: generate the pages that come from records, run Jupyter Book, say where to open it.

``make book`` runs this file with the Python of the virtual environment. It also keeps the two lists that follow from
``lessons.yml``: the table of contents (``_toc.yml``) and the table of lessons in ``README.md``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from course_utils import store
from course_utils.lessons import NEEDS, LessonError, experiments, find_lessons, needs

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
GENERATED = BOOK / "_generated"
PICTURE = BOOK / "images" / "headline.png"
TOC = BOOK / "_toc.yml"


class BookError(Exception):
    """The book cannot be built. The message says what to do."""


@dataclass(frozen=True)
class Lesson:
    """One lesson of ``lessons.yml``.

    Attributes:
        number: its place in the course.
        slug: the name that its notebook, its records and its exercises share.
        title: what the lesson is called.
        question: what a reader would ask.
        part: title of the part of the course that it belongs to.
    """

    number: int
    slug: str
    title: str
    question: str
    part: str

    @property
    def stem(self) -> str:
        """File name of the notebook, without its suffix."""
        return f"{self.number:02d}_{self.slug}"

    @property
    def notebook(self) -> Path:
        """Where the notebook is, or will be."""
        return ROOT / "notebooks" / f"{self.stem}.ipynb"

    @property
    def built(self) -> bool:
        """Whether the lesson can be taken: its notebook exists."""
        return self.notebook.is_file()


def load_lessons() -> list[Lesson]:
    """Read ``lessons.yml``.

    Returns:
        All lessons, built and planned, in order.

    Raises:
        BookError: if numbers do not count up from 0, or if a notebook is missing from the list.
    """
    parts = yaml.safe_load((BOOK / "lessons.yml").read_text(encoding="utf-8"))["parts"]
    lessons = [Lesson(**lesson, part=part["title"]) for part in parts for lesson in part["lessons"]]
    if [lesson.number for lesson in lessons] != list(range(len(lessons))):
        raise BookError("the numbers in book/lessons.yml must count up from 0 without a gap")
    unlisted = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} - {lesson.stem for lesson in lessons}
    if unlisted:
        raise BookError(f"add {', '.join(sorted(unlisted))} to book/lessons.yml: every notebook is listed there")
    return lessons


def lessons_table(lessons: Iterable[Lesson], notebooks: str = "notebooks") -> str:
    """The table from questions to lessons, as Markdown.

    Args:
        lessons: the lessons to list.
        notebooks: path of the notebooks, relative to the page that the table stands on.

    Returns:
        The table. Built lessons are links, the others are marked as planned.
    """
    rows = ["| | Your question | Lesson |", "| --- | --- | --- |"]
    for part, members in itertools.groupby(lessons, key=lambda lesson: lesson.part):
        rows.append(f"| | **{part}** | |")
        for lesson in members:
            shown = (
                f"[{lesson.title}]({notebooks}/{lesson.stem}.ipynb)" if lesson.built else f"{lesson.title} *(planned)*"
            )
            rows.append(f"| {lesson.number:02d} | {lesson.question} | {shown} |")
    return "\n".join(rows) + "\n"


def table_of_contents(lessons: Iterable[Lesson]) -> str:
    """What ``_toc.yml`` has to contain: our own pages, and the lessons that are built."""
    lines = [
        "# The table of contents of the book. `python book/build.py --write-toc` writes it from lessons.yml and from",
        "# the notebooks that exist; a build stops when it is out of date.",
        "format: jb-book",
        "root: book/intro",
        "parts:",
        "  - caption: Before you start",
        "    chapters:",
        "      - file: book/how_we_measure",
    ]
    built = [lesson for lesson in lessons if lesson.built]
    for part, members in itertools.groupby(built, key=lambda lesson: lesson.part):
        lines += [f"  - caption: {part}", "    chapters:"]
        for lesson in members:
            lines += [
                f"      - file: notebooks/{lesson.stem}",
                f'        title: "{lesson.number:02d} · {lesson.title}"',
            ]
    lines += [
        "  - caption: Look things up",
        "    chapters:",
        "      - file: book/glossary",
        "      - file: book/status",
    ]
    return "\n".join(lines) + "\n"


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _records(root: Path) -> list[store.LessonRecord]:
    return [store.load_lesson(path) for path in sorted(root.glob("*/*.json")) if not path.name.startswith(".")]


def _gib(size_bytes: int | None) -> str:
    return "" if not size_bytes else f"{size_bytes / 2**30:.0f} GiB"


def _machines_table(records: Sequence[store.LessonRecord]) -> str:
    rows = []
    for machine in sorted({record.environment.machine for record in records}):
        mine = sorted((r for r in records if r.environment.machine == machine), key=lambda r: r.recorded_at)
        latest = mine[-1].environment
        if latest.device_kind == "cpu":
            device = f"{latest.device_name}, {latest.cpu_cores} cores"
        else:
            count = f"{latest.gpu_count} × " if latest.gpu_count > 1 else ""
            device = f"{count}{latest.device_name}"
        software = [f"torch {latest.torch}", f"Python {latest.python}"]
        software += [f"CUDA {latest.cuda}"] if latest.device_kind == "cuda" else []
        software += [f"driver {latest.driver}"] if latest.driver else []
        rows.append(
            [
                f"`{machine}`",
                device,
                _gib(latest.gpu_memory_bytes or latest.memory_bytes),
                "<br>".join(software),
                str(len(mine)),
                mine[-1].recorded_at[:10],
            ]
        )
    return _markdown_table(["Machine", "Device", "Memory", "Software", "Lessons", "Last recorded"], rows)


def _lessons_recorded(lessons: Sequence[Lesson], records: Sequence[store.LessonRecord]) -> str:
    machines = sorted({record.environment.machine for record in records})
    found = {(record.lesson, record.environment.machine): record for record in records}
    rows = []
    for lesson in (lesson for lesson in lessons if lesson.built):
        cells = []
        for machine in machines:
            record = found.get((lesson.slug, machine))
            cells.append(f"{record.recorded_at[:10]}, {record.environment.size}" if record else "not yet")
        rows.append([f"[{lesson.number:02d} · {lesson.title}](../notebooks/{lesson.stem}.ipynb)", *cells])
    return _markdown_table(["Lesson", *(f"`{machine}`" for machine in machines)], rows)


def _experiments_table(records: Sequence[store.LessonRecord]) -> str:
    rows = []
    for name in sorted({name for record in records for name in record.experiments}):
        holding = [record for record in records if name in record.experiments]
        kinds = sorted({record.experiments[name].kind for record in holding})
        where = []
        for record in holding:
            now = store.current_fingerprint(record.lesson, name)
            then = record.experiments[name]
            if now is None or now.parameters_hash != then.parameters_hash:
                where.append(f"`{record.environment.machine}` (the notebook has changed: record it again)")
            elif now.code_hash != then.code_hash:
                where.append(f"`{record.environment.machine}` (its code has changed since)")
            else:
                where.append(f"`{record.environment.machine}`")
        rows.append([f"`{name}`", ", ".join(kinds), "<br>".join(where)])
    recorded = {name for record in records for name in record.experiments}
    for lesson in find_lessons(ROOT / "notebooks"):
        for name in experiments(lesson):
            if name not in recorded:
                needed = " and ".join(NEEDS[need] for need in needs(lesson).get(name, ()))
                rows.append([f"`{name}`", "", f"*not recorded yet*{f': needs {needed}' if needed else ''}"])
    rows.sort()
    return _markdown_table(["Experiment", "Kind", "Recorded on"], rows)


def status_page(lessons: Sequence[Lesson]) -> str:
    """What is recorded, where and when, as Markdown.

    Args:
        lessons: all lessons.

    Returns:
        The page. It names what is missing as plainly as what is there.

    Raises:
        course_utils.store.RecordError: if a record is damaged.
    """
    records = _records(store.reference_root())
    own = _records(store.results_root())
    on_gpu = {record.lesson for record in records if record.environment.device_kind != "cpu"}
    built = [lesson for lesson in lessons if lesson.built]
    page = [
        "# What is recorded",
        "",
        "Every figure and every number in this course comes from a **record**: the raw samples of a run, with the "
        "machine, the versions and the day. This page is made from the records each time the book is built.",
        "",
    ]
    if not on_gpu:
        page += [
            "> **No GPU run is recorded yet.** Lessons that need a GPU show what a CPU can show, and say so. To add "
            "yours, run `course record --reference` on a machine with a GPU.",
            "",
        ]
    if records:
        page += ["## Machines", "", _machines_table(records), "## Lessons", "", _lessons_recorded(lessons, records)]
        missing = [lesson for lesson in built if lesson.slug not in on_gpu]
        if on_gpu and missing:
            page += ["Not recorded on a GPU yet: " + ", ".join(lesson.title for lesson in missing) + ".", ""]
    else:
        page += ["Nothing is recorded at all yet. `make record` makes a record on this machine.", ""]
    planned = len(lessons) - len(built)
    if planned:
        page += [f"{len(built)} of {len(lessons)} lessons are built; {planned} are planned and have no records.", ""]
    if records:
        page += [
            "## Experiments",
            "",
            "Each experiment can be opened under its name, in a notebook or in a terminal, for example with "
            f'`recorded("{next(name for record in records for name in record.experiments)}")`.',
            "",
            _experiments_table(records),
        ]
    if own:
        page += [
            "## Your own runs",
            "",
            "These come from `results/` on the machine that built this book. They are not part of the course.",
            "",
            _machines_table(own),
            _lessons_recorded(lessons, own),
        ]
    return "\n".join(page)


def _headline_result(lessons: Sequence[Lesson]) -> Any | None:
    """The result that the landing page shows: the first name in ``lessons.yml`` that has a record, GPUs first."""
    wanted = yaml.safe_load((BOOK / "lessons.yml").read_text(encoding="utf-8"))["headline"]
    records = {lesson.slug: store.records_of(lesson.slug, store.reference_root()) for lesson in lessons}
    holding = [
        (name, record) for name in wanted for record in records[name.split("/")[0]] if name in record.experiments
    ]
    holding.sort(key=lambda pair: pair[1].environment.device_kind == "cpu")
    return store.recorded(holding[0][0], machine=holding[0][1].environment.machine) if holding else None


def headline(lessons: Sequence[Lesson]) -> tuple[str, Any | None]:
    """The landing page's example of a result, as Markdown, and its figure.

    Returns:
        The Markdown, and a matplotlib figure or None when nothing is recorded.

    Raises:
        course_utils.store.RecordError: if the record is damaged.
    """
    result = _headline_result(lessons)
    if result is None:
        missing = (
            "Nothing is recorded yet. `course record --reference` makes the first record; the next build shows it.\n"
        )
        return missing, None
    lesson = next(lesson for lesson in lessons if lesson.slug == result.name.split("/")[0])
    text = [
        f"![Recorded result of {result.name}](_generated/headline.svg)",
        "",
        f"From lesson [{lesson.number:02d} · {lesson.title}](../notebooks/{lesson.stem}.ipynb). "
        f"{' '.join(result.notes)} {result.environment.caption}.",
        "",
    ]
    # A sweep is told at its last value: the figure shows the others.
    shown = result.points[-1].comparison if result.kind == "sweep" else result
    if result.kind == "sweep":
        text += [f"At {result.over} = {result.points[-1].value}, against {shown.baseline}:", ""]
    if shown.kind == "comparison":
        text += [f"- **{case.label}**: {case.words}" for case in shown if not case.is_baseline] + [""]
    return "\n".join(text), result.plot()


def _write(path: Path, text: str) -> None:
    """Write only what differs: Sphinx renders a page again when its file is newer."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


def _write_figure(path: Path, figure: Any) -> None:
    import io

    import matplotlib as mpl

    buffer = io.StringIO()
    # Fixed ids and no date, so that the same record gives the same file.
    with mpl.rc_context({"svg.hashsalt": "course", "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    _write(path, buffer.getvalue())


def generate(lessons: Sequence[Lesson]) -> None:
    """Write the generated pages: the status page and what the landing page includes.

    Raises:
        BookError: if a record cannot be used.
    """
    try:
        status = status_page(lessons)
        example, figure = headline(lessons)
    except store.RecordError as error:
        raise BookError(f"a record cannot be shown: {error}") from error
    except LessonError as error:
        raise BookError(str(error)) from error
    _write(BOOK / "status.md", status)
    _write(GENERATED / "lessons.md", lessons_table(lessons, "../notebooks"))
    _write(GENERATED / "headline.md", example)
    if figure is not None:
        _write_figure(GENERATED / "headline.svg", figure)


def write_picture(path: Path) -> None:
    """Draw README's picture: the trial of the timers, from its newest record.

    Raises:
        course_utils.store.RecordError: if there is no record of it, or if it is damaged.
    """
    from course_utils.timer_quality import timer_quality

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(timer_quality().plot()._repr_png_())


def check_toc(lessons: Sequence[Lesson]) -> None:
    """Stop when ``_toc.yml`` and the notebooks part.

    Raises:
        BookError: if they do.
    """
    if not TOC.is_file() or TOC.read_text(encoding="utf-8") != table_of_contents(lessons):
        raise BookError("book/_toc.yml is out of date: run `python book/build.py --write-toc` and commit it")


def build(output: Path, fresh: bool = False) -> Path:
    """Build the book.

    Args:
        output: folder that gets ``_build``.
        fresh: whether to throw an earlier build away first.

    Returns:
        The page to open.

    Raises:
        BookError: if anything is missing, or if Jupyter Book warns.
    """
    lessons = load_lessons()
    check_toc(lessons)
    generate(lessons)
    built = output / "_build"
    html = built / "html"
    known = {lesson.stem for lesson in lessons if lesson.built}
    gone = any(page.stem not in known for page in (html / "notebooks").glob("*.html"))
    styles = [(page, html / "_static" / page.name) for page in (BOOK / "_static").glob("*.css")]
    restyled = any(copy.exists() and copy.read_bytes() != page.read_bytes() for page, copy in styles)
    if fresh or gone or restyled:
        # Sphinx leaves the page of a notebook that is gone, where search would still find it, and the old style sheet.
        shutil.rmtree(built, ignore_errors=True)
    jupyter_book = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command = [*jupyter_book, "build", ".", "--config", "book/_config.yml", "--toc", "book/_toc.yml"]
    command += ["--path-output", str(output), "-W", "--keep-going", "--quiet"]
    # Python's warnings about the tools' own code are not about this book; Sphinx's warnings are not affected.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    # Warnings go to stderr and are seen at once; what Jupyter Book says besides matters only when it fails.
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        # Sphinx does not repeat a warning about a page that it has cached: the next build must read all pages again.
        shutil.rmtree(built / ".doctrees", ignore_errors=True)
        raise BookError("the book has errors or warnings, listed above; mend them and run `make book` again")
    for source_map in html.rglob("*.map"):
        # Only the authors of the theme debug its scripts, and the maps are 40% of a small book.
        source_map.unlink()
    return html / "index.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: instead of ``sys.argv``.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description="Build the book from the notebooks and the records.")
    parser.add_argument("--output", type=Path, default=BOOK, help="folder that gets _build (default: book)")
    parser.add_argument("--fresh", action="store_true", help="throw an earlier build away first")
    parser.add_argument("--lessons-table", action="store_true", help="print the table of lessons for README.md")
    parser.add_argument("--write-picture", action="store_true", help="draw README's picture again")
    parser.add_argument("--write-toc", action="store_true", help="rewrite book/_toc.yml")
    options = parser.parse_args(arguments)
    try:
        if options.lessons_table:
            print(lessons_table(load_lessons()), end="")
            return 0
        if options.write_picture:
            write_picture(PICTURE)
            return 0
        if options.write_toc:
            _write(TOC, table_of_contents(load_lessons()))
            return 0
        started = time.perf_counter()
        page = build(options.output.resolve(), options.fresh)
    except BookError as error:
        print(f"book: {error}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in page.parent.rglob("*") if path.is_file())
    seconds = time.perf_counter() - started
    print(f"The book is built: {size / 2**20:.1f} MiB in {seconds:.0f} s. Open it in a browser:\n{page.as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
