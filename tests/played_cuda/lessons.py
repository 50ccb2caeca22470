"""A lesson's cells for a GPU, on the played one: those to paste that name CUDA, and those tagged ``needs-cuda``.

Of the latter those that no GPU has run as they are, by the records. Such a cell runs after what makes the names that it
reads, statement by statement, of the cells before it. nbval runs the others, with what they measure.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import gc
import io
import linecache
import os
import re
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.lesson_notebooks import Lesson, named_experiments, read_notebook
from course_utils.measure.worked_by import begin_cell
from course_utils.results import store
from course_utils.results.code_hash import code_hash
from tests.played_cuda.torch_on_it import PLAYED, install

Cell = dict[str, Any]


@dataclass
class Outcome:
    """What became of a cell."""

    cell: int  # counts all cells from 1, text too
    id: str
    error: str = ""  # what it raised, in words
    line: int = 0  # of the cell, in which it did
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"cell {self.cell} ({self.id}), line {self.line}: {self.error}"


def code_cells(notebook: Path) -> dict[int, Cell]:
    """The code cells by their place among all cells, from 1."""
    cells = enumerate(read_notebook(notebook)["cells"], start=1)
    return {number: cell for number, cell in cells if cell["cell_type"] == "code"}


def tagged(cell: Cell, tag: str) -> bool:
    """Whether a cell has this tag."""
    return tag in cell["metadata"].get("tags", [])


def pasted_on_a_gpu(cell: Cell) -> bool:
    """Whether a cell is to be pasted, and does something else where there is a GPU."""
    return tagged(cell, "standalone") and re.search("cuda|accelerator", cell["source"]) is not None


def is_recorded(lesson: Lesson, cell: Cell) -> bool:
    """Whether a GPU has run all experiments of a cell, with the code that they have now."""
    now = {name: code_hash(lesson, name) for name in named_experiments(cell["source"])}
    for record in store.records_of(lesson.slug, store.reference_root()):
        then = {name: experiment.code_hash for name, experiment in record.experiments.items()}
        if record.environment.device_kind == "cuda" and now.items() <= then.items():
            return True
    return False


def to_play(lesson: Lesson) -> dict[int, Cell]:
    """The cells of a lesson for a GPU that none has run as they are."""
    return {
        number: cell
        for number, cell in code_cells(lesson.path).items()
        if pasted_on_a_gpu(cell) or (tagged(cell, "needs-cuda") and not is_recorded(lesson, cell))
    }


def needed_by(cells: dict[int, Cell], wanted: Sequence[int]) -> dict[int, ast.Module]:
    """The wanted cells, and of those before them the statements that make or change names that are read later."""
    needed, kept = set(), {}
    for number in reversed(cells):
        statements = []
        for statement in reversed(ast.parse(cells[number]["source"]).body):
            made, read = names_of(ast.unparse(statement))
            if number in wanted or not needed.isdisjoint(made | _changed(statement)):
                # What an `if` makes, it makes before it reads it.
                needed = (needed - made) | (read - made if isinstance(statement, ast.If | ast.With) else read)
                statements.insert(0, statement)
        if statements:
            kept[number] = ast.Module(statements, [])
    return dict(reversed(kept.items()))


def _changed(statement: ast.stmt) -> set[str]:
    """Names of what gets an entry or an attribute: ``options["check"] = same``."""
    targets = [each for each in getattr(statement, "targets", []) if isinstance(each, ast.Subscript | ast.Attribute)]
    return {target.value.id for target in targets if isinstance(target.value, ast.Name)}


def play(lesson: Lesson) -> list[Outcome]:
    """Run in this process what is to play of a lesson. A cell tagged ``needs-cuda`` must measure, and work there."""
    cells, played, module = code_cells(lesson.path), to_play(lesson), types.ModuleType("__main__")
    install()
    builtins.display = show
    os.chdir(lesson.path.parent)
    sys.path.insert(0, str(lesson.path.parent))
    alone = [number for number, cell in played.items() if pasted_on_a_gpu(cell)]
    wanted = [number for number in played if number not in alone]
    outcomes = [
        _run(number, cells[number], ast.parse(cells[number]["source"]), types.ModuleType("__main__"))
        for number in alone
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COURSE_RECORD_TO"] = folder
        for number, tree in needed_by(cells, wanted).items():
            cell, before = cells[number], PLAYED.kernels
            outcome = _run(number, cell, tree, module)
            if number in wanted and not outcome.error:
                kept = {path.stem.replace("__", "/") for path in Path(folder).iterdir()}
                if missing := [name for name in named_experiments(cell["source"]) if name not in kept]:
                    outcome.error = f"did not measure {', '.join(missing)}"
                elif PLAYED.kernels == before:
                    outcome.error = "did nothing on the GPU"
            outcomes.append(outcome)
    return outcomes


def show(*values: Any) -> None:
    """``display``: makes what a notebook would show, and shows nothing."""
    for value in values:
        ways = (getattr(value, name, None) for name in ("_repr_mimebundle_", "_repr_html_"))
        next(filter(None, ways), value.__repr__)()


def strange_names(source: str) -> list[str]:
    """Names that some code reads and nowhere makes, also inside of functions.

    Example:
        >>> strange_names("import torch; f = lambda: torch.ones(n)")
        ['n']
    """
    made, read = names_of(source)
    known = set(dir(builtins)) - {"display"} | {"__name__", "__module__", "__qualname__", "__annotations__"}
    return sorted(read - made - known)


def names_of(source: str) -> tuple[set[str], set[str]]:
    """The global names that some code makes, and those that it reads, also inside of functions."""
    codes, made, read = [compile(source, "cell", "exec")], set(), set()
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
                read.add(step.argval)
            elif step.opname in ("STORE_NAME", "STORE_GLOBAL"):
                made.add(step.argval)
    return made, read


_KEPT: list[types.ModuleType] = []  # a process group of gloo that is freed may wait for ever for its own thread


def _run(number: int, cell: Cell, tree: ast.Module, module: types.ModuleType) -> Outcome:
    """Run statements of a cell as a notebook does, and write down what they raise."""
    outcome, source = Outcome(number, cell["id"]), cell["source"]
    where, started = f"cell {number}", time.monotonic()
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        shown = ast.Call(ast.Name("display", ast.Load()), [last.value], [])
        last.value = ast.fix_missing_locations(ast.copy_location(shown, last.value))
    linecache.cache[where] = (len(source), None, source.splitlines(keepends=True), where)
    sys.modules["__main__"] = module  # pickling looks for classes there
    _KEPT.append(module)
    begin_cell()
    gc.freeze()  # a memory pass collects garbage, and would look through all that torch has loaded
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), PLAYED.playing():
            warnings.simplefilter("ignore")
            exec(compile(tree, where, "exec"), vars(module))
    except BaseException as error:  # whatever a cell raises
        frames = traceback.extract_tb(error.__traceback__)
        outcome.line = next((frame.lineno for frame in reversed(frames) if frame.filename == where), 0)
        outcome.error = f"{type(error).__name__}: {error} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
        if os.environ.get("PLAYED_TRACEBACK"):
            traceback.print_exception(error)
    outcome.seconds = time.monotonic() - started
    return outcome
