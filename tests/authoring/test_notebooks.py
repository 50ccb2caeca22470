"""Every lesson has the same anatomy, is recorded, and is in the book."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from authoring.course_texts import ANCHOR, prose_only, text_files
from authoring.figures_in_text import figure
from authoring.normal_form import check
from authoring.slides import slides_notebook
from course_utils import lesson_order
from course_utils.records import store
from course_utils.records.code_hash import code_hash
from course_utils.records.lessons import Lesson, experiments, find_lessons, needs
from course_utils.records.notebook_files import parsed_cells, read_notebook
from tests.authoring import lesson_form

ROOT = Path(__file__).resolve().parents[2]
LESSONS = find_lessons()
# Calls that measure something and may be named with ``name="slug/experiment"``.
MEASURING = frozenset({"ceilings", "compare", "curves", "keep_card", "measure"})
MEASURING |= {"run_ranks", "sweep", "tabulate", "trace_memory"}


@dataclass(frozen=True)
class Anatomy:
    """What a lesson consists of, and how long it may be."""

    headings: tuple[str, ...]
    on_slides: tuple[str, ...]
    solutions: str  # the section that holds the solutions
    cells: int = 40
    code_lines: int = 15
    words: int = 2400
    minutes: int = 45
    slides: int = 12


ANATOMY = Anatomy(
    headings=(
        *("The claim", "Predict", "How it works", "The technique", "Experiment", "When it does not help"),
        *("On a GPU", "In your own program", "Exercises", "Verdict"),
    ),
    on_slides=("The claim", "How it works", "Experiment", "On a GPU", "Verdict"),
    solutions="Exercises",
)
# A lesson may show what an older edition recorded.
KNOWN = {name for each in LESSONS for name in experiments(each)}.union(
    *(store.load_lesson(path).experiments for path in store.reference_root().glob("*/*.json"))
)
ALL_TEXTS = "\n".join(path.read_text("utf-8") for path in [*text_files(), *ROOT.glob("course_utils/lessons/*/*.yml")])
MEASURED = {"Experiment", "When it does not help"}
# Two lessons are about programs of several processes, and may be longer.
SEVERAL_PROCESSES = replace(ANATOMY, cells=50, words=3200, minutes=60)
LONGEST_SOLUTION = 25
EXERCISE = re.compile(r"^### Exercise (\d+) · (.+) · (\d+) min$", re.MULTILINE)
# The records are for the slides, which have the time: a path of five minutes tells the verdict.
DEMO_SECTIONS = ("The claim", "Predict", "How it works", "Verdict")


def anatomy_of(number: int) -> Anatomy:
    return SEVERAL_PROCESSES if number in map(lesson_order.number, ("ddp", "fsdp")) else ANATOMY


@dataclass(frozen=True)
class Cell:
    """One cell: where it stands, and for code what it calls."""

    number: int
    is_code: bool
    section: str
    part: str  # the last level-3 heading of the section
    source: str
    tags: tuple[str, ...]
    tree: ast.AST

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """All calls, with the last part of the name of what is called."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield ast.unparse(node.func).split(".")[-1], node

    def called(self) -> set[str]:
        return {name for name, _ in self.calls()}


def cut(path: Path) -> list[Cell]:
    """The cells of a notebook with the headings that they stand under."""
    notebook = read_notebook(path)
    trees = parsed_cells(notebook, path.name)
    cells = []
    section = part = ""
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell["cell_type"] == "markdown":
            for level, heading in re.findall(r"^(##|###) (.+?)\s*$", cell["source"], re.MULTILINE):
                section, part = (heading, "") if level == "##" else (section, heading)
        tags = tuple(cell["metadata"].get("tags", []))
        tree = trees.get(number, ast.Module([], []))
        cells.append(Cell(number, number in trees, section, part, cell["source"], tags, tree))
    return cells


def unfolded(text: str) -> str:
    """Markdown without folds, those within folds included, and without comments."""
    while (
        rest := re.sub(rf"<details>(?:(?!<details>).)*?</details>|<!--.*?-->|{ANCHOR}", "", text, flags=re.DOTALL)
    ) != text:
        text = rest
    return text


# The rules


def problems_of_length(lesson: Lesson, cells: Sequence[Cell]) -> Iterator[str]:
    """Cells, lines of code, words, minutes and slides. What is folded costs nobody time."""
    most = anatomy_of(lesson.number)
    words = sum(len(unfolded(cell.source).split()) for cell in cells if not cell.is_code)
    slides = [cell["metadata"]["slideshow"]["slide_type"] for cell in slides_notebook(lesson)["cells"]]
    lengths = {
        "cells": (len(cells), most.cells),
        "words of Markdown": (words, most.words),
        "minutes": (int(figure(f"time {lesson.slug}").split()[0]), most.minutes),
        "slides": (sum(each in ("slide", "subslide") for each in slides), most.slides),
    }
    for what, (length, longest) in lengths.items():
        if length > longest:
            yield f"it has {length} {what}; a lesson has {longest} at most"
    for cell in cells:
        # Blank lines do not count: ruff puts two after each function.
        length = len(re.findall(r"^.*\S", cell.source, re.MULTILINE))
        longest = max(LONGEST_SOLUTION, most.code_lines) if "hide-cell" in cell.tags else most.code_lines
        if cell.is_code and length > longest:
            yield f"cell {cell.number} has {length} lines; split it ({longest} at most)"


