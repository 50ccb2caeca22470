"""Drawings of mechanisms: each is readable, as wide as the others, and says in words what it shows."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from course_utils import lessons, recorded
from course_utils.show.canvas import WIDTH_IN, ResultFigure
from tests.figure_checks import problems_of_texts, visible_texts

# What a drawing of a measurement draws here.
MEASURED = {
    "two_curves": "batch_size/target",
    "memory_against_time": "activation_checkpointing/trade",
    "seeds_to_target": "initialization/seeds",
}
MODULES = sorted(path.parent.name for path in Path(lessons.__file__).parent.glob("*/drawings.py"))


def drawings() -> list[tuple[str, str]]:
    modules = {name: importlib.import_module(f"{lessons.__name__}.{name}.drawings") for name in MODULES}
    return [
        (name, function)
        for name, module in modules.items()
        for function, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not function.startswith("_")
    ]


def test_every_module_draws_something():
    assert {module for module, _ in drawings()} == set(MODULES)


@pytest.mark.parametrize(("module", "function"), drawings())
def test_a_drawing_is_readable_and_described(module: str, function: str):
    measured = [recorded(MEASURED[function], machine="amd-epyc-2-cores")] if function in MEASURED else []
    fig = getattr(importlib.import_module(f"{lessons.__name__}.{module}.drawings"), function)(*measured)
    assert isinstance(fig, ResultFigure)
    assert fig.get_size_inches()[0] == WIDTH_IN
    assert problems_of_texts(fig) == []
    assert len(visible_texts(fig)) >= 3
    assert len(fig.alt) > 100
    assert fig.alt.endswith(".")
    assert fig.alt != ResultFigure.alt
