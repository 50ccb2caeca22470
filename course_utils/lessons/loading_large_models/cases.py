"""A checkpoint of 1 GiB, and ways from it to a model that answers."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import init

from course_utils.lessons.loading_large_models.fresh_process import staged, timed
from course_utils.materials.models import Llama, rotary_turns
from course_utils.measure.machine import course_size
from course_utils.show.progress import progress

# Each keeps what the ones before it changed, but the last, which draws on `meta`.
WAYS = USUAL, MAPPED, UNDRAWN, ASSIGNED, META = "as usual", "mapped", "nothing drawn", "assigned", "on meta"
STAGES, GPU_UNITS = ("building", "reading", "loading", "first answer"), {"in all": "s", "GPU memory": "bytes"}
UNITS = dict.fromkeys(("in all", *STAGES), "s") | dict.fromkeys(("own memory", "file in use"), "bytes")
_DRAWING = [name for name in dir(init) if name.endswith(("uniform_", "normal_", "orthogonal_", "sparse_"))]


def make() -> Llama:
    """A Llama, drawn as PyTorch draws it. Its table of rotations, ``turns``, is in no checkpoint."""
    if course_size() == "test":
        return Llama(width=64, layers=1)
    return Llama(vocabulary=32_000, context=2048, width=2048, layers=3, heads=16, hidden=5504)


def no_drawing() -> Any:
    """The lesson's context; a test holds both to do the same."""
    return mock.patch.multiple(init, **dict.fromkeys(_DRAWING, lambda tensor, *_, **__: tensor))


@contextlib.contextmanager
def checkpoint() -> Iterator[Path]:
    """A file of the model's weights, which lies in the page cache; it is gone at the end."""
    state = make().state_dict()
    needs = sum(value.nbytes for value in state.values())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if needs > (free := shutil.disk_usage(folder).free) - 2**26:
            where = f"{free / 2**30:.2f} GiB are free in {tempfile.gettempdir()}: set TMPDIR to a folder on another"
            raise RuntimeError(f"The checkpoint needs {needs / 2**30:.2f} GiB. {where} disk and restart the kernel.")
        path = Path(folder) / "model.pt"
        with path.open("wb") as file:
            torch.save(state, file)
            os.fsync(file.flush() or file.fileno())  # or it is written beside the first ways
        del state
        yield path


def way(name: str, path: Path, done: Callable[[str], None], device: str = "cpu") -> tuple[Llama, float]:
    """One way to a model and its first answer; ``done`` is told of each stage."""
    draws = contextlib.nullcontext() if name in (USUAL, MAPPED, META) else no_drawing()
    with torch.device("meta" if name == META else "cpu"), draws:
        model = make()
    done("building")
    state = torch.load(path, mmap=name != USUAL, map_location="cpu")
    done("reading")
    model.load_state_dict(state, assign=name in (ASSIGNED, META))
    del state
    if name == META:
        model.turns = rotary_turns(len(model.turns), 2 * model.turns.shape[1])
    model.to(device)
    done("loading")
    with torch.no_grad():
        answer = model(torch.arange(16, device=device)[None]).square().sum().item()
    done("first answer")
    return model, answer


def loads(path: Path) -> list[dict[str, Any]]:
    """Each way from the page cache, twice, in processes of its own; the faster counts."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    rounds, size = 1 if course_size() == "test" else 2, path.stat().st_size
    with progress("Loading a checkpoint", expected_s=2.5 * rounds * len(WAYS)) as bar:
        for name in rounds * WAYS:
            bring(path)
            run = staged(partial(way, name, path), int({USUAL: 2.1}.get(name, 1.1) * size))
            first = dict.fromkeys(("in all", "building", "own memory"))
            runs[name].append({"way": name, **first, **run, "in all": sum(run[stage] for stage in STAGES)})
            bar.advance(2.5)
    answers = [run["answer"] for its in runs.values() for run in its]
    if max(answers) > 1.00001 * min(answers):
        raise RuntimeError(f"the ways lead to models that answer differently: {runs}")
    return [min(its, key=lambda run: run["in all"]) for its in runs.values()]


def bring(path: Path) -> None:
    """Read a file through, so that it lies in the page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(2**24):
            pass


def to_gpu(path: Path) -> list[dict[str, Any]]:
    """The same ways, then a move to the GPU. The faster of two, after a discarded run that imports."""
    rows = []
    for name in WAYS[:-1]:
        torch.cuda.reset_peak_memory_stats()
        runs = [timed(partial(way, name, path, device="cuda"))[0] for _ in range(3)]
        took = min(sum(run[stage] for stage in STAGES) for run in runs[1:])
        rows.append({"way": name, "in all": took, "GPU memory": torch.cuda.max_memory_allocated()})
    return rows
