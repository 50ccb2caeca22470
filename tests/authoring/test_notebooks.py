"""Every lesson has the same anatomy, is recorded, and is in the book.

The rules are functions that return what is wrong, so that the second half of this file can show that they see it.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from authoring.lesson_files import load_lessons
from authoring.normal_form import check
from course_utils.records import store
from course_utils.records.kinds.environment import Environment
from course_utils.records.lessons import (
    Lesson,
    LessonError,
    experiments,
    find_lesson,
    find_lessons,
    fingerprint,
    needs,
    notebooks_root,
)
from course_utils.records.notebook_files import parsed_cells, read_notebook

ROOT = Path(__file__).resolve().parents[2]
LESSONS = find_lessons() if (ROOT / "notebooks").is_dir() else []

HEADINGS = (
    "The claim",
    "Predict",
    "How it works",
    "Smallest example",
    "Same answer first",
    "Experiment",
    "Recorded result",
    "Reading the result",
    "When it does not help",
    "Exercises",
    "Verdict",
    "Solutions",
)
CELLS = range(20, 51)
LONGEST_CODE_CELL = 25
LARGEST_MEDIAN = 6
MEASURING = {"compare", "sweep", "measure", "tabulate", "curves", "run_ranks", "trace_memory"}
MEASURING |= {"check_cluster", "simulate_cluster"}
EXERCISE = re.compile(r"^### Exercise (\d+) · (.+) · (\d+) min$", re.MULTILINE)


# The notebook, cut into sections


@dataclass(frozen=True)
class Cell:
    """One cell: where it stands, and for code what it holds."""

    number: int
    kind: str
    section: str
    part: str  # the last level-3 heading of the section
    source: str
    tags: tuple[str, ...]
    tree: ast.Module | None
    outputs: Sequence[dict[str, Any]]

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """All calls, with the last part of the name of what is called."""
        for node in ast.walk(self.tree) if self.tree else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                yield node.func.id if isinstance(node.func, ast.Name) else node.func.attr, node

    def called(self) -> set[str]:
        return {name for name, _ in self.calls()}


def cut(path: Path) -> list[Cell]:
    """The cells of a notebook with the headings that they stand under."""
    notebook = read_notebook(path)
    trees = dict(parsed_cells(notebook, path.name))
    cells = []
    section = part = ""
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell["cell_type"] == "markdown":
            for level, heading in re.findall(r"^(##|###) (.+?)\s*$", cell["source"], re.MULTILINE):
                section, part = (heading, "") if level == "##" else (section, heading)
        tags = tuple(cell["metadata"].get("tags", []))
        kind, source = cell["cell_type"], cell["source"]
        cells.append(Cell(number, kind, section, part, source, tags, trees.get(number), cell.get("outputs", [])))
    return cells


# The rules


def problems_of_form(cells: Sequence[Cell]) -> Iterator[str]:
    """Number and length of cells, and a sentence before each code cell."""
    if len(cells) not in CELLS:
        yield f"it has {len(cells)} cells; a lesson has {CELLS.start} to {CELLS.stop - 1}"
    # Blank lines do not count: ruff puts two after each function.
    lengths = {
        cell.number: len(re.findall(r"^.*\S", cell.source, re.MULTILINE)) for cell in cells if cell.kind == "code"
    }
    for number, length in lengths.items():
        if length > LONGEST_CODE_CELL:
            yield f"cell {number} has {length} lines; split it ({LONGEST_CODE_CELL} at most)"
    if lengths and statistics.median(lengths.values()) > LARGEST_MEDIAN:
        yield f"half of its code cells have over {LARGEST_MEDIAN} lines; make them shorter"
    for before, cell in zip([None, *cells], cells, strict=False):
        if cell.kind == "code" and (before is None or before.kind != "markdown"):
            yield f"cell {cell.number} has no Markdown cell before it that says what it is for"


def problems_of_text(cells: Sequence[Cell], number: int) -> Iterator[str]:
    """Title, question, what the learner gets and needs, headings in order, dated sources."""
    first = cells[0].source.splitlines() if cells and cells[0].kind == "markdown" else []
    if not first or not re.fullmatch(rf"# {number:02d} · \S.*", first[0]):
        yield f"its first line is not '# {number:02d} · Title'"
    question = next((line.strip() for line in first[1:] if line.strip()), "")
    if not re.fullmatch(r"(\*{1,2}|_{1,2})[^*_].*\?\1", question):
        yield "the question, in italics or bold, does not follow the title"
    opening = "\n".join(cell.source for cell in cells if cell.kind == "markdown" and not cell.section)
    for words in ("You will be able to", "You need", "Time"):
        if not re.search(rf"\*\*{words}\b", opening):
            yield f"'**{words}**' is missing before the first section"
    text = "\n".join(cell.source for cell in cells if cell.kind == "markdown")
    headings = re.findall(r"^## (.+?)\s*$", text, re.MULTILINE)
    for heading in HEADINGS:
        if heading not in headings:
            yield f"the section '## {heading}' is missing"
    there = [heading for heading in headings if heading in HEADINGS]
    if there != sorted(set(there), key=HEADINGS.index):
        yield f"its sections are not in this order: {', '.join(HEADINGS)}"
    sources = re.search(r"^(?:#+ |\*\*)Sources\b.*?$(.*?)(?=^#|^\*\*|\Z)", text, re.MULTILINE | re.DOTALL)
    links = [line for line in (sources[1] if sources else "").splitlines() if re.search(r"https?://|\]\(", line)]
    if not links:
        yield "it has no 'Sources' with links"
    for line in links:
        visible = re.sub(r"\]\([^)]*\)|<?https?://\S+", "", line)
        if not re.search(r"\b(?:19|20)\d\d\b|\d+\.\d+", visible):
            yield f"a source gives neither version nor date: {line.strip()}"


def problems_of_code(cells: Sequence[Cell]) -> Iterator[str]:
    """What code cells must and must not do."""
    code = [cell for cell in cells if cell.kind == "code"]
    if not code or "environment" not in code[0].called():
        yield "its first code cell does not call environment()"
    for name, why in (("predict", "asks for no prediction"), ("reveal", "reveals no prediction")):
        if not any(name in cell.called() for cell in code):
            yield f"it {why}: call {'.' if name == 'reveal' else ''}{name}(...)"
    for cell in code:
        if re.search(
            r"^\s*(?:!|%(?:pip|conda|system|sx)\b|%%(?:bash|sh|system|sx|script)\b)", cell.source, re.MULTILINE
        ):
            yield f"cell {cell.number} runs a command: its failure would not fail the cell"
        for node in ast.walk(cell.tree):
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                yield f"cell {cell.number} has a star import"
            if isinstance(node, ast.If):
                for branch in (node.body, node.orelse):
                    if len(branch) == 1 and _is_skip_message(branch[0]):
                        yield f"cell {cell.number} only says 'skipped' on some machines: show the recorded result"
        if cell.called() & (MEASURING | {"environment", "predict", "ceilings"}) and "experiment" not in cell.tags:
            defines_only = all(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in cell.tree.body)
            if not defines_only:
                yield f"cell {cell.number} measures or asks, and is not tagged experiment"
        shown = "".join(str(output.get("text") or output.get("data", {})) for output in cell.outputs)
        if re.search(r"\bskip", shown, re.IGNORECASE) and len(shown) < 200:
            yield f"cell {cell.number} shows only that something was skipped"


def _is_skip_message(node: ast.stmt) -> bool:
    is_print = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_print and ast.unparse(node).startswith("print(") and "skip" in ast.unparse(node).lower()


def problems_of_experiments(cells: Sequence[Cell], slug: str, known: Iterable[str]) -> Iterator[str]:
    """Names of experiments and of records."""
    known = set(known)
    for heading in ("Experiment", "When it does not help"):
        named = False
        for cell in cells:
            for called, call in cell.calls() if cell.section == heading else ():
                if called not in MEASURING:
                    continue
                given = next((keyword.value for keyword in call.keywords if keyword.arg == "name"), None)
                text = given.value if isinstance(given, ast.Constant) else None
                if not isinstance(text, str) or not text.startswith(f"{slug}/"):
                    yield f'cell {cell.number}: {called}(...) needs name="{slug}/...", as plain text'
                else:
                    named = True
        if not named and any(cell.section == heading for cell in cells):
            yield f"the section '## {heading}' measures nothing that has a name"
    shown = set()
    for cell in cells:
        for called, call in cell.calls():
            if called != "recorded":
                continue
            argument = call.args[0] if call.args else None
            name = argument.value if isinstance(argument, ast.Constant) else None
            if not isinstance(name, str):
                yield f"cell {cell.number}: recorded(...) needs the experiment's name as plain text"
            elif name not in known:
                yield f"cell {cell.number}: recorded({name!r}) names no experiment of any lesson"
            elif cell.section == "Recorded result" and "stable" in cell.tags:
                shown.add(name)
    if not shown:
        yield "the section '## Recorded result' has no cell tagged stable that shows recorded(...)"


def problems_of_exercises(cells: Sequence[Cell]) -> Iterator[str]:
    """Numbered, named and timed exercises with checks, and solutions that run and are collapsed."""
    checks = set()
    for cell in cells:
        for node in ast.walk(cell.tree) if cell.tree else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_utils.lessons.answers"):
                checks |= {alias.asname or alias.name for alias in node.names}
    if not checks:
        yield "it imports no check from course_utils.lessons.answers"
    asked = [cell for cell in cells if cell.section == "Exercises"]
    numbers = [int(found[0]) for cell in asked for found in EXERCISE.findall(cell.source)]
    for cell in asked:
        for line in re.findall(r"^### .*$", cell.source, re.MULTILINE):
            if not EXERCISE.fullmatch(line):
                yield f"cell {cell.number}: {line!r} is not of the form '### Exercise 1 · name · 5 min'"
    if len(numbers) < 2 or numbers != list(range(1, len(numbers) + 1)):
        yield f"its exercises are numbered {numbers}; at least two are needed, counted from 1"
    solutions = [cell for cell in cells if cell.section == "Solutions"]
    for cell in solutions:
        if cell.kind == "code" and "hide-cell" not in cell.tags:
            yield f"cell {cell.number} is a solution without the tag hide-cell"
    for number in numbers:
        own = [cell for cell in asked if cell.kind == "code" and re.match(rf"Exercise {number}\b", cell.part)]
        if not any(_uses(cell, checks) for cell in own):
            yield f"exercise {number} has no code cell that calls a check from course_utils.lessons.answers"
        if not any(_uses(cell, checks) for cell in _solution(solutions, number)):
            yield f"exercise {number} has no solution in code that calls its check"


def _solution(solutions: Sequence[Cell], number: int) -> Iterator[Cell]:
    """The code cells after the text that says 'Solution N' or 'Exercise N', up to the next such text."""
    current = 0
    for cell in solutions:
        if cell.kind == "markdown":
            mentioned = re.search(r"\b(?:Solution|Exercise) (\d+)\b", cell.source)
            current = int(mentioned[1]) if mentioned else current
        elif current == number:
            yield cell


def _uses(cell: Cell, names: set[str]) -> bool:
    """Whether a cell calls one of these, or a function of one of these modules."""
    for _, call in cell.calls():
        root = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in names:
            return True
    return False


# The reading and the record are for the slides, which have the time: a path of five minutes tells the verdict.
DEMO_SECTIONS = ("The claim", "Predict", "How it works", "Verdict")
SLIDE_SECTIONS = ("The claim", "How it works", "Recorded result", "Reading the result", "Verdict")
NOT_FOR_THE_ROOM = ("Exercises", "Solutions")


def problems_of_the_kit(cells: Sequence[Cell]) -> Iterator[str]:
    """The five-minute path and the slides: what has to be on them, and what must not be."""
    demo = [cell for cell in cells if "demo" in cell.tags]
    starts = [cell for cell in cells if {"slide", "subslide"} & set(cell.tags)]
    for tag, chosen, wanted in (("demo", demo, DEMO_SECTIONS), ("slide or subslide", starts, SLIDE_SECTIONS)):
        if cells and cells[0] not in chosen:
            yield f"the title has no tag {tag}"
        text = "\n".join(cell.source for cell in chosen if cell.kind == "markdown")
        there = re.findall(r"^## (.+?)\s*$", text, re.MULTILINE)
        for heading in wanted:
            if heading not in there:
                yield f"no cell of '## {heading}' is tagged {tag}"
        for cell in chosen:
            # A cell that ends with the heading of the exercises is cut off there; one under it is not for the room.
            heads = re.findall(r"^## (.+?)\s*$", cell.source, re.MULTILINE)
            if cell.section in NOT_FOR_THE_ROOM and not heads:
                yield f"cell {cell.number} is tagged {tag} and belongs to '## {cell.section}'"
    if not any("experiment" in cell.tags and cell.called() & MEASURING for cell in demo):
        yield "its five-minute path measures nothing: tag one experiment demo"
    if not any("reveal" in cell.called() for cell in demo):
        yield "its five-minute path never reveals the prediction"


def problems_of_anatomy(lesson: Lesson, known: Iterable[str]) -> list[str]:
    """All that is wrong with a lesson's notebook."""
    cells = cut(lesson.path)
    return [
        *problems_of_form(cells),
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
                problems.append(f"{place}: recorded with other sizes than the notebook has now ({now.parameters})")
            elif experiment.code_hash != now.code_hash:
                notices.append(f"{place}: the code has changed since it was recorded")
    problems += [f"{name} is in no record; run: course record {lesson.name} --reference" for name in sorted(missing)]
    return problems, notices


def listed_files(contents: Any) -> Iterator[str]:
    """All pages of a table of contents, without suffix."""
    if isinstance(contents, dict):
        for key, value in contents.items():
            if key in ("root", "file"):
                yield str(value).removesuffix(".ipynb").removesuffix(".md")
            else:
                yield from listed_files(value)
    elif isinstance(contents, list):
        for value in contents:
            yield from listed_files(value)


# The lessons

each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)


