"""Every lesson has the same anatomy, is recorded, and is in the book.

The rules are functions that return what is wrong, so that the second half of this file can show that they see it.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from authoring.lesson_files import load_lessons
from authoring.normal_form import check
from course_utils.records import store
from course_utils.records.fingerprint import MEASURING
from course_utils.records.lessons import (
    Lesson,
    LessonError,
    experiments,
    find_lessons,
    fingerprint,
    needs,
    notebooks_root,
)
from course_utils.records.notebook_files import parsed_cells, read_notebook
from tests.made_up_notebooks import code, lesson_of, text
from tests.made_up_records import CPU

ROOT = Path(__file__).resolve().parents[2]
LESSONS = find_lessons()

HEADINGS = ("The claim", "Predict", "How it works", "Smallest example", "Same answer first", "Experiment")
HEADINGS += ("Recorded result", "Reading the result", "When it does not help", "Exercises", "Verdict", "Solutions")
CELLS = range(20, 51)
LONGEST_CODE_CELL = 25
EXERCISE = re.compile(r"^### Exercise (\d+) · (.+) · (\d+) min$", re.MULTILINE)
# The reading and the record are for the slides, which have the time: a path of five minutes tells the verdict.
DEMO_SECTIONS = ("The claim", "Predict", "How it works", "Verdict")
SLIDE_SECTIONS = ("The claim", "How it works", "Recorded result", "Reading the result", "Verdict")


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


# The rules


def problems_of_text(cells: Sequence[Cell], number: int) -> Iterator[str]:
    """Length; title, question, what the learner gets and needs, headings in order, dated sources."""
    if len(cells) not in CELLS:
        yield f"it has {len(cells)} cells; a lesson has {CELLS.start} to {CELLS.stop - 1}"
    for before, cell in zip([None, *cells], cells, strict=False):
        # Blank lines do not count: ruff puts two after each function.
        length = len(re.findall(r"^.*\S", cell.source, re.MULTILINE))
        if cell.is_code and length > LONGEST_CODE_CELL:
            yield f"cell {cell.number} has {length} lines; split it ({LONGEST_CODE_CELL} at most)"
        if cell.is_code and (before is None or before.is_code):
            yield f"cell {cell.number} has no Markdown cell before it that says what it is for"
    if not re.match(rf"# {number:02d} · \S.*\n\n\*[^*]+\?\*", cells[0].source):
        yield f"it does not begin with '# {number:02d} · Title' and the question in italics"
    before_sections = "\n".join(cell.source for cell in cells if not cell.section)
    for words in ("You will be able to", "You need", "Time"):
        if f"**{words}" not in before_sections:
            yield f"'**{words}**' is missing before the first section"
    whole = "\n".join(cell.source for cell in cells if not cell.is_code)
    headings = [heading for heading in re.findall(r"^## (.+?)\s*$", whole, re.MULTILINE) if heading in HEADINGS]
    if headings != list(HEADINGS):
        yield f"its sections are not these, in this order: {', '.join(HEADINGS)}"
    sources = re.search(r"^#+ Sources\b.*?$(.*?)(?=^#|\Z)", whole, re.MULTILINE | re.DOTALL)
    links = [line for line in (sources[1] if sources else "").splitlines() if "](" in line or "http" in line]
    if not links:
        yield "it has no 'Sources' with links"
    for line in links:
        if not re.search(r"\b(?:19|20)\d\d\b|\d+\.\d+", re.sub(r"\]\([^)]*\)|<?https?://\S+", "", line)):
            yield f"a source gives neither version nor date: {line.strip()}"


def problems_of_code(cells: Sequence[Cell]) -> Iterator[str]:
    """What code cells must and must not do."""
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


def problems_of_experiments(cells: Sequence[Cell], slug: str, known: Iterable[str]) -> Iterator[str]:
    """Names of experiments and of records."""
    shown = False
    named = set()
    for cell in cells:
        for called, call in cell.calls():
            given = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
            if called in MEASURING - {"ceilings"} and cell.section in ("Experiment", "When it does not help"):
                if not given or not str(getattr(given[0], "value", "")).startswith(f"{slug}/"):
                    yield f'cell {cell.number}: {called}(...) needs name="{slug}/...", as plain text'
                named.add(cell.section)
            if called == "recorded":
                name = getattr(call.args[0], "value", None)
                shown |= cell.section == "Recorded result" and "stable" in cell.tags
                if name not in known:
                    yield f"cell {cell.number}: recorded({ast.unparse(call.args[0])}) names no experiment"
    for section in sorted({"Experiment", "When it does not help"} - named):
        yield f"the section '## {section}' measures nothing that has a name"
    if not shown:
        yield "the section '## Recorded result' has no cell tagged stable that shows recorded(...)"


def problems_of_exercises(cells: Sequence[Cell]) -> Iterator[str]:
    """Numbered, named and timed exercises with checks, and solutions that run and are collapsed."""
    imports = [node for cell in cells for node in ast.walk(cell.tree) if isinstance(node, ast.ImportFrom)]
    of_checks = [node for node in imports if re.fullmatch(r"course_utils\.lessons\.\w+(\.checks)?", node.module or "")]
    checks = {alias.asname or alias.name for node in of_checks for alias in node.names}
    asked = [cell for cell in cells if cell.section == "Exercises"]
    solutions = [cell for cell in cells if cell.section == "Solutions"]
    numbers = [int(match[0]) for cell in asked for match in EXERCISE.findall(cell.source)]
    headings = re.findall(r"^### ", "\n".join(cell.source for cell in asked), re.MULTILINE)
    if len(numbers) < 2 or numbers != list(range(1, len(headings) + 1)):
        yield f"its exercises are numbered {numbers}: at least two are needed, '### Exercise 1 · name · 5 min'"
    for cell in solutions:
        if cell.is_code and "hide-cell" not in cell.tags:
            yield f"cell {cell.number} is a solution without the tag hide-cell"
    for number in numbers:
        for what, those in (("code cell", asked), ("solution", solutions)):
            current = [cell for cell in those if cell.is_code and re.match(rf"Exercise {number}\b", cell.part)]
            if not any(ast.unparse(call.func).split(".")[0] in checks for cell in current for _, call in cell.calls()):
                yield f"exercise {number} has no {what} that calls its check"


def problems_of_the_kit(cells: Sequence[Cell]) -> Iterator[str]:
    """The five-minute path and the slides: what has to be on them, and what must not be."""
    demo = [cell for cell in cells if "demo" in cell.tags]
    starts = [cell for cell in cells if {"slide", "subslide"} & set(cell.tags)]
    for tag, chosen, wanted in (("demo", demo, DEMO_SECTIONS), ("slide or subslide", starts, SLIDE_SECTIONS)):
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
    return [
        *problems_of_text(cells, lesson.number),
        *problems_of_code(cells),
        *problems_of_experiments(cells, lesson.slug, known),
        *problems_of_exercises(cells),
        *problems_of_the_kit(cells),
    ]


def problems_of_records(lesson: Lesson, root: Path) -> tuple[list[str], list[str]]:
    """What is wrong with a lesson's records, and what a reader will merely be told: changed code."""
    problems, notices = [], []
    # What needs a GPU, say, may wait until somebody records it there; the lesson then says that it is not recorded.
    missing = set(experiments(lesson)) - set(needs(lesson))
    for path in sorted(root.glob(f"*/{lesson.slug}.json")):
        record = store.load_lesson(path)
        for name, experiment in record.experiments.items():
            place = f"{path.parent.name}/{path.name}, {name}"
            try:
                now = fingerprint(lesson.path, name)
            except LessonError:
                problems.append(f"{place}: the notebook has no such experiment")
                continue
            missing.discard(name)
            if experiment.parameters_hash != now.parameters_hash:
                problems.append(f"{place}: recorded with other sizes than the notebook has now")
            elif experiment.code_hash != now.code_hash:
                notices.append(f"{place}: the code has changed since it was recorded")
    problems += [f"{name} is in no record; run: course record {lesson.name} --reference" for name in sorted(missing)]
    return problems, notices


