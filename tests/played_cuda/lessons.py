"""Lessons on the played GPU: every code cell in order, and each cell that is to be pasted by itself."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dis
import functools
import gc
import inspect
import io
import json
import linecache
import os
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_utils.lesson_notebooks import named_experiments, read_notebook
from course_utils.measure.worked_by import begin_cell
from course_utils.ranks import launch
from course_utils.results.rank_results import RankResults
from course_utils.results.store import recorded, records_of, reference_root
from tests.played_cuda.torch_on_it import PLAYED, install


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


def show(*values: Any) -> None:
    """``display``: makes what a notebook would show, and shows nothing."""
    for value in values:
        ways = (getattr(value, name, None) for name in ("_repr_mimebundle_", "_repr_html_"))
        next(filter(None, ways), value.__repr__)()


def play(notebook: Path) -> list[Outcome]:
    """Run all code cells of a notebook in this process, on the GPU. One tagged ``needs-cuda`` must work there.

    Ranks would see no GPU: where a run of them is recorded, its record stands for it.
    """
    install()
    launch.run_ranks = functools.partial(_remembered, launch.run_ranks)
    builtins.display = show
    os.chdir(notebook.parent)
    sys.path.insert(0, str(notebook.parent))
    module, outcomes = types.ModuleType("__main__"), []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COURSE_RECORD_TO"] = folder
        for number, cell in _code_cells(notebook):
            before, outcome = PLAYED.kernels, Outcome(number, cell["id"])
            tags = cell["metadata"].get("tags", [])
            tree = ast.parse(cell["source"], f"cell {number}")
            names = named_experiments(cell["source"])
            if tree.body and isinstance(last := tree.body[-1], ast.Expr):
                shown = ast.Call(ast.Name("display", ast.Load()), [last.value], [])
                last.value = ast.fix_missing_locations(ast.copy_location(shown, last.value))
            begin_cell()
            gc.freeze()  # a memory pass collects garbage, and would look through all that torch has loaded
            _run(tree, cell["source"], module, outcome, on_gpu=True)
            if "needs-cuda" in tags and not outcome.error:
                missing = [name for name in names if not Path(folder, name.replace("/", "__") + ".json").exists()]
                if missing or PLAYED.kernels == before:
                    outcome.error = f"did not measure {', '.join(missing)}" if missing else "did nothing on the GPU"
            for name in () if outcome.error else names:
                kept = Path(folder, name.replace("/", "__") + ".json")
                outcome.error = outcome.error or (_other_worker(kept, name) if kept.exists() else "")
            outcomes.append(outcome)
    return outcomes


def _other_worker(kept: Path, name: str) -> str:
    """What is wrong with what is found out of who worked: a real GPU's record of the experiment tells the same."""
    records = records_of(name.partition("/")[0], reference_root())
    real = [each for each in records if each.environment.device_kind == "cuda" and name in each.experiments]
    found = json.loads(kept.read_text())["data"]["worked_by"]
    expected = real[0].experiments[name].data["worked_by"] if real else found
    return "" if found == expected else f"{name} is worked by {found}, and the record says {expected}"


def _remembered(run_ranks: Callable[..., Any], program: str, **options: Any) -> Any:
    inspect.signature(run_ranks).bind(program, **options)
    if "name" not in options:
        return run_ranks(program, **options)
    record = recorded(options["name"])
    if not isinstance(record, RankResults):
        raise NotImplementedError("ranks see no GPU, and no run of them is recorded")
    return record


_KEPT: list[types.ModuleType] = []  # a process group of gloo that is freed may wait for ever for its own thread


def paste(notebook: Path) -> list[Outcome]:
    """Run each cell tagged ``standalone`` by itself, without a GPU and with one."""
    cells = [
        (number, cell) for number, cell in _code_cells(notebook) if "standalone" in cell["metadata"].get("tags", [])
    ]
    outcomes: list[Outcome] = []
    for on_gpu in (False, True):
        if on_gpu:
            install()
        for number, cell in cells:
            outcome = Outcome(number, f"{cell['id']}, {'with a GPU' if on_gpu else 'without a GPU'}")
            if strangers := strange_names(cell["source"]):
                outcome.error = f"names {', '.join(strangers)}, which it does not import or define"
            elif "course_utils" in cell["source"]:
                outcome.error = "names course_utils"
            else:
                tree = ast.parse(cell["source"], f"cell {number}")
                _run(tree, cell["source"], types.ModuleType("__main__"), outcome, on_gpu)
            outcomes.append(outcome)
    return outcomes


def strange_names(source: str) -> list[str]:
    """Names that some code reads and nowhere makes, also inside of functions.

    Example:
        >>> strange_names("import torch; f = lambda: torch.ones(n)")
        ['n']
    """
    codes, made, read = [compile(source, "cell", "exec")], set(dir(builtins)) - {"display"}, set()
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
                read.add(step.argval)
            elif step.opname in ("STORE_NAME", "STORE_GLOBAL"):
                made.add(step.argval)
    return sorted(read - made - {"__name__", "__module__", "__qualname__", "__annotations__"})


def _code_cells(notebook: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, cell in enumerate(read_notebook(notebook)["cells"], start=1):
        if cell["cell_type"] == "code":
            yield number, cell


def _run(tree: ast.Module, source: str, module: types.ModuleType, outcome: Outcome, on_gpu: bool) -> None:
    """Run a cell, and write down what it raises."""
    where, started = f"cell {outcome.cell}", time.monotonic()
    linecache.cache[where] = (len(source), None, source.splitlines(keepends=True), where)
    sys.modules["__main__"] = module  # pickling looks for classes there
    _KEPT.append(module)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with PLAYED.playing() if on_gpu else contextlib.nullcontext():
                exec(compile(tree, where, "exec"), vars(module))
    except BaseException as error:  # whatever a cell raises
        frames = traceback.extract_tb(error.__traceback__)
        outcome.line = next((frame.lineno for frame in reversed(frames) if frame.filename == where), 0)
        outcome.error = f"{type(error).__name__}: {error} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
        if os.environ.get("PLAYED_TRACEBACK"):
            traceback.print_exception(error)
    outcome.seconds = time.monotonic() - started