def test_the_first_lessons_are_there():
    assert {lesson.slug for lesson in LESSONS} >= {"measuring", "pinned_memory"}


def test_every_notebook_is_a_lesson():
    names = {path.name for path in notebooks_root().glob("*.ipynb")}
    assert names == {lesson.path.name for lesson in LESSONS}, "name a notebook NN_slug.ipynb"


@each_lesson
def test_anatomy(lesson: Lesson):
    problems = problems_of_anatomy(lesson, known=[name for each in LESSONS for name in experiments(each)])
    assert not problems, "\n".join([lesson.path.name, *problems])


@each_lesson
def test_normal_form(lesson: Lesson):
    problems = check(lesson.path)
    assert not problems, "\n".join(problems)


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
def test_listed_in_the_book(lesson: Lesson):
    contents = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    assert any(page.endswith(f"notebooks/{lesson.name}") for page in listed_files(contents)), (
        f"give it a course_utils/lessons/{lesson.slug}/lesson.yml, and run `make refresh`"
    )


@each_lesson
def test_same_title_in_the_book(lesson: Lesson):
    assert lesson.title == load_lessons()[lesson.number].title


def planned_and_built(text: str, built: set[int]) -> list[int]:
    """Numbers of lessons that a text calls planned though their notebooks are there."""
    return [int(number) for number in re.findall(r"\b(\d\d)\b[^.;:\n]{0,60}\(planned\)", text) if int(number) in built]


