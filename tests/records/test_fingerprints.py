"""Lessons as files: finding them, their experiments, and which code and sizes these have."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from course_utils.records.fingerprint import Fingerprint
from course_utils.records.lessons import (
    LessonError,
    experiments,
    find_lesson,
    find_lessons,
    fingerprint,
    needs,
    notebooks_root,
)
from course_utils.records.statements import needed, statements
from tests.made_up_notebooks import code, lesson_of, save, text

# Finding


@pytest.fixture
def course(tmp_path: Path) -> Path:
    save(tmp_path / "00_measuring.ipynb", text("# 00 · Measuring honestly\n\n*Which is faster?*"))
    save(tmp_path / "04_pinned_memory.ipynb", text("# 04 · Pinned memory"), "compare({}, name='pinned_memory/copy')")
    save(tmp_path / "11_data_loader.ipynb", "x = 1")
    save(tmp_path / "scratch.ipynb", "x = 1")
    save(tmp_path / ".ipynb_checkpoints" / "00_measuring-checkpoint.ipynb", "x = 1")
    return tmp_path


def test_lessons_are_found_in_order_with_their_titles(course: Path):
    lessons = find_lessons(course)
    assert [(lesson.number, lesson.slug, lesson.title) for lesson in lessons] == [
        (0, "measuring", "Measuring honestly"),
        (4, "pinned_memory", "Pinned memory"),
        (11, "data_loader", "Data loader"),
    ]
    assert lessons[1].name == "04_pinned_memory"
    assert lessons[1].path == course / "04_pinned_memory.ipynb"


@pytest.mark.parametrize("name", ["04", "pinned_memory", "notebooks/04_pinned_memory.ipynb"])
def test_a_lesson_is_found_by_each_of_its_names(course: Path, name: str):
    assert find_lesson(name, course).slug == "pinned_memory"


def test_an_unknown_lesson_is_an_error_that_lists_the_choices(course: Path):
    with pytest.raises(LessonError, match=r"mean '04_pinned_memory'\?\)\. The lessons are: 00_measuring, 04_pinned"):
        find_lesson("pined_memory", course)


def test_two_lessons_with_one_number_are_an_error(course: Path):
    save(course / "04_streams.ipynb", "x = 1")
    with pytest.raises(LessonError, match=r"04_pinned_memory.ipynb and 04_streams.ipynb share"):
        find_lessons(course)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ('{"nbformat": 3, "cells": []}', "format 4")],
)
def test_a_damaged_notebook_is_an_error_that_names_it(course: Path, content: str, message: str):
    (course / "12_broken.ipynb").write_text(content)
    with pytest.raises(LessonError, match=rf"12_broken.ipynb is .*{message}"):
        find_lessons(course)


def test_the_folder_is_chosen_by_the_environment(course: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(course))
    assert notebooks_root() == course
    assert find_lesson("4").slug == "pinned_memory"
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(course / "absent"))
    with pytest.raises(LessonError, match="Correct or unset COURSE_NOTEBOOKS"):
        find_lessons()


# Experiments


def test_experiments_are_named_in_order_with_what_they_need(tmp_path: Path):
    lesson = lesson_of(
        tmp_path,
        "first = compare(cases, name='things/copy')",
        text("compare(cases, name='things/prose')"),
        code(
            "def again():\n    return [sweep(cases, over={'n': [1]}, name='things/sizes'),\n"
            "            measure(f, name='things/one')]",
            "experiment",
            "needs-cuda",
        ),
        "# compare(cases, name='things/comment')\ncompare(cases, name='other/lesson')\nconfigure(name='plain')",
        "compare(cases, name=computed)\nceilings('things/limits')",
    )
    assert experiments(lesson) == ["things/copy", "things/sizes", "things/one", "things/limits"]
    assert needs(lesson) == {"things/sizes": ("cuda",), "things/one": ("cuda",)}


def test_a_name_that_is_used_twice_is_an_error(tmp_path: Path):
    with pytest.raises(LessonError, match="two experiments named 'things/x'"):
        experiments(lesson_of(tmp_path, "compare(c, name='things/x')", "measure(f, name='things/x')"))


def test_a_cell_that_is_not_python_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(LessonError, match=r"05_things.ipynb, cell 2 is not valid Python"):
        experiments(lesson_of(tmp_path, text("# A"), "x = (1"))


# What some cells need of the others: no statement too few, and no measurement that nobody asked for


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
        (
            ("def f():\n    return x\nx = 1\ny = f()", "x = 2", "print(y)"),
            ["def f():\n    return x", "x = 1", "y = f()"],
        ),
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
        (("i = 5", "t = [(i := j) for j in range(3)]", "print(i)"), ["t = [(i := j) for j in range(3)]"]),
        (("x = 7", "f = lambda x: x", "print(f)"), ["f = lambda x: x"]),
        (("x = 7", "x = [x for x in [1]]", "print(x)"), ["x = [x for x in [1]]"]),
        (("x = 7\nrow = 1", "print(2)\nfor row in [1]:\n    x = row\nprint(x)"), ["x = 7"]),
        (("row = 1\nn = 2", "for i in range(n):\n    row = {}\n    row |= {1: i}"), ["n = 2"]),
        # a class needs its bases at once
        (
            ("class A:\n    pass", "class B(A):\n    b = 1", "print(B)"),
            ["class A:\n    pass", "class B(A):\n    b = 1"],
        ),
    ],
)
def test_the_statements_that_a_cell_needs(sources: tuple[str, ...], expected: list[str]):
    parts = statements({number: ast.parse(source) for number, source in enumerate(sources, start=1)})
    assert [ast.unparse(part.node) for part in needed(parts, {len(sources)})] == expected


# Fingerprints

LESSON = (
    "import math\nimport torch\nfrom course_utils import compare, predict, scaled, sweep\ntorch.manual_seed(0)",
    "rows = scaled(cpu=512, cuda=8192)\nsizes = [64, 128]",
    'def copy(batch, pause=math.tau):\n    """Copy it."""\n    return finish(batch.clone())',
    "def finish(batch):\n    print('copied')\n    return batch * factor",
    "factor = 2.0\nunrelated = 7",
    "def helper_of_nobody():\n    return unrelated",
    "guess = predict('How many times faster is it?', unit='x')",
    "batch = torch.rand(rows)\nbatch.mul_(3)",
    "# measure it\nresult = compare(\n    {'old': lambda: batch.clone(), 'new': lambda: copy(batch)},\n"
    "    name='lesson/copy', parameters={'rows': rows}, budget_s=2,\n)\n"
    "result.plot(title='Copies')\nguess.reveal(result['new'])",
    "def cases(n):\n    data = torch.rand(n)\n    return {'a': lambda: data.sum(), 'b': data.mean}",
    "sweep(cases, over={'n': sizes}, name='lesson/sizes')",
    "late = 1",
)


def changed(tmp_path: Path, old: str = "", new: str = "", name: str = "lesson/copy") -> Fingerprint:
    """The fingerprint of an experiment in the lesson above, with one text replaced."""
    source = "\n#%%\n".join(LESSON)
    if old:
        assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times"
        source = source.replace(old, new)
    return fingerprint(save(tmp_path / "01_lesson.ipynb", *source.split("\n#%%\n")), name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Copy it."""', '"""Copy it again, with care."""'),
        ("print('copied')", "print(f'done {1 + 1}')"),
        ("result.plot(title='Copies')", "result.plot()\nprint(result['new'].ratio)"),
        ("unrelated = 7", "unrelated = 8"),
        ("late = 1", "late = 2\nfactor = 9\nbatch.zero_()"),
        (
            "from course_utils import compare",
            "from course_utils.elsewhere import help_me\nfrom course_utils import compare",
        ),
        ("sizes = [64, 128]", "sizes = [64]"),
        ("# measure it\n", "# measure it\nprint('This takes a minute.')\n"),
        # how a result is worded, and what of it is shown
        ("budget_s=2,\n)", "budget_s=2, says=lambda r: f'{r[0]}',\n).showing(['new']).saying(str)"),
        ("result.plot(title='Copies')", "result.showing(['new'])"),
    ],
)
def test_what_does_not_matter_changes_neither_hash(tmp_path: Path, old: str, new: str):
    assert changed(tmp_path, old, new) == changed(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'new': lambda: copy(batch)", "'new': lambda: copy(batch + 1)"),
        ("return finish(batch.clone())", "return finish(batch.detach())"),
        ("return batch * factor", "return batch / factor"),
        ("factor = 2.0", "factor = 2.0\nif torch.cuda.is_available():\n    factor = 4.0"),
        ("batch.mul_(3)", "batch[0] = 1"),
        ("# measure it\n", "torch.set_num_threads(1)\n"),
    ],
)
def test_changed_code_changes_only_the_code_hash(tmp_path: Path, old: str, new: str):
    before, after = changed(tmp_path), changed(tmp_path, old, new)
    assert after.code_hash != before.code_hash
    assert after.parameters_hash == before.parameters_hash


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("lesson/copy", "cuda=8192", "cuda=16384"),
        ("lesson/copy", "parameters={'rows': rows}", "parameters={'rows': rows, 'dtype': 'float32'}"),
        ("lesson/sizes", "sizes = [64, 128]", "sizes = [64, 256]"),
    ],
)
def test_changed_sizes_change_only_the_parameters_hash(tmp_path: Path, name: str, old: str, new: str):
    before, after = changed(tmp_path, name=name), changed(tmp_path, old, new, name)
    assert after.parameters_hash != before.parameters_hash
    assert after.code_hash == before.code_hash


