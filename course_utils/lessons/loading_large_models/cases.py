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

WAYS = USUAL, MAPPED, UNDRAWN, ASSIGNED = "as usual", "mapped", "mapped, nothing drawn", "mapped, assigned"
THERE, GPU_UNITS = "mapped, nothing drawn, built there", {"in all": "s", "GPU memory": "bytes"}
STAGES, ENDS = ("building", "reading", "loading", "first answer"), ("fastest run", "slowest run")
UNITS = dict.fromkeys(("in all", *STAGES, *ENDS), "s")
UNITS |= {"own memory": "bytes", "file in use": "bytes"}
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
    """A file of the model's weights that lies on the disk and in the page cache; it is gone at the end."""
    state = make().state_dict()
    needs = sum(value.nbytes for value in state.values())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if needs > (free := shutil.disk_usage(folder).free) - 2**26:
            where = f"{free / 2**30:.2f} GiB are free in {tempfile.gettempdir()}: set TMPDIR to a folder on another"
            raise RuntimeError(f"The checkpoint needs {needs / 2**30:.2f} GiB. {where} disk and restart the kernel.")
        path = Path(folder) / "model.pt"
        with path.open("wb") as file:
            torch.save(state, file)
            os.fsync(file.flush() or file.fileno())  # only what is on the disk can be dropped from the cache
        del state
        yield path


def way(name: str, path: Path, done: Callable[[str], None], device: str = "cpu") -> tuple[Llama, float]:
    """One way to a model and its first answer; ``done`` is told of each stage."""
    built_on = {THERE: device, ASSIGNED: "meta"}.get(name, "cpu")
    with torch.device(built_on), no_drawing() if name in (UNDRAWN, THERE) else contextlib.nullcontext():
        model = make()
    done("building")
    state = torch.load(path, mmap=name != USUAL, map_location="cpu")
    done("reading")
    model.load_state_dict(state, assign=name == ASSIGNED)
    del state
    if name == ASSIGNED:
        model.turns = rotary_turns(len(model.turns), 2 * model.turns.shape[1])
    model.to(device)
    done("loading")
    with torch.no_grad():
        answer = model(torch.arange(16, device=device)[None]).square().sum().item()
    done("first answer")
    return model, answer


def loads(path: Path, *, cached: bool = True) -> list[dict[str, Any]]:
    """Each way in processes of its own. From the page cache the faster of two counts, else the median of five."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS if cached or name != MAPPED}
    rounds, size = 1 if course_size() == "test" else 2 if cached else 5, path.stat().st_size
    with progress("Loading a checkpoint", expected_s=2.5 * rounds * len(runs)) as bar:
        for name in [[*runs][(turn + turn // len(runs)) % len(runs)] for turn in range(rounds * len(runs))]:
            there = keep_or_drop(path, keep=cached)
            needs = {USUAL: 2.1, ASSIGNED: 0.1}.get(name, 1.1) + (0 if cached else 1.1)
            run = staged(partial(way, name, path), int(needs * size))
            first = dict.fromkeys(("in all", *(("building", "own memory") if cached else ENDS)))
            runs[name].append({**first, **run, "in all": sum(run[stage] for stage in STAGES), "cached": there})
            bar.advance(2.5)
    answers = [run["answer"] for its in runs.values() for run in its]
    if max(answers) > 1.00001 * min(answers):
        raise RuntimeError(f"the ways lead to models that answer differently: {runs}")
    for name, its in runs.items():
        its.sort(key=lambda run: run["in all"])
        runs[name] = [{**its[(rounds - 1) // 2], **dict(zip(ENDS, (its[0]["in all"], its[-1]["in all"]), strict=True))}]
    return [{"way": name, **its[0]} for name, its in runs.items()]


def keep_or_drop(path: Path, *, keep: bool) -> bool | None:
    """Bring a file into the page cache or out of it; whether its middle is there then, where the system tells."""
    with path.open("rb", buffering=0) as file:
        if not keep and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while keep and file.read(2**24):
            pass
        try:
            return bool(os.preadv(file.fileno(), [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT))
        except (AttributeError, OSError) as error:  # another system than Linux, or a file system that does not tell
            return False if isinstance(error, BlockingIOError) else None


def to_gpu(path: Path) -> list[dict[str, Any]]:
    """The same ways and a move to the GPU; then without it. The faster of two, after a discarded run that imports."""
    rows = []
    for name in (*WAYS, THERE):
        torch.cuda.reset_peak_memory_stats()
        runs = [timed(partial(way, name, path, device="cuda"))[0] for _ in range(3)]
        took = min(sum(run[stage] for stage in STAGES) for run in runs[1:])
        rows.append({"way": name, "in all": took, "GPU memory": torch.cuda.max_memory_allocated()})
    return rows