# The lessons

each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


def test_every_notebook_is_a_lesson():
    names = {path.name for path in notebooks_root().glob("*.ipynb")}
    assert names == {lesson.path.name for lesson in LESSONS}, "name a notebook NN_slug.ipynb"
    assert {lesson.slug for lesson in LESSONS} >= {"measuring", "pinned_memory"}


@each_lesson
def test_anatomy_and_normal_form(lesson: Lesson):
    problems = problems_of_anatomy(lesson, known=[name for each in LESSONS for name in experiments(each)])
    problems += check(lesson.path)
    assert not problems, "\n".join([lesson.path.name, *problems])


@each_lesson
def test_records(lesson: Lesson):
    problems, notices = problems_of_records(lesson, store.reference_root())
    for path in store.reference_root().glob(f"*/{lesson.slug}.json"):
        record = store.load_lesson(path)
        for name in record.experiments:
            record.result(name)  # an error if it cannot be read back
    for notice in notices:
        warnings.warn(notice, stacklevel=1)
    assert not problems, "\n".join(problems)


@each_lesson
def test_in_the_book_under_the_same_title(lesson: Lesson):
    contents = (ROOT / "book" / "_toc.yml").read_text(encoding="utf-8")
    assert f"notebooks/{lesson.name}" in contents, "run `make refresh`"
    assert lesson.title == load_lessons()[lesson.number].title


