"""What a recorded stack says of a block: the line of the program that asked for it, and what it is probably for.

A stack is what a memory snapshot has as ``frames``, the innermost first. With ``stacks="python"`` these are Python's,
and a backward pass, which runs in a thread of autograd, has none; with ``stacks="all"`` there are C++ frames as well.
Source: torch/cuda/memory.py, ``_record_memory_history``,
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/cuda/memory.py#L908
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

WEIGHTS, FORWARD, BACKWARD, OPTIMIZER = "weights", "forward", "backward", "optimizer"
LOSS, CACHE, CHECKPOINT, OTHER = "loss", "KV cache", "checkpoint", "other"
NO_STACK = "no Python stack"  # as in a backward pass, which runs outside of Python
EARLIER = "from before the recording"

# PyTorch, what its compiler writes, and Python's own library.
_NOT_THE_PROGRAM = re.compile(
    r"(site|dist)-packages/torch/|pytorch/torch/|torchinductor|/lib/python3[^/]*/(?!(site|dist)-packages/)"
)
_LIBRARY = re.compile(r"(site|dist)-packages/")
_WEIGHTS = re.compile(
    r"(init|load|create|materialize)_(all_)?(weight|param|state_dict)|from_pretrained|reset_parameters"
)
_CACHE = re.compile(r"kv_?cache|(setup|init|alloc|allocate|create|make|update)_(\w+_)?caches?$")
_LOSS = re.compile(r"(?<![a-zA-Z])loss|Loss|cross_entropy|log_softmax|nll")
_MOST_FRAMES = 2000


class CodeLine(NamedTuple):
    """A line of a program, such as ``layers.py:12 forward``."""

    file: str
    line: int
    name: str

    def __repr__(self) -> str:
        *folders, file = self.file.split("/")
        inside = f"{folders[-1]}/{file}" if file == "__init__.py" and folders else file
        inside = "notebook" if "ipykernel_" in self.file else inside
        return f"{inside}:{self.line} {self.name}"


@dataclass(frozen=True)
class Stack:
    """What is known of a block from its stack."""

    place: CodeLine | None  # the innermost line outside of PyTorch and Python's own library; None without Python frames
    caller: CodeLine | None  # the program's own line that led there: outside of all modules, the next one further out
    kind: str  # what it is probably for, one of this module's words
    in_module: bool  # whether a module (``torch.nn.Module``) was being called
    path: tuple[CodeLine, ...]  # all lines of Python; the same for blocks that were asked for in the same way


NOTHING = Stack(None, None, NO_STACK, False, ())


def read_stack(frames: Sequence[Mapping[str, Any]]) -> Stack:
    """Read a stack, the innermost frame first.

    Example:
        >>> module = "/env/site-packages/torch/nn/modules/module.py"
        >>> frames = [("/me/net.py", 7, "forward"), (module, 1, "_call_impl"), ("/me/train.py", 3, "<module>")]
        >>> stack = read_stack([dict(zip(("filename", "line", "name"), frame)) for frame in frames])
        >>> stack.place, stack.caller, stack.kind
        (net.py:7 forward, train.py:3 <module>, 'forward')
    """
    every = [_place(frame) for frame in frames[:_MOST_FRAMES] if isinstance(frame, Mapping)]
    path = tuple(place for place in every if _is_python(place))
    if not path:
        return Stack(None, None, BACKWARD, False, ()) if _engine(every) else NOTHING
    calls = [at for at, each in enumerate(path) if _in_torch(each, "nn/modules/module.py") and "_call" in each.name]
    own = [at for at, each in enumerate(path) if not _NOT_THE_PROGRAM.search(each.file)]
    further = [at for at in own[1:] if at > max(calls, default=0) and not _LIBRARY.search(path[at].file)]
    caller = path[further[0]] if further else None
    innermost = own[0] if own else 0
    return Stack(path[innermost], caller, _kind(path, every, innermost), bool(calls), path)


def _place(frame: Mapping[str, Any]) -> CodeLine:
    file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
    file = file.replace("\\", "/") if isinstance(file, str) else ""
    return CodeLine(file, line if isinstance(line, int) else 0, name if isinstance(name, str) else "?")


def _is_python(place: CodeLine) -> bool:
    return place.file.endswith(".py") or place.file.startswith(("<ipython", "<stdin"))


def _engine(frames: Sequence[CodeLine]) -> bool:
    """Whether autograd's engine is at work: torch/csrc/autograd/engine.cpp."""
    return any("autograd::Engine::" in each.name or "autograd::python::PythonEngine" in each.name for each in frames)


def _in_torch(place: CodeLine, *files: str) -> bool:
    return any(f"torch/{file}" in place.file for file in files)


def _kind(path: Sequence[CodeLine], every: Sequence[CodeLine], innermost: int) -> str:
    """The innermost frame that tells decides, but for a backward pass, within which a forward may be run again."""
    for each in path:
        if "/optim" in each.file and not _in_torch(each, "optim/lr_scheduler"):
            return OPTIMIZER
        if _in_torch(each, "nn/modules/module.py"):
            break
    outermost = path[-1]
    if _engine(every) or _in_torch(outermost, "autograd/", "utils/checkpoint.py", "_functorch/"):
        return BACKWARD
    if any(_LOSS.search(each.name) or _LOSS.search(each.file.rpartition("/")[2]) for each in path[: innermost + 1]):
        return LOSS
    for each in path:
        if _in_torch(each, "autograd/__init__.py", "_tensor.py") and each.name in ("backward", "grad", "_make_grads"):
            return BACKWARD
        if _CACHE.search(each.name) or each.file.endswith(("kv_cache.py", "cache_engine.py", "cache_utils.py")):
            return CACHE
        if _in_torch(each, "nn/parallel/distributed.py") and each.name != "forward":
            return BACKWARD  # the buckets of gradients
        if _in_torch(each, "nn/modules/module.py") and each.name in ("_apply", "convert", "load_state_dict"):
            return WEIGHTS
        if _WEIGHTS.search(each.name) or (_in_torch(each, "nn/") and each.name == "__init__"):
            return WEIGHTS
        if (_in_torch(each, "nn/modules/module.py") and "_call" in each.name) or each.name == "forward":
            return FORWARD
    return CHECKPOINT if any(_in_torch(each, "serialization.py") for each in path) else OTHER
