"""Every lesson has the same anatomy, is recorded, and is in the book."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from authoring.markdown_texts import text_files
from authoring.notebook_form import check
from course_utils.lesson_notebooks import Lesson, experiments, find_lessons, needs, read_notebook
from course_utils.results import store
from course_utils.results.code_hash import code_hash
from tests.authoring import lesson_form
from tests.made_up_notebooks import parsed_cells

ROOT = Path(__file__).resolve().parents[2]
LESSONS = find_lessons()
# Calls that measure something and may be named with ``name="slug/experiment"``.
MEASURING = frozenset({"ceilings", "compare", "curves", "keep_card", "measure"})
MEASURING |= {"run_ranks", "sweep", "tabulate", "trace_memory"}


# A lesson may show what an older edition recorded.
KNOWN = {name for each in LESSONS for name in experiments(each)}.union(
    *(store.load_lesson(path).experiments for path in store.reference_root().glob("*/*.json"))
)
ALL_TEXTS = "\n".join(path.read_text("utf-8") for path in [*text_files(), *ROOT.glob("course_utils/lessons/*/*.yml")])


@dataclass(frozen=True)
class Cell:
    """One cell of code: where it stands, and what it calls."""

    number: int
    source: str
    tags: tuple[str, ...]
    tree: ast.AST

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """All calls, with the last part of the name of what is called."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield ast.unparse(node.func).split(".")[-1], node


def cut(path: Path) -> list[Cell]:
    """The code cells of a notebook."""
    notebook = read_notebook(path)
    trees = parsed_cells(notebook, path.name)
    cells = enumerate(notebook["cells"], start=1)
    return [
        Cell(number, cell["source"], tuple(cell["metadata"].get("tags", [])), trees[number])
        for number, cell in cells
        if number in trees
    ]


def problems_of_experiments(cells: Sequence[Cell], lesson: Lesson, known: Iterable[str]) -> Iterator[str]:
    """Names of experiments and of records."""
    slug, shown = lesson.slug, False
    for cell in cells:
        for called, call in cell.calls():
            given = any(keyword.arg == "name" for keyword in call.keywords)
            if called in MEASURING - {"ceilings"} and not (given and f'"{slug}/' in cell.source):
                yield f'cell {cell.number}: {called}(...) needs name="{slug}/...", as plain text, there or above it'
            if called == "recorded":
                name = getattr(call.args[0], "value", None)
                shown |= "stable" in cell.tags
                if name not in known:
                    yield f"cell {cell.number}: recorded({ast.unparse(call.args[0])}) names no experiment"
    if not shown:
        yield "no cell tagged stable shows recorded(...)"


# The lessons

each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


@each_lesson
def test_anatomy_and_form(lesson: Lesson):
    problems = [*lesson_form.problems(lesson), *problems_of_experiments(cut(lesson.path), lesson, KNOWN)]
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