@each_lesson
def test_no_lesson_that_is_there_is_called_planned(lesson: Lesson):
    cells = json.loads(lesson.path.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells)
    assert planned_and_built(text, {other.number for other in LESSONS}) == []


def test_a_lesson_called_planned_is_seen():
    text = "Next: **05 \u00b7 Loading data** *(planned)*. Lesson 16 *(planned)* tells more."
    assert planned_and_built(text, {4, 5}) == [5]
    assert planned_and_built(text, {5, 16}) == [5, 16]
    assert planned_and_built(text, {4}) == []


# The rules see what is wrong

MARKDOWN, CODE = "markdown", "code"
GOOD = [
    (MARKDOWN, "# 05 · Things\n\n*When are things fast?*", "demo", "slide"),
    (MARKDOWN, "**You will be able to** tell things apart.\n\n**You need** nothing.\n\n**Time**: 20 min"),
    (
        CODE,
        "from course_utils import *NAMES*\nfrom course_utils.lessons.things.checks import check_first\nenvironment()",
        "experiment",
    ),
    (MARKDOWN, "## The claim\nThings are faster.", "demo", "slide"),
    (MARKDOWN, "## Predict", "demo"),
    (CODE, "guess = predict('How many times faster?')\nguess", "demo", "experiment"),
    (MARKDOWN, "## How it works\nLike so.", "demo", "slide"),
    (MARKDOWN, "## Smallest example"),
    (CODE, "thing = 1"),
    (MARKDOWN, "## Same answer first"),
    (CODE, "assert thing == 1"),
    (MARKDOWN, "## Experiment"),
    (CODE, "result = compare({'a': f, 'b': g}, name='things/main', parameters={'n': 1})\nresult", "demo", "experiment"),
    (MARKDOWN, "The figure."),
    (CODE, "guess.reveal(result['b'])", "demo", "experiment"),
    (MARKDOWN, "## Recorded result", "demo", "slide"),
    (CODE, "recorded('things/main')", "demo", "stable"),
    (MARKDOWN, "## Reading the result\nIt is so.", "demo", "slide"),
    (MARKDOWN, "## When it does not help"),
    (CODE, "compare({'a': f, 'b': h}, name='things/small')", "experiment"),
    (MARKDOWN, "## Exercises"),
    (MARKDOWN, "### Exercise 1 · Find it · 5 min\nDo it."),
    (CODE, "answer = None\ncheck_first(answer)", "experiment"),
    (MARKDOWN, "### Exercise 2 · Mend it · 10 min\nDo it."),
    (CODE, "answer = None\ncheck_first(answer)", "experiment"),
    (
        MARKDOWN,
        "## Verdict\nSo it depends.\n\n### Sources\n- [PyTorch 2.13 docs](https://pytorch.org)\n- [B, 2024](https://b.org)",
        "demo",
        "slide",
    ),
    (MARKDOWN, "## Solutions\n\n### Exercise 1\nLike this."),
    (CODE, "check_first(1)", "hide-cell"),
    (MARKDOWN, "Solution 2: like this."),
    (CODE, "check_first(2)", "hide-cell"),
]


