"""Every lesson has the same anatomy, is recorded, and is in the book."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
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
MEASURING = {"compare", "curves", "keep_card", "measure", "run_ranks", "sweep", "tabulate"}
# A lesson may show what an older edition recorded.
KNOWN = {name for each in LESSONS for name in experiments(each)}.union(
    *(store.load_lesson(path).experiments for path in store.reference_root().glob("*/*.json"))
)
ALL_TEXTS = "\n".join(path.read_text("utf-8") for path in [*text_files(), *ROOT.glob("course_utils/lessons/*/*.yml")])


def problems_of_experiments(lesson: Lesson) -> Iterator[str]:
    """Names of experiments and of records."""
    notebook = read_notebook(lesson.path)
    shown = False
    for number, tree in parsed_cells(notebook, lesson.path.name).items():
        cell = notebook["cells"][number - 1]
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            called = ast.unparse(call.func).split(".")[-1]
            given = any(keyword.arg == "name" for keyword in call.keywords)
            if called in MEASURING and not (given and f'"{lesson.slug}/' in cell["source"]):
                yield f'cell {number}: {called}(...) needs name="{lesson.slug}/...", as plain text, there or above it'
            if called == "recorded":
                shown |= "stable" in cell["metadata"].get("tags", [])
                if getattr(call.args[0], "value", None) not in KNOWN:
                    yield f"cell {number}: recorded({ast.unparse(call.args[0])}) names no experiment"
    if not shown:
        yield "no cell tagged stable shows recorded(...)"


each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


@each_lesson
def test_anatomy_and_form(lesson: Lesson):
    problems = [*lesson_form.problems(lesson), *problems_of_experiments(lesson), *check(lesson.path)]
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