def problems_of_text(cells: Sequence[Cell], number: int) -> Iterator[str]:
    """Title, question, what the learner gets and needs, headings in order, dated sources."""
    for before, cell in zip([None, *cells], cells, strict=False):
        # A folded cell says itself what it is for; a record right under its experiment needs no words.
        introduced = "hide-cell" in cell.tags or (
            before is not None and "experiment" in before.tags and "recorded" in cell.called()
        )
        if cell.is_code and (before is None or before.is_code) and not introduced:
            yield f"cell {cell.number} has no Markdown cell before it that says what it is for"
    if not re.match(rf"# {number:02d} · \S.*\n\n\*[^*]+\?\*", cells[0].source):
        yield f"it does not begin with '# {number:02d} · Title' and the question in italics"
    before_sections = "\n".join(cell.source for cell in cells if not cell.section)
    for words in ("You will be able to", "You need", "Time"):
        if f"**{words}" not in before_sections:
            yield f"'**{words}**' is missing before the first section"
    whole = "\n".join(cell.source for cell in cells if not cell.is_code)
    wanted = anatomy_of(number).headings
    if [heading for heading in re.findall(r"^## (.+?)\s*$", whole, re.MULTILINE) if heading in wanted] != list(wanted):
        yield f"its sections are not these, in this order: {', '.join(wanted)}"
    sources = re.search(r"^#+ Sources\b.*?$(.*?)(?=^#|\Z)", whole, re.MULTILINE | re.DOTALL)
    links = [line for line in (sources[1] if sources else "").splitlines() if "](" in line or "http" in line]
    if not links:
        yield "it has no 'Sources' with links"
    for line in links:
        if not re.search(r"\b(?:19|20)\d\d\b|\d+\.\d+", re.sub(r"\]\([^)]*\)|<?https?://\S+", "", line)):
            yield f"a source gives neither version nor date: {line.strip()}"


def problems_of_code(cells: Sequence[Cell], number: int) -> Iterator[str]:
    """What code cells must and must not do."""
    to_paste = [cell for cell in cells if "standalone" in cell.tags]
    if not any(cell.section == "In your own program" for cell in to_paste):
        yield "the section '## In your own program' has no cell tagged standalone: code to paste, free of course_utils"
    for cell in to_paste:
        if "course_utils" in cell.source:
            yield f"cell {cell.number} is tagged standalone and names course_utils"
    cells = [cell for cell in cells if cell.is_code]
    if "environment" not in cells[0].called():
        yield "its first code cell does not call environment()"
    for name in ("predict", "reveal"):
        if not any(name in cell.called() for cell in cells):
            yield f"it never calls {name}()"
    for cell in cells:
        nodes = list(ast.walk(cell.tree))
        if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
            yield f"cell {cell.number} has a star import"
        defines_only = all(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in cell.tree.body)
        measures = cell.called() & (MEASURING | {"environment", "predict"})
        if measures and "experiment" not in cell.tags and not defines_only:
            yield f"cell {cell.number} measures or asks, and is not tagged experiment"


def problems_of_experiments(cells: Sequence[Cell], lesson: Lesson, known: Iterable[str]) -> Iterator[str]:
    """Names of experiments and of records."""
    slug, new = lesson.slug, lesson_form.has_new_form(lesson)
    shown = False
    named = set()
    for cell in cells:
        for called, call in cell.calls():
            given = any(keyword.arg == "name" for keyword in call.keywords)
            if called in MEASURING - {"ceilings"} and (new or cell.section in MEASURED):
                if not given or f'"{slug}/' not in cell.source:  # in the call, or in a line before it
                    yield f'cell {cell.number}: {called}(...) needs name="{slug}/...", as plain text'
                named.add(cell.section)
            if called == "recorded":
                name = getattr(call.args[0], "value", None)
                shown |= (new or cell.section == "Experiment") and "stable" in cell.tags
                if name not in known:
                    yield f"cell {cell.number}: recorded({ast.unparse(call.args[0])}) names no experiment"
    for section in sorted(MEASURED - named) if not new else ():
        yield f"the section '## {section}' measures nothing that has a name"
    if not shown:
        yield "no cell tagged stable shows recorded(...)"


