"""Checks of the lesson. None needs ranks: a formula, and torchrun's own parser."""

from __future__ import annotations

import contextlib
import io
import math
import shlex
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, effect, exercise, number, recognise

_GIB = 2**30
# (parameters, bytes of activations on a GPU, bytes of its memory). The last one fills 8 GPUs to the byte.
_ROOM = tuple((p, a * _GIB, 80 * _GIB) for p, a in ((13e9, 30), (85e9, 40), (405e9, 10), (20 * _GIB, 40)))
_FULL = ((7e9, 90 * _GIB, 80 * _GIB), (7e9, 80 * _GIB, 80 * _GIB))  # nothing is left for shards


def _gpus(
    kept: float = 16, shared: bool = False, ignored: bool = False, round_=math.ceil, whole: bool = True
) -> Callable:
    """A formula that people write, from what it gets wrong."""

    def of(parameters: float, activations: float, memory: float) -> int:
        if shared:
            needed = round_((kept * parameters + activations) / memory)
        else:
            needed = round_(kept * parameters / (memory - (0 if ignored else activations)))
        return 8 * round_(needed / 8) if whole else needed

    return of


@exercise
def check_least_gpus(answer: Any) -> str | None:
    """Compares with each formula that people write, and asks about a batch that fits nowhere."""
    given = [number(ask(answer, *case), "A number of GPUs") for case in _ROOM]
    formulas = {
        None: _gpus(),
        "no_optimizer": _gpus(kept=8),
        "no_gradients": _gpus(kept=12),
        "shares_activations": _gpus(shared=True),
        "no_activations": _gpus(ignored=True),
        "rounds_down": _gpus(round_=math.floor),
        "part_of_a_machine": _gpus(whole=False),
    }
    key = recognise(given, formulas, _ROOM)
    if key == UNKNOWN:
        case, wrong = next((case, n) for case, n in zip(_ROOM, given, strict=True) if n != _gpus()(*case))
        parameters, activations, memory = case
        raise NotRight(
            f"For {parameters / 1e9:.0f} billion parameters, {activations / _GIB:.0f} GiB of activations and "
            f"{memory / _GIB:.0f} GiB of memory you return {wrong:g}; {_gpus()(*case)} is right. How "
            "many bytes of each GPU are left for its shards, and how many bytes are all shards together?"
        )
    if key is None and any(effect(answer, *case) is not None for case in _FULL):
        return "never_none"
    return key


_CLUSTERS = ((["gpu-a", "gpu-b", "gpu-c"], 4), (["node-1", "node-2"], 8))


def _parsed(command: Any) -> Namespace:
    from torch.distributed.run import get_args_parser

    if not isinstance(command, str):
        raise NotRight(f"Return a list of commands, each one a text; there is a {type(command).__name__} in yours.")
    words = shlex.split(command)
    if words[:1] != ["torchrun"]:
        raise NotRight(f"Each command begins with torchrun; yours is: {command!r}.")
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return get_args_parser().parse_args(words[1:])
    except SystemExit:
        said = (messages.getvalue().strip().splitlines() or ["nothing"])[-1]
        raise NotRight(f"torchrun does not understand {command!r}. It says: {said}") from None


@exercise
def check_commands(answer: Any) -> str | None:
    """Reads the commands as torchrun does."""
    keys = (_wrong_with(ask(answer, list(hosts), gpus), hosts, gpus) for hosts, gpus in _CLUSTERS)
    return next(filter(None, keys), None)


def _wrong_with(commands: Any, hosts: list[str], gpus: int) -> str | None:
    if not isinstance(commands, list | tuple) or len(commands) != len(hosts):
        raise NotRight(f"For {len(hosts)} hosts, return a list of {len(hosts)} commands, one for each.")
    options = [_parsed(command) for command in commands]
    if any(each.standalone for each in options):
        return "standalone"
    if any(each.nnodes not in (str(len(hosts)), f"{len(hosts)}:{len(hosts)}") for each in options):
        return "nodes"
    if any(str(each.nproc_per_node) not in (str(gpus), "gpu", "auto") for each in options):
        return "ranks_of_all"
    if all(each.rdzv_backend == "static" for each in options):  # the older way: every node is told its number
        numbered = [each.node_rank for each in options] == list(range(len(hosts)))
        if not numbered or {each.master_addr for each in options} != {hosts[0]}:
            return "no_backend"
    elif {each.rdzv_endpoint.partition(":")[0] for each in options} != {hosts[0]}:
        return "own_endpoint"
    elif len({each.rdzv_endpoint for each in options}) > 1 or len({each.rdzv_id for each in options}) > 1:
        return "do_not_meet"
    if any(each.training_script != "train.py" for each in options):
        raise NotRight("Each command ends with the program, train.py.")
    return None