def lesson_of(folder: Path, cells: Sequence[tuple[str, ...]]) -> Lesson:
    made = []
    for kind, source, *tags in cells:
        cell = {
            "cell_type": kind,
            "source": source.replace("*NAMES*", "compare, environment"),
            "metadata": {"tags": tags},
        }
        made.append({**cell, "outputs": [], "execution_count": None} if kind == CODE else cell)
    path = folder / "05_things.ipynb"
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    return find_lesson("things", folder)


KNOWN = ("things/main", "things/small")


def test_a_good_lesson_has_no_problems(tmp_path: Path):
    assert problems_of_anatomy(lesson_of(tmp_path, GOOD), KNOWN) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# 05 · Things", "# 5. Things", "first line is not '# 05 · Title'"),
        ("*When are things fast?*", "When are things fast?", "the question, in italics"),
        ("**Time**", "Time", "'**Time**' is missing"),
        ("**You need**", "You need", "'**You need**' is missing"),
        ("## Predict", "## Guess", "'## Predict' is missing"),
        ("## When it does not help", "## More", "'## When it does not help' is missing"),
        ("## Smallest example", "## Same answer first", "'## Smallest example' is missing"),
        ("## Verdict", "## Predict\n\n## Verdict", "not in this order"),
        ("[B, 2024]", "[B]", "neither version nor date: - [B](https://b.org)"),
        ("### Sources", "### Links", "no 'Sources' with links"),
        ("environment()", "1", "first code cell does not call environment()"),
        ("predict('How many times faster?')", "None", "asks for no prediction"),
        ("guess.reveal(result['b'])", "guess", "reveals no prediction"),
        ("thing = 1", "thing = 1\n!nvidia-smi", "runs a command"),
        ("thing = 1", "%pip install x\nthing = 1", "runs a command"),
        ("*NAMES*", "*", "star import"),
        ("thing = 1", "if cuda:\n    thing = 1\nelse:\n    print('Skipped: no GPU')", "only says 'skipped'"),
        ("thing = 1", "thing = 1\nmeasure(f)", "is not tagged experiment"),
        ("thing = 1", "\n".join(f"thing = {n}" for n in range(26)), "has 26 lines"),
        ("name='things/main', ", "", 'needs name="things/..."'),
        ("name='things/main'", "name='other/main'", 'needs name="things/..."'),
        ("name='things/small'", "name=f'things/{small}'", 'needs name="things/..."'),
        ("compare({'a': f, 'b': h}, name='things/small')", "h()", "'## When it does not help' measures nothing"),
        ("recorded('things/main')", "recorded('things/mane')", "names no experiment of any lesson"),
        ("recorded('things/main')", "recorded(name)", "as plain text"),
        ("recorded('things/main')", "1", "no cell tagged stable that shows recorded"),
        ("from course_utils.lessons.things.checks import check_first", "1", "imports no check"),
        ("· Find it · 5 min", "Find it (5 min)", "is not of the form"),
        ("### Exercise 2 · Mend it · 10 min", "### Exercise 3 · Mend it · 10 min", "are numbered [1, 3]"),
        ("Solution 2: like", "Or like", "exercise 2 has no solution in code"),
        ("check_first(2)", "2", "exercise 2 has no solution in code"),
    ],
)
def test_a_rule_sees_what_is_wrong(tmp_path: Path, old: str, new: str, message: str):
    assert sum(source.count(old) for _, source, *_ in GOOD) == 1, old
    broken = [(kind, source.replace(old, new), *tags) for kind, source, *tags in GOOD]
    problems = problems_of_anatomy(lesson_of(tmp_path, broken), KNOWN)
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (GOOD[:15], "it has 15 cells"),
        ([*GOOD[:3], GOOD[6], *GOOD[3:6], *GOOD[7:]], "not in this order"),
        (GOOD + [(MARKDOWN, "More.")] * 21, "it has 51 cells"),
        ([cell for cell in GOOD if cell[1] != "The figure."], "has no Markdown cell before it"),
        ([(kind, source) for kind, source, *_ in GOOD], "is a solution without the tag hide-cell"),
        (
            [(k, s + "\nx = 1" * 6 if k == CODE else s, *tags) for k, s, *tags in GOOD],
            "half of its code cells have over 6",
        ),
    ],
)
def test_a_rule_on_the_whole_sees_what_is_wrong(tmp_path: Path, cells: list, message: str):
    problems = problems_of_anatomy(lesson_of(tmp_path, cells), KNOWN)
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("source", "tags", "message"),
    [
        (GOOD[0][1], ("demo",), "the title has no tag slide or subslide"),
        (GOOD[3][1], ("slide",), "no cell of '## The claim' is tagged demo"),
        (GOOD[15][1], ("demo",), "no cell of '## Recorded result' is tagged slide or subslide"),
        (GOOD[12][1], ("experiment",), "its five-minute path measures nothing"),
        (GOOD[14][1], ("experiment",), "its five-minute path never reveals the prediction"),
        ("### Exercise 2 · Mend it · 10 min\nDo it.", ("slide",), "cell 24 is tagged slide or subslide and belongs"),
        ("check_first(2)", ("demo", "hide-cell"), "cell 30 is tagged demo and belongs to '## Solutions'"),
    ],
)
def test_a_rule_of_the_kit_sees_what_is_wrong(tmp_path: Path, source: str, tags: tuple[str, ...], message: str):
    assert sum(cell[1] == source for cell in GOOD) == 1, source
    broken = [(*cell[:2], *tags) if cell[1] == source else cell for cell in GOOD]
    problems = problems_of_anatomy(lesson_of(tmp_path, broken), KNOWN)
    assert any(message in problem for problem in problems), problems


