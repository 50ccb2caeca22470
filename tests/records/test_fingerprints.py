"""Lessons as files: finding them, the fingerprints of their experiments, and the normal form of notebooks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from authoring import normal_form
from course_utils.records import lessons
from course_utils.records.lessons import (
    LessonError,
    experiments,
    find_lesson,
    find_lessons,
    fingerprint,
    notebooks_root,
)
from course_utils.records.notebook_files import dumped, read_notebook

ROOT = Path(__file__).resolve().parents[2]


def code(source: str, *tags: str, outputs: list | None = None, **more) -> dict:
    metadata = {"tags": list(tags)} if tags else {}
    return {
        "cell_type": "code",
        "source": source,
        "metadata": metadata,
        "outputs": outputs or [],
        "execution_count": None,
        **more,
    }


def text(source: str, **more) -> dict:
    return {"cell_type": "markdown", "source": source, "metadata": {}, **more}


def stream(words: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": words}


def save(path: Path, *cells: dict | str, **metadata) -> Path:
    """A notebook as an editor would leave it: not in normal form."""
    cells = [code(cell) if isinstance(cell, str) else cell for cell in cells]
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


# Finding


@pytest.fixture
def course(tmp_path: Path) -> Path:
    save(tmp_path / "00_measuring.ipynb", text("# 00 · Measuring honestly\n\n*Which is faster?*"))
    save(tmp_path / "04_pinned_memory.ipynb", text("# 04 · Pinned memory"), "compare({}, name='pinned_memory/copy')")
    save(tmp_path / "11_data_loader.ipynb", "x = 1")
    save(tmp_path / "scratch.ipynb", "x = 1")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    save(tmp_path / ".ipynb_checkpoints" / "00_measuring-checkpoint.ipynb", "x = 1")
    return tmp_path


def test_lessons_are_found_in_order_with_their_titles(course: Path):
    found = find_lessons(course)
    assert [(lesson.number, lesson.slug, lesson.title) for lesson in found] == [
        (0, "measuring", "Measuring honestly"),
        (4, "pinned_memory", "Pinned memory"),
        (11, "data_loader", "Data loader"),
    ]
    assert found[1].name == "04_pinned_memory"
    assert found[1].path == course / "04_pinned_memory.ipynb"


@pytest.mark.parametrize(
    "name",
    ["04", "4", 4, "pinned_memory", "04_pinned_memory", "04_pinned_memory.ipynb", "notebooks/04_pinned_memory.ipynb"],
)
def test_a_lesson_is_found_by_each_of_its_names(course: Path, name: str | int):
    assert find_lesson(name, course).slug == "pinned_memory"


def test_an_unknown_lesson_is_an_error_that_lists_the_choices(course: Path):
    with pytest.raises(LessonError, match=r"Did you mean 04_pinned_memory\? The lessons are: 00_measuring, 04_pinned"):
        find_lesson("pined_memory", course)
    with pytest.raises(LessonError, match=r"no lesson '07'\. The lessons are"):
        find_lesson("07", course)


def test_two_lessons_with_one_number_are_an_error(course: Path):
    save(course / "04_streams.ipynb", "x = 1")
    with pytest.raises(LessonError, match=r"04_pinned_memory.ipynb and 04_streams.ipynb share"):
        find_lessons(course)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[]", "not a notebook of format 4"), ('{"nbformat": 3, "cells": []}', "format 4")],
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


def test_experiments_are_named_in_order(tmp_path: Path):
    path = save(
        tmp_path / "04_pinned_memory.ipynb",
        "%matplotlib inline\nfirst = compare(cases, name='pinned_memory/copy')",
        text("compare(cases, name='pinned_memory/prose')"),
        "def again():\n    return [sweep(cases, over={'n': [1]}, name='pinned_memory/sizes'),\n"
        "            measure(f, name='pinned_memory/one')]",
        "# compare(cases, name='pinned_memory/comment')\ncompare(cases, name='other/lesson')\nconfigure(name='plain')",
        "compare(cases, name=computed)\nceilings('pinned_memory/limits')",
    )
    found = experiments(find_lesson("pinned_memory", tmp_path))
    assert found == ["pinned_memory/copy", "pinned_memory/sizes", "pinned_memory/one", "pinned_memory/limits"]
    assert path.exists()


def test_a_name_that_is_used_twice_is_an_error(tmp_path: Path):
    path = save(tmp_path / "04_a.ipynb", "compare(c, name='a/x')", "measure(f, name='a/x')")
    with pytest.raises(LessonError, match="two experiments named 'a/x'"):
        experiments(find_lesson("a", tmp_path))
    with pytest.raises(LessonError, match="two experiments named 'a/x'"):
        fingerprint(path, "a/x")


def test_a_cell_that_is_not_python_is_an_error_that_names_it(tmp_path: Path):
    save(tmp_path / "04_a.ipynb", text("# A"), "x = (1")
    with pytest.raises(LessonError, match=r"04_a.ipynb, cell 2 is not valid Python"):
        experiments(find_lesson("a", tmp_path))


# Fingerprints

LESSON = (
    "import math\nimport torch\nfrom course_utils import compare, measure, predict, scaled, sweep",
    "torch.manual_seed(0)\nrows = scaled(cpu=512, cuda=8192)\nsizes = [64, 128]",
    'def copy(batch, pause=math.tau):\n    """Copy it."""\n    return finish(batch.clone())',
    "def finish(batch):\n    print('copied')\n    return batch * factor",
    "factor = 2.0\nunrelated = 7",
    "def helper_of_nobody():\n    return unrelated",
    "guess = predict('How many times faster is it?', unit='x')",
    "batch = torch.rand(rows)\nbatch.mul_(3)",
    "# measure it\nresult = compare(\n    {'old': lambda: batch.clone(), 'new': lambda: copy(batch)},\n"
    "    name='lesson/copy', parameters={'rows': rows}, budget_s=2,\n)\n"
    "result.plot(title='Copies')",
    "def cases(n):\n    data = torch.rand(n)\n    return {'a': lambda: data.sum(), 'b': data.mean}",
    "sweep(cases, over={'n': sizes}, name='lesson/sizes')",
    "late = 1",
)


def changed(tmp_path: Path, old: str = "", new: str = "", name: str = "lesson/copy"):
    """The fingerprint of an experiment in the lesson above, with one text replaced."""
    source = "\n#%%\n".join(LESSON)
    if old:
        assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times"
        source = source.replace(old, new)
    return fingerprint(save(tmp_path / "01_lesson.ipynb", *source.split("\n#%%\n")), name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# measure it", "# measure it twice"),
        ("factor = 2.0", "factor    =   2.0  # a comment"),
        ("    {'old'", "  {\n'old'"),
        ('"""Copy it."""', '"""Copy it again, with care."""'),
        ('    """Copy it."""\n', ""),
        ("How many times faster is it?", "How much faster?"),
        ("print('copied')", "print(f'done {1 + 1}')"),
        ("title='Copies'", "title='Two ways to copy'"),
        ("result.plot(title='Copies')", "result"),
        ("result.plot(title='Copies')", "result.plot()\nprint(result['new'].ratio)"),
        ("unrelated = 7", "unrelated = 8"),
        ("return unrelated", "return 2 * unrelated"),
        ("late = 1", "late = 2\nfactor = 9\nbatch.zero_()"),
        ("predict, scaled, sweep", "predict, recorded, scaled, sweep"),
        ("import math\n", "import os\nimport math\n"),
        ("data.sum()", "data.sum() + 1"),
        ("sizes = [64, 128]", "sizes = [64]"),
        ("batch.mul_(3)", "print(batch)\nbatch.mul_(3)"),
        ("import torch\n", "%matplotlib inline\nimport torch\n"),
        ("lambda: batch.clone()", "(lambda: (batch.clone()))"),
        ("# measure it\n", "# measure it\nprint('This takes a minute.')\n"),
        ("'lesson/copy'", '"lesson/copy"'),
    ],
)
def test_what_does_not_matter_changes_neither_hash(tmp_path: Path, old: str, new: str):
    assert changed(tmp_path, old, new) == changed(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'new': lambda: copy(batch)", "'new': lambda: copy(batch + 1)"),
        ("'old':", "'pageable':"),
        ("budget_s=2", "budget_s=4"),
        ("return finish(batch.clone())", "return finish(batch.detach())"),
        ("return batch * factor", "return batch / factor"),
        ("factor = 2.0", "factor = 3.0"),
        ("factor = 2.0", "factor = 2.0\nif torch.cuda.is_available():\n    factor = 4.0"),
        ("torch.manual_seed(0)", "torch.manual_seed(1)"),
        ("torch.manual_seed(0)", "torch.backends.fp32_precision = 'tf32'"),
        ("torch.rand(rows)", "torch.randn(rows)"),
        ("batch.mul_(3)", "batch.mul_(4)"),
        ("batch.mul_(3)", "batch[0] = 1"),
        ("batch.mul_(3)", "torch.nn.init.zeros_(batch)"),
        ("batch.mul_(3)", "batch += 1"),
        ("import math\n", "import cmath as math\n"),
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
        ("lesson/copy", "cpu=512, cuda=8192", "cpu=512"),
        ("lesson/copy", "parameters={'rows': rows}", "parameters={'rows': rows, 'dtype': 'float32'}"),
        ("lesson/sizes", "sizes = [64, 128]", "sizes = [64, 256]"),
        ("lesson/sizes", "over={'n': sizes}", "over={'m': sizes}"),
    ],
)
def test_changed_sizes_change_only_the_parameters_hash(tmp_path: Path, name: str, old: str, new: str):
    before, after = changed(tmp_path, name=name), changed(tmp_path, old, new, name)
    assert after.parameters_hash != before.parameters_hash
    assert after.code_hash == before.code_hash


@pytest.mark.parametrize(
    ("old", "new"),
    [("cuda=8192", "cuda=2**13"), ("cuda=8192", "cuda=8 * 1024"), ("cpu=512, cuda=8192", "cuda=8_192, cpu=512")],
)
def test_the_same_size_written_otherwise_is_no_change(tmp_path: Path, old: str, new: str):
    assert changed(tmp_path, old, new) == changed(tmp_path)


MATERIALS = {
    "models.py": (
        '"""Models."""\nfrom course_utils.materials.layers import Layer\nimport torch\n\nWIDTH = 8\n\n'
        'class Model:\n    """A model."""\n\n    def make(self):\n        return Layer(WIDTH)\n\n'
        "def other():\n    return 1\n"
    ),
    "layers.py": "class Layer:\n    def __init__(self, width):\n        self.width = width\n\nUNUSED = 3\n",
}


@pytest.mark.parametrize(
    ("file", "old", "new", "matters"),
    [
        ("models.py", "WIDTH = 8", "WIDTH = 9", True),
        ("models.py", "return Layer(WIDTH)", "return Layer(WIDTH + 1)", True),
        ("layers.py", "self.width = width", "self.width = 2 * width", True),
        ("scripts/train.py", "steps = 10", "steps = 20", True),
        ("models.py", "return 1", "return 2", False),
        ("models.py", "A model.", "A better model.", False),
        ("layers.py", "UNUSED = 3", "UNUSED = 4", False),
        ("scripts/train.py", "# Train", "# Train it", False),
        ("scripts/other.py", "steps = 10", "steps = 20", False),
    ],
)
def test_an_experiment_changes_with_the_materials_and_programs_that_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str, matters: bool
):
    materials, notebooks = tmp_path / "materials", tmp_path / "notebooks"
    (notebooks / "scripts").mkdir(parents=True)
    materials.mkdir()
    for name, source in MATERIALS.items():
        (materials / name).write_text(source)
    for name in ("train", "other"):
        (notebooks / "scripts" / f"{name}.py").write_text("# Train.\nsteps = 10\nprint(steps)\n")
    monkeypatch.setattr("course_utils.records.fingerprints._MATERIALS", materials)
    notebook = save(
        notebooks / "01_a.ipynb",
        "from course_utils.materials.models import Model, other\nimport subprocess",
        "model = Model().make()",
        "subprocess.run(['python', 'scripts/train.py'])\ncompare({'a': model, 'b': model}, name='a/x')",
        "other()\nmeasure(len, name='a/y')",
    )
    before = [fingerprint(notebook, name) for name in ("a/x", "a/y")]
    changing = (notebooks if file.startswith("scripts/") else materials) / file
    assert old in changing.read_text()
    changing.write_text(changing.read_text().replace(old, new))
    after = [fingerprint(notebook, name) for name in ("a/x", "a/y")]
    assert (after[0] != before[0]) is matters
    assert after[0].parameters_hash == before[0].parameters_hash


def test_a_program_counts_with_its_materials_and_its_ranks_as_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    materials = tmp_path / "materials"
    materials.mkdir()
    (tmp_path / "scripts").mkdir()
    monkeypatch.setattr("course_utils.records.fingerprints._MATERIALS", materials)
    program = "def main():\n    from course_utils.materials.layers import Layer\n    Layer(1)\n\nmain()\n"
    (tmp_path / "scripts" / "train.py").write_text(program)

    def of(ranks: int = 2, steps: int = 20, layers: str = MATERIALS["layers.py"]) -> tuple[str, str]:
        (materials / "layers.py").write_text(layers)
        cell = f"run_ranks('scripts/train.py', ranks={ranks}, args=['--steps', {steps}], name='a/x')"
        found = fingerprint(save(tmp_path / "01_a.ipynb", cell), "a/x")
        return found.code_hash, found.parameters_hash

    code, sizes = of()
    for other in (of(ranks=3), of(steps=30)):
        assert other[0] == code
        assert other[1] != sizes
    changed_code, same_sizes = of(layers=MATERIALS["layers.py"].replace("= width", "= 2 * width"))
    assert (changed_code != code, same_sizes) == (True, sizes)
    assert of(layers=MATERIALS["layers.py"].replace("UNUSED = 3", "UNUSED = 4")) == (code, sizes)


def test_materials_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("course_utils.records.fingerprints._MATERIALS", tmp_path)
    source = "from course_utils.materials.gone import Model\nmeasure(Model(), name='a/x')"
    with pytest.raises(LessonError, match=r"gone\.py"):
        fingerprint(save(tmp_path / "01_a.ipynb", source), "a/x")


def test_the_sizes_are_there_to_be_shown(tmp_path: Path):
    assert changed(tmp_path).parameters == {"rows": {"cpu": 512, "cuda": 8192}, "parameters": "{'rows': rows}"}
    assert changed(tmp_path, name="lesson/sizes").parameters == {"sizes": [64, 128], "over": "{'n': sizes}"}


def test_only_the_last_definition_before_the_experiment_counts(tmp_path: Path):
    def of(*cells: str) -> str:
        return fingerprint(save(tmp_path / "01_a.ipynb", *cells), "a/x").code_hash

    measure = "measure(lambda: step(n), name='a/x')"
    base = of("n = 1", "def step(k): return k", "n = 2", measure)
    assert of("n = 5", "def step(k): return k", "n = 2", measure) == base
    assert of("n = 1", "def step(k): return k", "n = 2", measure, "n = 3") == base
    assert of("n = 1", "def step(k): return k", "n = 3", measure) != base
    # What was in force when a value was made counts, too.
    made = of("n = 1", "data = [0] * n", "n = 2", "measure(lambda: data, name='a/x')")
    assert of("n = 5", "data = [0] * n", "n = 2", "measure(lambda: data, name='a/x')") != made
    assert of("n = 1", "data = [0] * n", "n = 7", "measure(lambda: data, name='a/x')") == made


def test_names_that_are_local_to_a_function_are_not_the_notebooks(tmp_path: Path):
    def of(*cells: str) -> str:
        return fingerprint(save(tmp_path / "01_a.ipynb", *cells), "a/x").code_hash

    work = "def work(a, *, b=0):\n    c = [d for d in a]\n    return (lambda e: e + b)(c)"
    run = "measure(work, name='a/x')"
    base = of("a = b = c = d = e = 1", work, run)
    assert of("a = b = c = d = e = 2", work, run) == base
    assert of("def work(): return counter", "counter = 1", run) != of("def work(): return counter", "counter = 2", run)


def test_an_experiment_in_a_class_or_function_sees_what_the_methods_read(tmp_path: Path):
    def of(*cells: str) -> str:
        return fingerprint(save(tmp_path / "01_a.ipynb", *cells), "a/x").code_hash

    model = "class Net(Module):\n    size = width\n    def forward(self, x):\n        return scale * x"
    run = "def trial():\n    return measure(Net(), name='a/x')"
    base = of("width = 1\nscale = 1", model, run, "trial()")
    assert of("width = 2\nscale = 1", model, run, "trial()") != base
    assert of("width = 1\nscale = 2", model, run, "trial()") != base
    assert of("width = 1\nscale = 1\nother = 3", model, run, "trial()") == base


def test_an_earlier_experiment_in_the_same_cell_is_another_experiment(tmp_path: Path):
    def of(cell: str) -> lessons.Fingerprint:
        return fingerprint(save(tmp_path / "01_a.ipynb", cell), "a/y")

    base = of("one = measure(f, name='a/x')\ntwo = sweep(g, over={'n': [1]}, name='a/y')")
    assert of("one = measure(h, name='a/x')\ntwo = sweep(g, over={'n': [1]}, name='a/y')") == base
    assert of("one = measure(f, name='a/x')\ntwo = sweep(g, one, over={'n': [1]}, name='a/y')") != base


@pytest.mark.parametrize(
    "magic",
    ["%matplotlib inline", "!nvidia-smi", "torch?", "%%time", "?torch", "files = !ls", "%timeit -n 1 f()"],
)
def test_magics_are_left_out(tmp_path: Path, magic: str):
    plain = fingerprint(save(tmp_path / "01_a.ipynb", "k = 1", "x = 1\nmeasure(f, name='a/x')"), "a/x")
    cells = ["k = 1", f"{magic}\nx = 1\nmeasure(f, name='a/x')"]
    if not magic.startswith("%%"):
        cells = [f"k = 1\n{magic}", "x = 1\nmeasure(f, name='a/x')"]
    assert fingerprint(save(tmp_path / "01_a.ipynb", *cells), "a/x") == plain
    with_script = save(tmp_path / "01_a.ipynb", "k = 1", "%%bash\nfor x in 1; do", "x = 1\nmeasure(f, name='a/x')")
    assert fingerprint(with_script, "a/x") == plain


def test_a_percent_sign_in_a_string_is_no_magic(tmp_path: Path):
    def of(words: str) -> str:
        return fingerprint(
            save(tmp_path / "01_a.ipynb", f"measure(f, '''\n%{words}\n''', name='a/x')"), "a/x"
        ).code_hash

    assert of("one") != of("two")


def test_an_unknown_experiment_is_an_error_that_lists_the_choices(tmp_path: Path):
    with pytest.raises(LessonError, match=r"Did you mean 'lesson/copy'\? Its experiments: lesson/copy, lesson/sizes"):
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


# The result on every supported Python: a change here means that all records are out of date. Raise the format's number.
def test_every_version_of_python_gives_the_same_fingerprint(tmp_path: Path):
    found = fingerprint(save(tmp_path / "01_a.ipynb", EVERY_SYNTAX), "a/x")
    assert (found.code_hash, found.parameters_hash) == ("3b7a2569b054ddba", "f610806c1283d145")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_fingerprints_agree_with_another_python(tmp_path: Path, version: str):
    installed = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")
    )
    python = installed[-1] if installed else shutil.which(f"python{version}")
    if not python:
        pytest.skip(f"Python {version} is not installed; the test above checks the same against stored values")
    paths = [save(tmp_path / "01_a.ipynb", EVERY_SYNTAX), save(tmp_path / "02_lesson.ipynb", *LESSON)]
    names = ["a/x", "lesson/copy"]
    # The package itself would import torch, which the other Python may lack.
    program = (
        "import sys, types, json\n"
        "package = types.ModuleType('course_utils'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['course_utils'] = package\n"
        "from course_utils.records.lessons import fingerprint\n"
        "found = [fingerprint(path, name) for path, name in zip(sys.argv[2::2], sys.argv[3::2])]\n"
        "print(json.dumps([[f.code_hash, f.parameters_hash] for f in found]))\n"
    )
    arguments = [str(part) for pair in zip(paths, names, strict=True) for part in pair]
    run = subprocess.run(
        [python, "-I", "-B", "-c", program, ROOT / "course_utils", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    here = [fingerprint(path, name) for path, name in zip(paths, names, strict=True)]
    assert json.loads(run.stdout) == [[found.code_hash, found.parameters_hash] for found in here]


def test_no_jupyter_package_and_no_torch_is_needed_to_read_lessons(tmp_path: Path):
    save(tmp_path / "02_lesson.ipynb", *LESSON)
    program = (
        "import sys, types\n"
        "package = types.ModuleType('course_utils'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['course_utils'] = package\n"
        "from course_utils.records import lessons\n"
        "lessons.fingerprint(sys.argv[2], 'lesson/copy')\n"
        "print([name for name in ('torch', 'matplotlib', 'nbformat', 'IPython') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", program, ROOT / "course_utils", tmp_path / "02_lesson.ipynb"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert run.stdout.strip() == "[]"


# The normal form


@pytest.fixture
def untidy(tmp_path: Path) -> Path:
    """A notebook with every kind of cell, as JupyterLab may leave it after a run."""
    return save(
        tmp_path / "01_untidy.ipynb",
        text("# 01 · Untidy   \n\nText  \n\n", id="intro", metadata={"collapsed": True}),
        code("import math  \n\n", outputs=[], execution_count=17, metadata={"scrolled": True, "ExecuteTime": 5}),
        code("x = 1", outputs=[stream("noise")], id="intro"),
        code("print('ran')", "experiment", outputs=[stream("ran\n")], execution_count=3, id="live"),
        code(
            "print('a' * 3)\nmath.pi > 3",
            "stable",
            outputs=[
                stream("a"),
                stream("aa\n"),
                {
                    "output_type": "execute_result",
                    "data": {"text/plain": ["Tr", "ue"], "image/png": "iVBORw0KGgo=\n"},
                    "metadata": {"needs_background": "light", "image/png": {"width": 3}},
                    "execution_count": 99,
                },
            ],
        ),
        code("y = 2", "hide-cell", id="solution"),
        code("   "),
        kernelspec={"name": "venv", "display_name": "my own", "language": "python"},
        language_info={"name": "python", "version": "3.11.7", "file_extension": ".py"},
        widgets={"application/vnd.jupyter.widget-state+json": {"state": {}}},
    )


def test_the_normal_form(untidy: Path):
    assert normal_form.write(untidy, execute=False)
    notebook = read_notebook(untidy)
    intro, imports, plain, live, stable, solution = notebook["cells"]
    assert intro["source"] == "# 01 · Untidy\n\nText"
    assert intro["metadata"] == imports["metadata"] == {}
    assert imports["source"] == "import math"
    assert (imports["execution_count"], plain["execution_count"]) == (1, 2)
    assert plain["outputs"] == live["outputs"] == []
    assert live["execution_count"] is None
    assert live["metadata"]["tags"] == ["experiment", "nbval-ignore-output"]
    assert stable["execution_count"] == 4
    assert stable["outputs"][0] == stream("aaa\n")
    assert stable["outputs"][1]["data"] == {"text/plain": "True", "image/png": "iVBORw0KGgo=\n"}
    assert stable["outputs"][1]["metadata"] == {"image/png": {"width": 3}}
    assert stable["outputs"][1]["execution_count"] == 4
    assert solution["metadata"] == {"tags": ["hide-cell"], "jupyter": {"source_hidden": True}}
    assert (intro["id"], live["id"], solution["id"]) == ("intro", "live", "solution")
    assert len({cell["id"] for cell in notebook["cells"]}) == 6
    assert notebook["metadata"] == {
        "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
        "language_info": {"name": "python"},
    }


def test_the_normal_form_is_a_valid_notebook_as_jupyterlab_would_save_it(untidy: Path):
    normal_form.write(untidy, execute=False)
    stored = untidy.read_text(encoding="utf-8")
    notebook = nbformat.reads(stored, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert nbformat.writes(notebook) + "\n" == stored


def test_writing_twice_changes_nothing_and_satisfies_the_check(untidy: Path):
    assert normal_form.check(untidy)
    normal_form.write(untidy, execute=False)
    first = untidy.read_bytes()
    assert not normal_form.write(untidy, execute=False)
    assert untidy.read_bytes() == first
    assert normal_form.check(untidy) == []


cells = st.lists(
    st.builds(
        lambda kind, source, identifier, tag, count: {
            "cell_type": kind,
            "source": source,
            "metadata": {"tags": [tag]} if tag and kind == "code" else {},
            **({"id": identifier} if identifier is not None else {}),
            **({"outputs": [stream("x")], "execution_count": count} if kind == "code" else {}),
        },
        st.sampled_from(["code", "markdown"]),
        st.text(alphabet="ab \n\t#é\u2028\x0c", max_size=12),
        st.sampled_from([None, "a", "b", "not valid!", ""]),
        st.sampled_from([None, "experiment", "stable", "hide-cell"]),
        st.none() | st.integers(1, 9),
    ),
    max_size=8,
)


@given(cells)
def test_the_normal_form_of_a_normal_form_is_itself(made: list[dict]):
    notebook = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    once, problems = normal_form.normalised(notebook, "a.ipynb")
    again, problems_again = normal_form.normalised(json.loads(json.dumps(once)), "a.ipynb")
    assert again == once
    assert problems == problems_again == []
    nbformat.validate(nbformat.reads(dumped(once), as_version=nbformat.NO_CONVERT))


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (code("x", "experimental"), "unknown tag experimental. The tags are experiment, hide-cell"),
        (code("x", "raises-exception"), "unknown tag raises-exception"),
        (code("x", "experiment", "stable", outputs=[stream("x")]), "both experiment and stable"),
        (code("x", "nbval-ignore-output"), "never be checked"),
        (code("# NBVAL_SKIP\nx"), "an NBVAL comment"),
        (code("x", "stable"), "a stable cell without output. Run: python -m authoring.normal_form --write"),
        (code("x", "stable", outputs=[stream("careful", "stderr")]), "on stderr"),
        (code("x", "stable", outputs=[stream("in /home/me/x.py")]), r"an absolute path \('/home/me'\)"),
        (code("x", "stable", outputs=[stream("C:\\Users\\me")]), "an absolute path"),
        (code("x", "stable", outputs=[stream("<Net at 0x7f3a2c10>")]), "a memory address"),
        (
            code("x", "stable", outputs=[{"output_type": "error", "ename": "KeyError", "evalue": "", "traceback": []}]),
            "is an error, KeyError",
        ),
        (
            code(
                "x",
                "stable",
                outputs=[
                    {
                        "output_type": "display_data",
                        "metadata": {},
                        "data": {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}},
                    }
                ],
            ),
            "a widget in a stable cell",
        ),
        ({"cell_type": "raw", "source": "x", "metadata": {}}, "a raw cell"),
        (text("x", metadata={"tags": ["stable"]}), "a Markdown cell tagged stable"),
        (text("x", metadata={"tags": ["slide", "subslide"]}), "both slide and subslide"),
        (code("x", "experiment", "slide"), "a slide begins with Markdown"),
        (text("x", attachments={"a.png": {}}), "a picture is attached"),
    ],
)
def test_what_is_refused_is_named_with_notebook_and_cell(tmp_path: Path, cell: dict, message: str):
    path = save(tmp_path / "01_a.ipynb", text("# A"), cell)
    before = path.read_bytes()
    problems = normal_form.check(path)
    assert problems
    with pytest.raises(LessonError, match=message) as error:
        normal_form.write(path, execute=False)
    assert "01_a.ipynb, cell 2 ('" in str(error.value)
    assert path.read_bytes() == before, "a refused notebook was written all the same"


def test_a_host_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save(tmp_path / "01_a.ipynb", code("x", "stable", outputs=[stream("ran on gpu-17, fine")]))
    assert not any("machine's name" in problem for problem in normal_form.check(path))
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-17")
    assert any("this machine's name ('gpu-17')" in problem for problem in normal_form.check(path))


@pytest.mark.parametrize(
    "words", ["ratio 1/2 and a/b/c", "</td></tr>", "https://docs.pytorch.org/tmp/x", "0xFF", "time/batch", "run/data"]
)
def test_ordinary_output_is_not_refused(tmp_path: Path, words: str):
    path = save(tmp_path / "01_a.ipynb", code("x", "stable", outputs=[stream(words)]))
    assert normal_form.write(path, execute=False)


def test_write_executes_and_keeps_the_outputs_of_stable_cells_alone(tmp_path: Path):
    path = save(
        tmp_path / "01_a.ipynb",
        code("import os\nimport time\nx = 20"),
        code("x += 1\nprint(time.time())", "experiment"),
        code(
            "print(os.environ['COURSE_SIZE'], os.path.basename(os.getcwd()))\nx * 2", "stable", outputs=[stream("old")]
        ),
    )
    assert normal_form.write(path)
    cells = read_notebook(path)["cells"]
    assert [bool(cell["outputs"]) for cell in cells] == [False, False, True]
    assert cells[2]["outputs"][0]["text"] == f"smoke {tmp_path.name}\n"
    assert cells[2]["outputs"][1]["data"] == {"text/plain": "42"}
    assert normal_form.check(path) == []
    assert not normal_form.write(path), "a second run gave another notebook"


def test_write_leaves_a_notebook_that_fails_as_it_was(tmp_path: Path):
    path = save(tmp_path / "01_a.ipynb", text("# A"), code("1 / 0"), code("print(1)", "stable"))
    before = path.read_bytes()
    with pytest.raises(
        LessonError, match=r"01_a.ipynb failed, and was left as it was.\nCell 2 raised:[\s\S]*ZeroDivision"
    ):
        normal_form.write(path)
    assert path.read_bytes() == before


def test_write_says_that_a_cell_took_too_long_or_the_kernel_died(tmp_path: Path):
    path = save(tmp_path / "01_a.ipynb", code("import time; time.sleep(60)"), code("print(1)", "stable"))
    with pytest.raises(LessonError, match="took more than 1 s"):
        normal_form.write(path, timeout_s=1)
    path = save(tmp_path / "01_a.ipynb", code("import os; os._exit(1)"), code("print(1)", "stable"))
    with pytest.raises(LessonError, match="the kernel died"):
        normal_form.write(path)


def test_the_command(untidy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(untidy.parent))
    assert lessons.main(["--check"]) == 1
    shown = capsys.readouterr().err
    assert "01_untidy.ipynb is not in normal form. Run: python -m authoring.normal_form --write" in shown
    assert len(shown.splitlines()) < 25
    assert lessons.main(["--write", "--no-execute", str(untidy)]) == 0
    assert capsys.readouterr().out == "01_untidy.ipynb: written\n"
    assert lessons.main(["--check", str(untidy.parent)]) == 0
    assert capsys.readouterr().out == "1 notebook in normal form\n"
    assert lessons.main(["--check", str(untidy.parent / "absent.ipynb")]) == 1
    assert "There is no notebook or folder" in capsys.readouterr().err


def test_the_command_goes_on_after_a_bad_notebook(untidy: Path, capsys: pytest.CaptureFixture[str]):
    save(untidy.parent / "00_bad.ipynb", code("x", "nonsense"))
    assert lessons.main(["--write", "--no-execute", str(untidy.parent)]) == 1
    captured = capsys.readouterr()
    assert "unknown tag nonsense" in captured.err
    assert "01_untidy.ipynb: written" in captured.out


# nbval: the options and the root conftest make it strict


def nbval(folder: Path, *arguments: str, seconds: int = 100) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "conftest.py", folder / "conftest.py")
    environment = {key: value for key, value in os.environ.items() if key != "COURSE_SIZE"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "--color=no", "-q"]
    command += ["--rootdir", str(folder), "-c", "/dev/null", "--nbval", f"--nbval-cell-timeout={seconds}", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture
def tidy(tmp_path: Path):
    """Makes a notebook in normal form, with executed stable cells, and then replaces some of its text."""

    def make(*cells: dict | str, replace: tuple[str, str] | None = None) -> Path:
        path = save(tmp_path / "01_a.ipynb", *cells)
        normal_form.write(path)
        if replace:
            stored = path.read_text()
            assert replace[0] in stored
            path.write_text(stored.replace(*replace))
        return tmp_path

    return make


def test_nbval_passes_a_sound_notebook_at_smoke_size(tidy):
    folder = tidy(
        "import os, time",
        code("print(time.time())", "experiment"),
        code("print(os.environ['COURSE_SIZE'])\n{'a': 1}", "stable"),
    )
    run = nbval(folder)
    assert run.returncode == 0, run.stdout
    assert "3 passed" in run.stdout


def test_nbval_sees_a_stable_output_that_changed(tidy):
    run = nbval(tidy("x = 1", code("print(x + 1)", "stable"), replace=('"x = 1"', '"x = 2"')))
    assert run.returncode == 1
    assert "Cell outputs differ" in run.stdout


def test_nbval_sees_an_untagged_cell_that_prints(tidy):
    run = nbval(tidy("x = 1", code("print(1)", "stable"), replace=('"x = 1"', '"x = 1; print(x)"')))
    assert run.returncode == 1
    assert "Unexpected output fields" in run.stdout


def test_nbval_sees_a_warning_in_a_stable_cell(tidy):
    warn = "import warnings; warnings.warn('careful'); print(1)"
    run = nbval(tidy(code("print(1)", "stable"), replace=('"print(1)"', json.dumps(warn))))
    assert run.returncode == 1
    assert "stderr" in run.stdout


def test_nbval_sees_an_error_in_an_experiment(tidy):
    run = nbval(tidy(code("1 / 0", "experiment"), "x = 1"))
    assert run.returncode == 1
    assert "ZeroDivisionError" in run.stdout


@pytest.mark.parametrize("position", ["first", "last"])
def test_nbval_sees_a_dead_kernel_at_once(tidy, position: str):
    dying = code("import os; os._exit(1)", "experiment")
    folder = tidy(*([dying, "x = 1"] if position == "first" else ["x = 1", dying]))
    run = nbval(folder, seconds=110)  # it must not wait for this
    assert run.returncode == 1
    assert "The kernel died" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "hanging",
    [
        "import time; time.sleep(60)",
        "while True:\n    try:\n        import time; time.sleep(60)\n    except BaseException: pass",
    ],
)
def test_nbval_ends_a_cell_that_hangs(tidy, hanging: str):
    run = nbval(tidy(code(hanging, "experiment")), seconds=2)
    assert run.returncode == 1
    assert "Timeout of 2 seconds exceeded" in run.stdout
