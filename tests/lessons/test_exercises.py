"""The exercise of every lesson: untouched starting cell, solution, one wrong answer for each hint, strange answers.

Starting cell and solution are taken from the notebook. Wrong answers are the formulas that a check foresees, its
``WAYS``, and those of ``tests/lessons/wrong_answers/<slug>.py``.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from course_utils.lesson_notebooks import find_lesson, read_notebook
from course_utils.lessons import answers
from course_utils.lessons.answers import Exercise, Feedback, NotRight, ask, listed
from tests.made_up_notebooks import parsed_cells

SLUGS = sorted(path.parent.name for path in Path(answers.__file__).parent.glob("*/checks.py"))
HEADING = re.compile(r"^## Exercise · (.+) · \d+ min$", re.MULTILINE)
every_lesson = pytest.mark.parametrize("slug", SLUGS)


def check_of(slug: str) -> Exercise:
    module = importlib.import_module(f"course_utils.lessons.{slug}.checks")
    [check] = [value for value in vars(module).values() if isinstance(value, Exercise)]
    return check


def wrong_answers(slug: str) -> dict[str, Any]:
    """One for each hint."""
    formulas = getattr(sys.modules[check_of(slug).examine.__module__], "WAYS", {})
    wrong = {hint: formula for hint, formula in formulas.items() if hint}
    if Path(__file__).with_name("wrong_answers").joinpath(f"{slug}.py").exists():
        wrong |= importlib.import_module(f"tests.lessons.wrong_answers.{slug}").WRONG
    return wrong


def _to_paste(node: ast.stmt) -> bool:
    """Whether it defines a function, or names literals."""
    if not isinstance(node, ast.Assign):
        return isinstance(node, ast.FunctionDef)
    values = (ast.Tuple, ast.Constant, ast.expr_context)
    named = (part for target in node.targets for part in ast.walk(target))
    return all(isinstance(part, (*values, ast.Name)) for part in named) and all(
        isinstance(part, values) for part in ast.walk(node.value)
    )


class Notebook:
    """What a lesson's notebook imports and gives to paste, and its exercise: name, starting cells, solution."""

    def __init__(self, slug: str) -> None:
        path = find_lesson(slug).path
        notebook = read_notebook(path)
        trees = dict(parsed_cells(notebook, path.name))
        self.given: list[ast.stmt] = []
        self.start: list[ast.Module] = []
        self.solution: list[ast.Module] = []
        self.names: list[str] = []
        in_exercise = False
        for position, cell in enumerate(notebook["cells"], start=1):
            tags = cell["metadata"].get("tags", [])
            if cell["cell_type"] == "markdown":
                self.names += HEADING.findall(cell["source"])
                for heading in re.findall(r"^## .*", cell["source"], re.MULTILINE):
                    in_exercise = heading.startswith("## Exercise")
                continue
            tree = trees[position]
            pasted = "standalone" in tags and not in_exercise
            self.given += [
                node
                for node in tree.body
                if isinstance(node, ast.Import | ast.ImportFrom) or (pasted and _to_paste(node))
            ]
            if in_exercise:
                (self.solution if "hide-cell" in tags else self.start).append(tree)

    def feedback(self, cells: list[ast.Module]) -> Feedback:
        """Run cells after the imports and what is to paste; what the last one's last line, a check, says."""
        scope: dict[str, Any] = {}
        exec(compile(ast.Module(self.given, []), "<imports>", "exec"), scope)
        for tree in cells:
            *body, last = tree.body
            exec(compile(ast.Module(body, []), "<cell>", "exec"), scope)
            feedback = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
        return feedback


@every_lesson
def test_a_lesson_has_one_exercise_whose_solution_is_right_and_whose_starting_cell_is_not(slug: str) -> None:
    """The starting cell is not answered, or it is broken code to repair, which gets a hint."""
    notebook, check = Notebook(slug), check_of(slug)
    assert notebook.names == [check.name]
    assert notebook.feedback(notebook.solution) == Feedback("right", check.right)
    untouched = notebook.feedback(notebook.start)
    assert untouched.outcome == "not answered" or untouched.hint in check.hints


@pytest.mark.timeout(600)
@every_lesson
def test_three_misconceptions_or_more_get_hints_of_their_own(slug: str) -> None:
    check = check_of(slug)
    assert len(set(check.hints.values())) == len(check.hints) >= 3
    found = {hint: check(answer).hint for hint, answer in wrong_answers(slug).items()}
    assert found == {hint: hint for hint in check.hints}


def endless(*args: Any, **kwargs: Any):
    while True:
        yield 1


def breaking_off(*args: Any, **kwargs: Any):
    yield 1
    raise ValueError("broken off")


STRANGE = {
    "a number": 5,
    "no arguments": lambda: 1,
    "a text back": lambda *args, **kwargs: "text",
    "a number back": lambda *args, **kwargs: 10**400,
    "not a number back": lambda *args, **kwargs: float("nan"),
    "nested lists back": lambda *args, **kwargs: [[1], "a", None],
    "a tensor back": lambda *args, **kwargs: torch.zeros(2, 3, 4),
    "the first argument back": lambda *args, **kwargs: args[0] if args else 0,
    "an endless generator": endless,
    "a generator that breaks off": breaking_off,
}


@pytest.mark.timeout(600)
@every_lesson
def test_every_check_answers_strange_answers(slug: str) -> None:
    check = check_of(slug)
    kinds = ("a number", "a text back", "a generator that breaks off") if slug == "ddp" else STRANGE  # it starts ranks
    feedback = {kind: check(STRANGE[kind]) for kind in kinds}
    assert "right" not in {each.outcome for each in feedback.values()}, feedback


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
        (lambda n: torch.ones(n, device="meta").to("cpu"), "not yet", "Your code raised NotImplementedError in line "),
    ],
)
def test_a_check_answers_anything(answer, outcome: str, words: str):
    feedback = check_double(answer)
    assert feedback.outcome == outcome
    assert feedback.words.startswith(words)


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


def test_feedback_shows_itself_and_escapes_what_the_learner_wrote():
    for answer, mark, tone in ((lambda n: {}["<b>"], "✗ ", "slower"), (lambda n: 2 * n, "✓ ", "faster")):
        feedback = check_double(answer)
        html = feedback._repr_html_()
        assert repr(feedback).startswith(mark)
        assert f'<b class="{tone}"' in html
        assert "<b>" not in html