def test_an_output_that_only_says_skipped_is_seen(tmp_path: Path):
    lesson = lesson_of(tmp_path, GOOD)
    notebook = json.loads(lesson.path.read_text())
    notebook["cells"][16]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "Skipped: no GPU here.\n"}]
    lesson.path.write_text(json.dumps(notebook))
    assert any("shows only that something was skipped" in problem for problem in problems_of_anatomy(lesson, KNOWN))


HERE = Environment(
    machine="a-machine",
    device_kind="cpu",
    device_name="A CPU",
    cpu_model="A CPU",
    cpu_cores=2,
    memory_bytes=2**34,
    os="Linux x86_64",
    python="3.11.7",
    torch="2.13.0",
    size="smoke",
    date="2026-01-31",
)


@pytest.fixture
def recorded_lesson(tmp_path: Path):
    """A lesson, and a way to record it with the code and sizes it has now."""
    lesson = lesson_of(tmp_path, GOOD)

    def record(*names: str) -> Path:
        found = {}
        for name in names:
            now = fingerprint(lesson.path, name)
            found[name] = store.Experiment(name, "comparison", now.code_hash, now.parameters_hash, {})
        made = store.LessonRecord("things", HERE, found, recorded_at="2026-01-31T12:00:00+00:00", seconds=1.0)
        store.save_lesson(made, tmp_path / "records")
        return tmp_path / "records"

    return lesson, record


