"""Every exercise of every lesson: untouched starting cell, solution, and one wrong answer for each hint.

Starting cells and solutions are taken from the notebooks, wrong answers from ``tests/lessons/wrong_answers/<slug>.py``.
"""

from __future__ import annotations

import ast
import importlib
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from course_utils.lesson_notebooks import find_lessons, read_notebook
from course_utils.lessons import answers as exercises
from course_utils.lessons.answers import Exercise, Feedback, NotRight, ask, listed
from tests.made_up_notebooks import parsed_cells

MODULES = sorted(path.parent.name for path in Path(exercises.__file__).parent.glob("*/checks.py"))
HEADING = re.compile(r"^##+ Exercise (?:(\d+) ?)?(?:· (.+?) · \d+ min)?\s*$", re.MULTILINE)


def checks_of(slug: str) -> dict[str, Exercise]:
    module = importlib.import_module(f"course_utils.lessons.{slug}.checks")
    return {name: value for name, value in vars(module).items() if isinstance(value, Exercise)}


def wrong_answers(slug: str) -> dict[str, dict[str, Any]]:
    return importlib.import_module(f"tests.lessons.wrong_answers.{slug}").WRONG


def _imports(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _defines(node: ast.stmt) -> bool:
    """Whether it defines a function, or names literals."""
    values = (ast.Tuple, ast.Constant, ast.expr_context)
    literal = (
        isinstance(node, ast.Assign)
        and all(isinstance(part, values) for part in ast.walk(node.value))
        and all(isinstance(part, (*values, ast.Name)) for target in node.targets for part in ast.walk(target))
    )
    return literal or isinstance(node, ast.FunctionDef)


class Lesson:
    """A notebook's exercises: names by number, and the code under each heading."""

    def __init__(self, path: Path):
        notebook = read_notebook(path)
        self.given: list[ast.stmt] = []  # imports, and what the cells to paste define
        self.names: dict[int, str] = {}
        self.starts: dict[int, list[ast.Module]] = {}
        self.solutions: dict[int, list[ast.Module]] = {}
        trees = dict(parsed_cells(notebook, path.name))
        section, number = "", 0
        for position, cell in enumerate(notebook["cells"], start=1):
            if cell["cell_type"] == "markdown":
                for line in cell["source"].splitlines():
                    if line.startswith("## "):
                        section, number = line[3:].split(" · ")[0].strip(), 0
                    if heading := HEADING.match(line):
                        number = int(heading[1] or 1)
                        if heading[2]:
                            self.names[number] = heading[2]
            else:
                tree = trees[position]
                tags = cell["metadata"].get("tags", [])
                pasted = "standalone" in tags and not number
                self.given += [node for node in tree.body if _imports(node) or (pasted and _defines(node))]
                if section == "Exercise" and number:
                    folded = "hide-cell" in tags
                    (self.solutions if folded else self.starts).setdefault(number, []).append(tree)

    def feedback(self, cells: list[ast.Module]) -> dict[str, Feedback]:
        """Run cells after the notebook's imports and functions to paste; what their last expressions say, by name."""
        scope: dict[str, Any] = {}
        exec(compile(ast.Module(self.given, []), "<imports>", "exec"), scope)
        answers = {}
        for tree in cells:
            *body, last = tree.body
            is_call = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call)
            exec(compile(ast.Module([*body, *([] if is_call else [last])], []), "<cell>", "exec"), scope)
            if is_call:
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
                if isinstance(value, Feedback):
                    answers[ast.unparse(last.value.func).rpartition(".")[2]] = value
        return answers


LESSONS = {lesson.slug: lesson.path for lesson in find_lessons()}
every_check = pytest.mark.parametrize(("slug", "name"), [(slug, name) for slug in MODULES for name in checks_of(slug)])
every_hint = pytest.mark.parametrize(
    ("slug", "name", "hint"),
    [(slug, name, hint) for slug in MODULES for name, check in checks_of(slug).items() for hint in check.hints],
)


def number_of(lesson: Lesson, check: Exercise) -> int:
    return next((number for number, name in lesson.names.items() if name == check.name), 0)


@pytest.mark.parametrize("slug", MODULES)
def test_each_exercise_of_a_lesson_has_its_check(slug: str):
    assert slug in LESSONS, f"course_utils/lessons/{slug}/checks.py belongs to no lesson"
    names = list(Lesson(LESSONS[slug]).names.values())
    assert sorted(names) == sorted(check.name for check in checks_of(slug).values())


@every_check
def test_the_solution_is_right_and_the_untouched_starting_cell_is_not(slug: str, name: str):
    """The starting cell is not answered, or it is broken code to repair, which gets a hint."""
    lesson, check = Lesson(LESSONS[slug]), checks_of(slug)[name]
    number = number_of(lesson, check)
    assert lesson.feedback(lesson.solutions[number])[name] == Feedback("right", check.right)
    untouched = lesson.feedback(lesson.starts[number])[name]
    assert untouched.outcome == "not answered" or untouched.hint in check.hints


