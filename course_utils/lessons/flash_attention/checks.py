"""The check of the lesson: attention over tiles of scores, with a running maximum and a running sum."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.materials.attention import relative_error

_TILE, _TILES = 16, 6
_PARTS = (False, False), (False, True), (True, False)  # whether the sum, and the result, are rescaled


@exercise
def check_attend(answer: Any) -> str | None:
    generator = torch.Generator().manual_seed(3)
    scores = 3 * torch.randn(8, _TILE * _TILES, generator=generator)
    values = torch.randn(_TILE * _TILES, 4, generator=generator)
    tiles = _Tiles(scores, values)
    given = ask(answer, tiles)
    if tiles.most_kept > 2:
        return "all_at_once"
    if not _is_right(given, scores, values):
        return _misconception(given, scores, values)
    hidden = scores.clone()
    hidden[:4, : 2 * _TILE] = -torch.inf  # as padding on the left hides them
    hidden[4:, -_TILE:] = -torch.inf
    if not _is_right(ask(answer, _Tiles(hidden, values)), hidden, values):
        return "masked_tile"
    if not _is_right(ask(answer, _Tiles(100 * scores, values)), 100 * scores, values):
        raise NotRight("Right for small scores, and wrong for large ones: exp(200) is infinite. Which exponents occur?")
    return None


class _Tiles:
    """Tiles, one after another; it counts how many older ones are still there when the next one is asked for."""

    def __init__(self, scores: torch.Tensor, values: torch.Tensor):
        self.pairs, self.most_kept = (scores.split(_TILE, dim=-1), values.split(_TILE)), 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        handed_out: list[weakref.ref[torch.Tensor]] = []
        for scores, values in zip(*self.pairs, strict=True):
            tile = scores.clone()
            handed_out.append(weakref.ref(tile))
            yield tile, values.clone()
            del tile
            self.most_kept = max(self.most_kept, sum(each() is not None for each in handed_out))


def _is_right(given: Any, scores: torch.Tensor, values: torch.Tensor) -> bool:
    expected = scores.double().softmax(-1) @ values.double()
    if not isinstance(given, torch.Tensor):
        raise NotRight(f"Return the result, a tensor; you return {type(given).__name__}.")
    if given.shape != expected.shape:
        raise NotRight(f"The result is [queries, head size], {list(expected.shape)}; yours is {list(given.shape)}.")
    return relative_error(given, expected) < 1e-4


def _misconception(given: torch.Tensor, scores: torch.Tensor, values: torch.Tensor) -> str:
    tiles = list(_Tiles(scores, values))
    alone = torch.stack([scores.softmax(-1) @ values for scores, values in tiles])
    by_tile = [alone.mean(0), alone.sum(0), *(_unscaled(tiles, False, *each) for each in _PARTS)]
    for key, wrong in (("tile_maximum", by_tile), ("not_rescaled", [_unscaled(tiles, True, *each) for each in _PARTS])):
        if any(relative_error(given, each) < 1e-4 for each in wrong):
            return key
    raise NotRight("This is not softmax(scores) @ values over all tiles. Try it on two tiles with two queries.")


def _unscaled(tiles: Any, running: bool, with_sum: bool, with_result: bool) -> torch.Tensor:
    """What comes out if the maximum is each tile's own, or if sum or result keep the scale of an older one."""
    largest, total, result = torch.tensor(-1e30), 0, 0
    for scores, values in tiles:
        larger = scores.amax(-1, keepdim=True).clamp(min=largest if running else None, max=torch.tensor(1e30))
        weights, fade = (scores - larger).exp(), (largest - larger).exp()
        total = total * (fade if with_sum else 1) + weights.sum(-1, keepdim=True)
        result, largest = result * (fade if with_result else 1) + weights @ values, larger
    return result / total