MATERIALS = {
    "models.py": (
        '"""Models."""\nfrom course_utils.materials.layers import Layer\nimport torch\n\nWIDTH = 8\n\n'
        'class Model:\n    """A model."""\n\n    def make(self):\n        return Layer(WIDTH)\n\n'
        "def other():\n    return 1\n"
    ),
    "layers.py": "class Layer:\n    def __init__(self, width):\n        self.width = width\n\nUNUSED = 3\n",
    "scripts/train.py": "# Train.\nfrom course_utils.materials.layers import Layer\nsteps = 10\nLayer(steps)\n",
    "scripts/other.py": "steps = 10\n",
}


@pytest.mark.parametrize(
    ("file", "old", "new", "matters"),
    [
        ("models.py", "return Layer(WIDTH)", "return Layer(WIDTH + 1)", "ab"),
        ("layers.py", "self.width = width", "self.width = 2 * width", "abc"),
        ("scripts/train.py", "steps = 10", "steps = 20", "c"),
        ("models.py", "return 1", "return 2", "b"),
        ("layers.py", "UNUSED = 3", "UNUSED = 4", ""),
        ("scripts/other.py", "steps = 10", "steps = 20", ""),
    ],
)
def test_an_experiment_changes_with_the_materials_and_programs_that_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str, matters: str
):
    (tmp_path / "scripts").mkdir()
    for name, source in MATERIALS.items():
        (tmp_path / name).write_text(source)
    monkeypatch.setattr("course_utils.records.fingerprint._MATERIALS", tmp_path)
    notebook = save(
        tmp_path / "01_a.ipynb",
        "import subprocess",
        "from course_utils.materials.models import Model, other\nfrom course_utils.materials import models",
        "measure(Model().make(), name='a/a')",
        "measure(models.other, name='a/b')",
        "run_ranks('scripts/train.py', ranks=2, name='a/c')",
    )
    before = {name: fingerprint(notebook, f"a/{name}") for name in "abc"}
    assert MATERIALS[file].count(old) == 1
    (tmp_path / file).write_text(MATERIALS[file].replace(old, new))
    after = {name: fingerprint(notebook, f"a/{name}") for name in "abc"}
    assert "".join(name for name in "abc" if after[name].code_hash != before[name].code_hash) == matters
    assert all(after[name].parameters_hash == before[name].parameters_hash for name in "abc")


