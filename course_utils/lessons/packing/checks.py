"""The check of the lesson: documents, positions and targets of rows in which a separator ends each document."""

from __future__ import annotations

from typing import Any

import torch

from course_utils.lessons.answers import NotRight, ask, exercise
from course_utils.lessons.packing.cases import SEPARATOR

_ROWS = torch.tensor([[5, 7, 0, 3, 0, 9, 4, 8, 0], [6, 0, 2, 4, 1, 0, 8, 3, 7], [1, 2, 3, 4, 5, 6, 7, 8, 0]])


@exercise
def check_borders(answer: Any) -> str | None:
    given = ask(answer, _ROWS.clone(), SEPARATOR)
    tensors = [each for each in given if isinstance(each, torch.Tensor)] if isinstance(given, tuple) else []
    if [each.shape for each in tensors] != [_ROWS.shape] * 3:
        raise NotRight(f"Return document, position and target: three tensors like tokens, {list(_ROWS.shape)} here.")
    document, position, target = given
    ends, first = _ROWS == SEPARATOR, torch.ones(len(_ROWS), 1, dtype=torch.bool)
    starts = torch.cat([first, ends[:, :-1]], dim=1)
    changes = torch.cat([first, document[:, 1:] != document[:, :-1]], dim=1)
    if not torch.equal(changes, starts):
        return "separator_begins" if torch.equal(changes[:, 1:], ends[:, 1:]) else "documents"
    columns = torch.arange(_ROWS.shape[1]).expand_as(_ROWS)
    if torch.equal(position, columns):
        return "positions_run_on"
    if not torch.equal(position, columns - torch.where(starts, columns, 0).cummax(dim=1).values):
        return "positions"
    expected = torch.where(ends, -100, _ROWS.roll(-1, dims=1))
    expected[:, -1] = -100
    if torch.equal(target[:, :-1], expected[:, :-1]):
        return None if torch.equal(target, expected) else "row_end"
    if torch.equal(target[:, :-1], _ROWS[:, 1:]):
        return "border"
    return "never_stops" if not (target == SEPARATOR).any() else "targets"