def test_a_record_of_the_same_experiments_is_right(recorded_lesson):
    lesson, record = recorded_lesson
    assert problems_of_records(lesson, record(*KNOWN)) == ([], [])


def test_a_missing_record_is_seen(recorded_lesson):
    lesson, record = recorded_lesson
    problems, _ = problems_of_records(lesson, record("things/main"))
    assert problems == ["things/small is in no record; run: course record 05_things --reference"]


def test_a_record_of_an_experiment_that_is_gone_is_seen(recorded_lesson):
    lesson, record = recorded_lesson
    root = record(*KNOWN)
    lesson.path.write_text(lesson.path.read_text().replace("things/small", "things/tiny"))
    problems, _ = problems_of_records(lesson, root)
    assert problems[0] == "a-machine/things.json, things/small: the notebook has no such experiment"
    assert problems[1].startswith("things/tiny is in no record")


def test_changed_sizes_are_a_problem_and_changed_code_is_a_notice(recorded_lesson):
    lesson, record = recorded_lesson
    root = record(*KNOWN)
    source = lesson.path.read_text()
    lesson.path.write_text(source.replace("'b': g", "'b': k"))
    problems, notices = problems_of_records(lesson, root)
    assert problems == []
    assert len(notices) == 1
    assert "things/main: the code has changed" in notices[0]
    lesson.path.write_text(source.replace("{'n': 1}", "{'n': 2}"))
    problems, notices = problems_of_records(lesson, root)
    assert len(problems) == 1
    assert "things/main: recorded with other sizes" in problems[0]
    assert notices == []


def test_pages_of_a_table_of_contents_are_found():
    contents = {"root": "book/intro.md", "parts": [{"chapters": [{"file": "notebooks/05_things", "sections": []}]}]}
    assert list(listed_files(contents)) == ["book/intro", "notebooks/05_things"]