@every_check
def test_three_misconceptions_have_hints_of_their_own(slug: str, name: str):
    hints = checks_of(slug)[name].hints
    assert len(hints) >= 3
    assert len(set(hints.values())) == len(hints)
    assert set(wrong_answers(slug).get(name, {})) == set(hints)


@every_hint
def test_a_wrong_answer_gets_its_hint(slug: str, name: str, hint: str):
    check = checks_of(slug)[name]
    feedback = check(wrong_answers(slug)[name][hint])
    assert (feedback.outcome, feedback.hint, feedback.words) == ("not yet", hint, check.hints[hint])


# The form itself


@partial(Exercise, "Double it", "Yes.", {"squares": "You square it."})
def check_double(answer):
    if ask(answer, 3) == 9:
        return "squares"
    if ask(answer, 3) != 6:
        raise NotRight("For 3, 6 is right.")
    return None


def unfinished(n):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("answer", "outcome", "words"),
    [
        (lambda n: 2 * n, "right", "Yes."),
        (lambda n: n * n, "not yet", "You square it."),
        (lambda n: n, "not yet", "For 3, 6 is right."),
        (lambda n: n / 0, "not yet", "Your code raised ZeroDivisionError in line "),
        (lambda n: None, "not yet", "Your function returned None: did you forget `return`?"),
        (6, "not yet", "A function is asked for, and this is int: pass it without calling it."),
        (None, "not answered", "Your answer is None. If a function of yours made it, is its `return` missing? "),
        (..., "not answered", "Write your answer to “Double it” above and run the cell again."),
        (unfinished, "not answered", "Write your answer to “Double it” above and run the cell again."),
        (lambda n: ..., "not answered", "Write your answer to “Double it” above and run the cell again."),
    ],
)
def test_a_check_answers_anything(answer, outcome: str, words: str):
    feedback = check_double(answer)
    assert feedback.outcome == outcome
    assert feedback.words.startswith(words)


def endless(*args: Any, **kwargs: Any):
    while True:
        yield 1


def breaking_off(*args: Any, **kwargs: Any):
    yield 1
    raise ValueError("broken off")


STRANGE = {
    "a number": 5,
    "no arguments": lambda: 1,
    "raises": lambda *args, **kwargs: 1 / 0,
    "a text back": lambda *args, **kwargs: "text",
    "a number back": lambda *args, **kwargs: 10**400,
    "not a number back": lambda *args, **kwargs: float("nan"),
    "nested lists back": lambda *args, **kwargs: [[1], "a", None],
    "a tensor back": lambda *args, **kwargs: torch.zeros(2, 3, 4),
    "the first argument back": lambda *args, **kwargs: args[0] if args else 0,
    "an endless generator": endless,
    "a generator that breaks off": breaking_off,
}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("strange", STRANGE)
@pytest.mark.parametrize("slug", MODULES)
def test_every_check_answers_strange_answers(slug: str, strange: str):
    for name, check in checks_of(slug).items():
        feedback = check(STRANGE[strange])
        assert isinstance(feedback, Feedback), name
        assert feedback.outcome != "right", name


def test_an_operation_that_pytorch_lacks_is_not_an_untouched_cell():
    feedback = check_double(lambda n: torch.ones(n, device="meta").to("cpu"))
    assert feedback.outcome == "not yet"
    assert "meta" in feedback.words


def test_what_a_learner_returns_is_listed_or_refused():
    assert listed(iter([1, 2])) == [1, 2]
    for values, words in (
        (endless(), "no end"),
        (breaking_off(), "broken off"),
        (5, "A list is asked for, and you return int"),
    ):
        with pytest.raises(NotRight, match=words):
            listed(values)


def test_an_error_is_a_sentence_with_the_learners_own_line():
    def fails(n):
        return torch.zeros(n - 1).view(n)  # PyTorch raises it

    where = f"in line {fails.__code__.co_firstlineno + 1}, `return torch.zeros(n - 1).view(n)  # PyTorch raises it`"
    assert check_double(fails).words.startswith(f"Your code raised RuntimeError {where}: shape '[3]' is invalid")

    def raises(n):
        raise ValueError("a\nwall " + "of text " * 1000)

    assert check_double(raises).words.endswith(": a")


def test_feedback_shows_itself_and_escapes_what_the_learner_wrote():
    shown = {}
    for answer in (lambda n: {}["<b>"], lambda n: 2 * n, ...):
        feedback = check_double(answer)
        html = feedback._repr_html_()
        shown[feedback.outcome] = repr(feedback)[:2], html[html.index('<b class="') :].partition(">")[0]
        assert "<b>" not in html
    assert shown == {
        "not yet": ("✗ ", '<b class="slower"'),
        "right": ("✓ ", '<b class="faster"'),
        "not answered": ("… ", '<b class="unclear"'),
    }