@each_lesson
def test_no_lesson_that_is_there_is_called_planned(lesson: Lesson):
    words = "\n\n".join(cell.source for cell in cut(lesson.path))
    planned = re.findall(r"\b(\d\d)\b[^.;:\n]{0,60}\(planned\)", words)
    assert not {int(number) for number in planned} & {other.number for other in LESSONS}


# The rules see what is wrong

GOOD = [
    text("# 05 · Things\n\n*When are things fast?*", "demo", "slide"),
    text("**You will be able to** tell things apart.\n\n**You need** nothing.\n\n**Time**: 20 min"),
    code(
        "from course_utils import compare\nfrom course_utils.lessons.things.checks import test\nenvironment()",
        "experiment",
    ),
    text("## The claim\nThings are faster.", "demo", "slide"),
    text("## Predict", "demo"),
    code("guess = predict('How many times faster?')\nguess", "demo", "experiment"),
    text("## How it works\nLike so.", "demo", "slide"),
    text("## Smallest example"),
    code("thing = 1"),
    text("## Same answer first"),
    code("assert thing == 1"),
    text("## Experiment"),
    code("r = compare({'a': f, 'b': g}, name='things/main', parameters={'n': 1})", "demo", "experiment"),
    text("The figure."),
    code("guess.reveal(r['b'])", "demo", "experiment"),
    text("## Recorded result", "demo", "slide"),
    code("recorded('things/main')", "demo", "stable"),
    text("## Reading the result\nIt is so.", "demo", "slide"),
    text("## When it does not help"),
    code("compare({'a': f, 'b': h}, name='things/small')", "experiment"),
    text("## Exercises"),
    text("### Exercise 1 · Find it · 5 min\nDo it."),
    code("answer = None\ntest(answer)", "experiment"),
    text("### Exercise 2 · Mend it · 10 min\nDo it."),
    code("answer = None\ntest(answer)", "experiment"),
    text(
        "## Verdict\nIt depends.\n\n### Sources\n- [PyTorch 2.13](https://p.org)\n- [B, 2024](https://b.org)",
        "demo",
        "slide",
    ),
    text("## Solutions\n\n### Exercise 1\nLike this."),
    code("test(1)", "hide-cell"),
    text("### Exercise 2\nLike this."),
    code("test(2)", "hide-cell"),
]
KNOWN = ("things/main", "things/small")