def test_an_unknown_experiment_is_an_error_that_lists_the_choices(tmp_path: Path):
    with pytest.raises(LessonError, match=r"mean 'lesson/copy'\?\)\. It has: lesson/copy, lesson/sizes"):
        changed(tmp_path, name="lesson/copie")


EVERY_SYNTAX = '''
import asyncio
from dataclasses import dataclass
numbers: list[int] = [1, -2, 0x10, 10**30]
async def later(x, /, y: int = 1, *rest, z, **more) -> None:
    """Doc."""
    async with x as a, y:
        await a
    async for i in x:
        yield i
@dataclass(frozen=True)
class Point(object, metaclass=type):
    """Doc."""
    x: float = 1.5e-3
def work(p):
    global numbers
    text = f"{p!r:>{10}} and {p.x:.2f}" "tail" f"{p=}" rf"\\d{p}"
    empty = f"" + f"{p}"
    data = b"\\x00\\xff", 1j, ..., None, True, "ünïcode \\U0001FAE8", u"old"
    try:
        with open(text) as file, open(empty): pass
    except (OSError, ValueError) as error:
        raise RuntimeError from error
    else:
        del data
    finally:
        assert p, "why"
    try:
        pass
    except* ValueError:
        pass
    match p:
        case Point(x=0) | [1, *_] | {"k": v, **rest} if v > 0: return v
        case None | -1 | "s": pass
        case str() as s: pass
        case _: pass
    while (n := len(text)) > 3:
        if n: continue
        break
    for i, *j in zip(a, b): pass
    return [x for x in text if x not in "ab"], {k: v for k, v in p}, {*text}, (y async for y in p), text[1:2, ::3, ...]
result = compare({"a": lambda *a, k=1, **kw: work(*a, **kw), "b": work}, name="a/x", parameters={"n": [2**4, "x"]})
'''


def test_every_version_of_python_gives_the_same_fingerprint(tmp_path: Path):
    """A change here means that all records are out of date: set their hashes anew in the same commit."""
    now = fingerprint(save(tmp_path / "01_a.ipynb", EVERY_SYNTAX), "a/x")
    assert (now.code_hash, now.parameters_hash) == ("5c5dae271e326b27", "5033edc90a264f34")
