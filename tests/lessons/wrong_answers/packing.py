"""Wrong answers to the exercise of `packing`: one for each hint."""

import torch


def borders(begins=False, across=False, run_on=False, from_one=False, border=False, stops=True, wraps=False, shifts=1):
    """An answer with one thing wrong."""

    def answer(tokens, separator):
        ends = (tokens == separator).long()
        document = ends.cumsum(1) if begins else ends.cumsum(1) - ends
        if across:
            document = torch.zeros_like(tokens)
        column = torch.arange(tokens.shape[1]).expand_as(tokens)
        starts = torch.ones_like(ends)
        starts[:, 1:] = ends[:, :-1]
        position = column if run_on else column - (starts * column).cummax(1).values + from_one
        target = tokens.roll(-shifts, 1)
        if not border:
            target[target == separator if not stops else tokens == separator] = -100
        if not wraps:
            target[:, -1] = -100
        return document, position, target

    return answer


WRONG = {
    "separator_begins": borders(begins=True),
    "documents": borders(across=True),
    "positions_run_on": borders(run_on=True),
    "positions": borders(from_one=True),
    "border": borders(border=True),
    "never_stops": borders(stops=False),
    "row_end": borders(wraps=True),
    "targets": borders(shifts=0, border=True),
}