def test_a_good_lesson_has_no_problems(tmp_path: Path):
    assert problems_of_anatomy(lesson_of(tmp_path, *GOOD), KNOWN) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# 05 · Things", "# 5. Things", "does not begin with '# 05 · Title'"),
        ("*When are things fast?*", "When are things fast?", "the question in italics"),
        ("**Time**", "Time", "'**Time**' is missing"),
        ("## Predict", "## Guess", "sections are not these"),
        ("## Verdict", "## Predict\n\n## Verdict", "in this order"),
        ("[B, 2024]", "[B]", "neither version nor date: - [B](https://b.org)"),
        ("### Sources", "### Links", "no 'Sources' with links"),
        ("environment()", "1", "first code cell does not call environment()"),
        ("predict('How many times faster?')", "None", "never calls predict()"),
        ("import compare", "import *", "star import"),
        ("thing = 1", "thing = 1\nmeasure(f)", "is not tagged experiment"),
        ("thing = 1", "\n".join(f"x = {n}" for n in range(26)), "has 26 lines"),
        ("name='things/main', ", "", 'needs name="things/..."'),
        ("name='things/small'", "name=f'things/{small}'", 'needs name="things/..."'),
        ("compare({'a': f, 'b': h}, name='things/small')", "h()", "'## When it does not help' measures nothing"),
        ("recorded('things/main')", "recorded('things/mane')", "names no experiment"),
        ("recorded('things/main')", "1", "no cell tagged stable that shows recorded"),
        ("things.checks import test", "things.checks import other", "exercise 1 has no code cell that calls its check"),
        ("· Find it · 5 min", "Find it (5 min)", "its exercises are numbered [2]"),
        ("### Exercise 2 · Mend it · 10 min", "### Exercise 3 · Mend it · 10 min", "are numbered [1, 3]"),
        ("test(2)", "2", "exercise 2 has no solution that calls its check"),
    ],
)
def test_a_rule_sees_what_is_wrong(tmp_path: Path, old: str, new: str, message: str):
    assert any(old in cell["source"] for cell in GOOD), old
    broken = [{**cell, "source": cell["source"].replace(old, new)} for cell in GOOD]
    problems = problems_of_anatomy(lesson_of(tmp_path, *broken), KNOWN)
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (GOOD[:15], "it has 15 cells"),
        ([*GOOD, *[text("More.")] * 21], "it has 51 cells"),
        ([cell for cell in GOOD if cell["source"] != "The figure."], "has no Markdown cell before it"),
        ([*GOOD[:27], code("test(1)"), *GOOD[28:]], "is a solution without the tag hide-cell"),
        ([text(GOOD[0]["source"], "demo"), *GOOD[1:]], "the title has no tag slide or subslide"),
        ([*GOOD[:3], text(GOOD[3]["source"], "slide"), *GOOD[4:]], "no cell of '## The claim' is tagged demo"),
        ([*GOOD[:12], code(GOOD[12]["source"], "experiment"), *GOOD[13:]], "five-minute path measures nothing"),
        ([*GOOD[:14], code(GOOD[14]["source"], "experiment"), *GOOD[15:]], "path never reveals the prediction"),
        (
            [*GOOD[:23], text(GOOD[23]["source"], "slide"), *GOOD[24:]],
            "cell 24 is tagged slide or subslide and belongs",
        ),
    ],
)
def test_a_rule_on_the_whole_sees_what_is_wrong(tmp_path: Path, cells: list, message: str):
    problems = problems_of_anatomy(lesson_of(tmp_path, *cells), KNOWN)
    assert any(message in problem for problem in problems), problems


def test_what_the_records_lack_is_seen(tmp_path: Path):
    lesson, root = lesson_of(tmp_path, *GOOD), tmp_path / "records"

    def record(*names: str) -> None:
        prints = {name: fingerprint(lesson.path, name) for name in names}
        entries = {
            name: store.Experiment(name, "comparison", now.code_hash, now.parameters_hash, {})
            for name, now in prints.items()
        }
        store.save_lesson(store.LessonRecord("things", CPU, entries, "2026-01-31T12:00:00+00:00", 1.0), root)

    record("things/main")
    missing = "things/small is in no record; run: course record 05_things --reference"
    assert problems_of_records(lesson, root) == ([missing], [])
    record(*KNOWN)
    assert problems_of_records(lesson, root) == ([], [])
    source = lesson.path.read_text()
    lesson.path.write_text(source.replace("'b': g", "'b': k"))
    problems, notices = problems_of_records(lesson, root)
    assert problems == []
    assert [notice.partition(", ")[2] for notice in notices] == [
        "things/main: the code has changed since it was recorded"
    ]
    lesson.path.write_text(source.replace("{'n': 1}", "{'n': 2}"))
    problems, notices = problems_of_records(lesson, root)
    assert "things/main: recorded with other sizes" in problems[0]
    assert notices == []
    lesson.path.write_text(source.replace("things/small", "things/tiny"))
    problems, _ = problems_of_records(lesson, root)
    assert "things/small: the notebook has no such experiment" in problems[0]
    assert problems[1].startswith("things/tiny is in no record")
