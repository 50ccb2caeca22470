"""What some cells need of the others: no statement too few, and no measurement that nobody asked for."""

from __future__ import annotations

import ast
import contextlib
import io

import pytest

from authoring.dependencies import needed, undefined_names


def cells(*sources: str) -> dict[int, ast.Module]:
    return {number: ast.parse(source) for number, source in enumerate(sources, start=1)}


def kept(sources: tuple[str, ...], chosen: set[int]) -> list[str]:
    found = needed(cells(*sources), chosen)
    return [ast.unparse(node) for number in sorted(found) for node in found[number]]


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        # the statement that defines a name, and nothing else of its cell
        (("a = 1\nslow()", "print(a)"), ["a = 1"]),
        # the last value counts
        (("a = 1", "a = 2", "print(a)"), ["a = 2"]),
        # what the value was made of
        (("a = 1\nb = a + 1\nc = 3", "print(b)"), ["a = 1", "b = a + 1"]),
        # a name that a function needs when it is called, defined after it
        (("def f():\n    return a", "a = 1", "print(f())"), ["def f():\n    return a", "a = 1"]),
        # changes in between: to the name, to what it holds, by a method, and where it may or may not happen
        (("a = 1", "a += 1", "print(a)"), ["a = 1", "a += 1"]),
        (("a = {}", "a['b'] = 1", "print(a)"), ["a = {}", "a['b'] = 1"]),
        (("a = []", "a.append(1)", "print(a)"), ["a = []", "a.append(1)"]),
        (("a = {'b': 1}", "if True:\n    del a['b']", "print(a)"), ["a = {'b': 1}", "if True:\n    del a['b']"]),
        (("a = 1", "if c:\n    a = 2", "c = 3", "print(a)"), ["a = 1", "if c:\n    a = 2"]),
        # a function of the notebook that is called for what it does
        (
            ("n = []\ndef f():\n    n.append(1)\nf()\ng = f", "g()"),
            ["n = []", "def f():\n    n.append(1)", "f()", "g = f"],
        ),
        # a call on a library, or of a builtin, is kept for nobody's sake
        (("import math", "a = 4\nmath.sqrt(a)\nprint(a)", "print(a, math.pi)"), ["import math", "a = 4"]),
        # names of a loop, a comprehension, a lambda and a handler are their own
        (("i = 7", "rows = [i for i in range(3)]", "print(rows)"), ["rows = [i for i in range(3)]"]),
        (("x = 7", "f = lambda x: x", "print(f)"), ["f = lambda x: x"]),
        (("x = 7\nrow = 1", "print(2)\nfor row in [1]:\n    x = row\nprint(x)"), ["x = 7"]),
        # a class needs its bases at once
        (
            ("class A:\n    pass", "class B(A):\n    b = 1", "print(B)"),
            ["class A:\n    pass", "class B(A):\n    b = 1"],
        ),
    ],
)
def test_the_statements_that_a_cell_needs(sources: tuple[str, ...], expected: list[str]):
    assert kept(sources, {len(sources)}) == expected


def test_what_is_kept_gives_what_the_whole_notebook_gives():
    sources = (
        "import math\nsizes = [1, 2]\nprint('measured')",
        "def area(r, factor=math.pi):\n    return factor * r**2 + offset",
        "offset = 1\nsizes.append(3)\nslow = sum(range(10))",
        "print([round(area(size), 3) for size in sizes])",
    )
    whole, short = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(whole):
        exec("\n".join(sources), {})
    with contextlib.redirect_stdout(short):
        exec("\n".join([*kept(sources, {4}), sources[3]]), {})
    assert whole.getvalue().splitlines()[-1] == short.getvalue().strip()
    assert "measured" not in short.getvalue()


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (("a = 1", "print(a)"), []),
        (("print(a)", "a = 1"), ["a"]),
        (("def f():\n    return a", "a = f"), []),
        (("def f():\n    return b",), ["b"]),
        (("rows += [1]",), ["rows"]),
        (("try:\n    x = 1\nexcept ValueError as error:\n    print(error)",), []),
        (("with open('a') as file:\n    print(file)", "display(file)"), []),
    ],
)
def test_names_that_nothing_defines(sources: tuple[str, ...], names: list[str]):
    assert undefined_names(cells(*sources)) == names