def problems_of_exercises(cells: Sequence[Cell], number: int) -> Iterator[str]:
    """Numbered, named and timed exercises with checks, and solutions that run and are collapsed."""
    section = anatomy_of(number).solutions
    imports = [node for cell in cells for node in ast.walk(cell.tree) if isinstance(node, ast.ImportFrom)]
    of_checks = [node for node in imports if re.fullmatch(r"course_utils\.lessons\.\w+(\.checks)?", node.module or "")]
    checks = {alias.asname or alias.name for node in of_checks for alias in node.names}
    asked = [cell for cell in cells if cell.section == "Exercises"]
    solutions = [cell for cell in cells if cell.section == section and "hide-cell" in cell.tags]
    numbers = [int(match[0]) for cell in asked for match in EXERCISE.findall(cell.source)]
    headings = re.findall(r"^### ", "\n".join(cell.source for cell in asked), re.MULTILINE)
    if len(numbers) < 2 or numbers != list(range(1, len(headings) + 1)):
        yield f"its exercises are numbered {numbers}: at least two are needed, '### Exercise 1 · name · 5 min'"
    for number in numbers:
        for what, those in (("code cell", [cell for cell in asked if cell not in solutions]), ("solution", solutions)):
            current = [cell for cell in those if cell.is_code and re.match(rf"Exercise {number}\b", cell.part)]
            if not any(ast.unparse(call.func).split(".")[0] in checks for cell in current for _, call in cell.calls()):
                yield f"exercise {number} has no {what} that calls its check"


def problems_of_the_kit(cells: Sequence[Cell], number: int) -> Iterator[str]:
    """The five-minute path and the slides: what has to be on them, and what must not be."""
    demo = [cell for cell in cells if "demo" in cell.tags]
    starts = [cell for cell in cells if {"slide", "subslide"} & set(cell.tags)]
    for tag, chosen, wanted in (
        ("demo", demo, DEMO_SECTIONS),
        ("slide or subslide", starts, anatomy_of(number).on_slides),
    ):
        if cells[0] not in chosen:
            yield f"the title has no tag {tag}"
        there = re.findall(r"^## (.+?)\s*$", "\n".join(cell.source for cell in chosen), re.MULTILINE)
        for heading in wanted:
            if heading not in there:
                yield f"no cell of '## {heading}' is tagged {tag}"
        for cell in chosen:
            # A cell that ends with the heading of the exercises is cut off there; one under it is not for the room.
            if cell.section in ("Exercises", "Solutions") and not re.search(r"^## ", cell.source, re.MULTILINE):
                yield f"cell {cell.number} is tagged {tag} and belongs to '## {cell.section}'"
    if not any("experiment" in cell.tags and cell.called() & MEASURING for cell in demo):
        yield "its five-minute path measures nothing: tag one experiment demo"
    if not any("reveal" in cell.called() for cell in demo):
        yield "its five-minute path never reveals the prediction"


def problems_of_anatomy(lesson: Lesson, known: Iterable[str]) -> list[str]:
    """All that is wrong with a lesson's notebook."""
    cells = cut(lesson.path)
    if lesson_form.has_new_form(lesson):
        return [*lesson_form.problems(lesson), *problems_of_experiments(cells, lesson, known)]
    return [
        *problems_of_length(lesson, cells),
        *problems_of_text(cells, lesson.number),
        *problems_of_code(cells, lesson.number),
        *problems_of_experiments(cells, lesson, known),
        *problems_of_exercises(cells, lesson.number),
        *problems_of_the_kit(cells, lesson.number),
    ]


# The lessons

each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


@each_lesson
def test_anatomy_and_normal_form(lesson: Lesson):
    problems = problems_of_anatomy(lesson, known=KNOWN)
    problems += check(lesson.path)
    assert not problems, "\n".join([lesson.path.name, *problems])


@each_lesson
def test_records(lesson: Lesson):
    # What needs a GPU, say, may wait until somebody records it there; the lesson then says that it is not recorded.
    missing = set(experiments(lesson)) - set(needs(lesson))
    for path in store.reference_root().glob(f"*/{lesson.slug}.json"):
        record = store.load_lesson(path)
        for name, experiment in record.experiments.items():
            place = f"{path.parent.name}/{path.name}, {name}"
            record.result(name)  # an error if it cannot be read back
            if name not in experiments(lesson):  # what a text still says stays readable; only an older edition ran it
                assert name in ALL_TEXTS, f"{place}: no lesson measures it and no text reads it: take it out"
            elif experiment.code_hash != code_hash(lesson, name):
                warnings.warn(f"{place}: the code has changed since it was recorded", stacklevel=1)
        missing -= set(record.experiments)
    assert not missing, f"run: course record {lesson.name} --reference"


@each_lesson
def test_what_nobody_has_recorded_is_said_once(lesson: Lesson):
    words = (
        r"\bno (?:GPU )?(?:run|record)s?\b[^.;]* (?:recorded|yet)|(?:not|never|nothing|nobody has) (?:been )?recorded"
    )
    missing = re.compile(words, re.IGNORECASE)
    said = []
    for cell in read_notebook(lesson.path)["cells"]:
        outputs = cell.get("outputs", [])
        shown = [output.get("data", {}).get("text/plain", output.get("text", "")) for output in outputs]
        if cell["cell_type"] == "markdown":
            shown = [prose_only(cell["source"])]
        said += [match[0] for text in shown for match in missing.finditer(text)]
    assert len(said) <= 1, said
