"""A lesson's cells for a GPU, on the played one: those tagged ``needs-cuda``, and those to paste that name CUDA.

A cell that needs a GPU runs after the earlier cells that make the names that it reads. nbval runs the others.
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

from course_utils.lesson_notebooks import named_experiments, read_notebook
from course_utils.measure.worked_by import begin_cell
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


def needed_by(cells: dict[int, Cell], wanted: Sequence[int]) -> list[int]:
    """The wanted cells and, for each name that one reads, the last cell before it that makes the name."""
    made = {number: names_of(cell["source"])[0] for number, cell in cells.items()}
    needed, open_cells = set(wanted), list(wanted)
    for number in open_cells:
        for name in names_of(cells[number]["source"])[1]:
            makers = [earlier for earlier in cells if earlier < number and name in made[earlier]]
            if makers and makers[-1] not in needed:
                needed.add(makers[-1])
                open_cells.append(makers[-1])
    return sorted(needed)


def play(notebook: Path) -> list[Outcome]:
    """Run in this process what a notebook has for a GPU. A cell tagged ``needs-cuda`` must measure, and work there."""
    install()
    builtins.display = show
    os.chdir(notebook.parent)
    sys.path.insert(0, str(notebook.parent))
    cells, module = code_cells(notebook), types.ModuleType("__main__")
    outcomes = [
        _run(number, cell, types.ModuleType("__main__")) for number, cell in cells.items() if pasted_on_a_gpu(cell)
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COURSE_RECORD_TO"] = folder
        for number in needed_by(cells, [number for number, cell in cells.items() if tagged(cell, "needs-cuda")]):
            cell, before = cells[number], PLAYED.kernels
            outcome = _run(number, cell, module)
            if tagged(cell, "needs-cuda") and not outcome.error:
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


def _run(number: int, cell: Cell, module: types.ModuleType) -> Outcome:
    """Run a cell as a notebook does, and write down what it raises."""
    outcome, source = Outcome(number, cell["id"]), cell["source"]
    where, started = f"cell {number}", time.monotonic()
    tree = ast.parse(source, where)
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
