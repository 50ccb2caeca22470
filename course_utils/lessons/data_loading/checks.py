"""Checks of the lesson."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from course_utils.lessons.answers import UNKNOWN, NotRight, ask, exercise, listed, number, recognise

# (load, step in milliseconds, cores): three keep up, one and a half do, the cores do not reach, one keeps up.
_LOADERS = ((30, 10, 16), (15, 10, 8), (90, 10, 4), (6, 10, 8), (44, 10, 32))
# By hint, the formulas that lead to it.
_Ways = Mapping[str | None, Sequence[Callable[[int, int, int], float]]]
_WORKERS: _Ways = {
    None: [lambda load, step, cores: min(math.ceil(load / step), cores)],
    "rounds_down": [
        lambda load, step, cores: min(load // step, cores),
        lambda load, step, cores: min(max(1, load // step), cores),
        lambda load, step, cores: load // step,
        lambda load, step, cores: max(1, load // step),
    ],
    "rounds_to_nearest": [
        lambda load, step, cores: min(max(1, round(load / step)), cores),
        lambda load, step, cores: round(load / step),
    ],
    "no_rounding": [
        lambda load, step, cores: min(load / step, cores),
        lambda load, step, cores: load / step,
    ],
    "cores_forgotten": [lambda load, step, cores: math.ceil(load / step)],
    "none_for_short_loading": [lambda load, step, cores: min(math.ceil(load / step), cores) if load > step else 0],
    "core_left_free": [
        lambda load, step, cores: min(math.ceil(load / step), cores - 1),
        lambda load, step, cores: max(1, min(math.ceil(load / step), cores) - 1),
    ],
    "all_cores": [lambda load, step, cores: cores],
    "upside_down": [
        lambda load, step, cores: min(math.ceil(step / load), cores),
        lambda load, step, cores: math.ceil(step / load),
    ],
    "one_too_many": [
        lambda load, step, cores: min(math.ceil(load / step) + 1, cores),
        lambda load, step, cores: math.ceil(load / step) + 1,
    ],
}
_STEP_MS: _Ways = {
    None: [lambda load, step, cores: max(step, load / min(math.ceil(load / step), cores))],
    "always_keeps_up": [lambda load, step, cores: step],
    "step_is_added": [lambda load, step, cores: step + load / min(math.ceil(load / step), cores)],
    "forgets_the_step": [lambda load, step, cores: load / min(math.ceil(load / step), cores)],
}


@exercise
def check_workers(answer: Any) -> str | None:
    """Compares both numbers with what people write, on loaders where the formulas differ."""
    given = []
    for case in _LOADERS:
        both = ask(answer, *case)
        both = listed(both) if isinstance(both, Iterable) else [both]
        if len(both) != 2:
            raise NotRight(f"Return two numbers, `workers, ms`; you return {len(both)}.")
        given.append([number(each) for each in both])
    for place, (what, ways) in enumerate((("workers", _WORKERS), ("ms a step", _STEP_MS))):
        values = [pair[place] for pair in given]
        each_way = {(key, at): way for key, of_key in ways.items() for at, way in enumerate(of_key)}
        found = recognise(values, each_way, _LOADERS)
        if found == UNKNOWN:
            right = [ways[None][0](*case) for case in _LOADERS]
            wrong = next(at for at, value in enumerate(values) if not math.isclose(value, right[at], rel_tol=1e-6))
            load, step, cores = _LOADERS[wrong]
            raise NotRight(
                f"A batch that loads in {load} ms, a step of {step} ms and {cores} cores: you return "
                f"{values[wrong]:.4g} {what}, and {right[wrong]:.4g} is right."
            )
        if found[0] is not None:
            return found[0]
    return None


_SHARDS = tuple(f"shard-{number:02d}.tar" for number in range(10))


@exercise
def check_share(answer: Any) -> str | None:
    """Splits ten shards among no worker, one, three and four, and looks where each shard went."""
    for workers in (0, 1, 3, 4):
        infos = [SimpleNamespace(id=id, num_workers=workers, seed=id, dataset=None) for id in range(workers)] or [None]
        shares = [listed(_ask_share(answer, info)) for info in infos]
        if foreign := [shard for share in shares for shard in share if shard not in _SHARDS]:
            raise NotRight(f"Return shards out of the list that you are given; {foreign[0]!r} is none of them.")
        counts = [sum(share.count(shard) for share in shares) for shard in _SHARDS]
        if all(count == len(infos) for count in counts) and len(infos) > 1:
            return "everyone_reads_all"
        if sorted(listed(_ask_share(answer, infos[0]))) != sorted(shares[0]):
            return "unseeded"
        if workers and shares == [list(_SHARDS[id - 1 :: workers]) for id in range(workers)]:
            return "counts_from_one"
        if workers and all(len(share) == 1 for share in shares):
            return "one_each"
        if 0 in counts:
            return "nothing_without_workers" if infos == [None] else "loses_the_rest"
        if max(counts) > 1:
            return "some_twice"
        lengths = [len(share) for share in shares]
        if max(lengths) - min(lengths) > 1:
            return "uneven"
    return None


def _ask_share(answer: Any, info: Any) -> Any:
    try:
        return ask(answer, list(_SHARDS), info)
    except NotRight as error:
        if info is None and isinstance(error.__cause__, AttributeError):
            raise NotRight(
                "With num_workers=0 there is no worker, and get_worker_info() returns None: your code asks None for "
                "its id. Who reads the shards then?"
            ) from error
        raise
