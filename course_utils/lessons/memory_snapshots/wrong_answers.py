"""Wrong answers to the exercises of lesson 12: one for each hint."""

from collections import Counter

import torch.nn.functional as F


def lines_at(trace, moment):
    sizes = Counter()
    for row in trace.at(moment):
        sizes[row.line] += row.size_bytes
    return sizes


def alive_until_and_with_death(blocks):
    moments = range(max(died for *_, died in blocks) + 1)

    def alive(moment):
        return [block for block in blocks if block[2] <= moment <= block[3]]

    peak = max(moments, key=lambda moment: sum(size for _, size, *_ in alive(moment)))
    return [name for name, *_ in alive(peak)]


def alive_at_the_end(blocks):
    end = max(died for *_, died in blocks)
    return [name for name, _, _, died in blocks if died == end]


def alive_at_the_last_peak(blocks):
    def alive(moment):
        return [block for block in blocks if block[2] <= moment < block[3]]

    highest, there = 0, []
    for moment in range(max(died for *_, died in blocks)):
        total = sum(size for _, size, *_ in alive(moment))
        if total >= highest:
            highest, there = total, alive(moment)
    return [name for name, *_ in there]


def most_blocks(trace, starts):
    return max(trace.at(trace.moments - 1), key=lambda row: row.count).line


def grew_since_the_start(trace, starts):
    return (lines_at(trace, trace.moments - 1) - lines_at(trace, 0)).most_common(1)[0][0]


def step(place, **options):
    """A training step with ``zero_grad`` at a place, or nowhere."""

    def step(model, optimizer, tokens, targets):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets)
        if place == "before backward":
            optimizer.zero_grad()
        loss.backward()
        if place == "before step":
            optimizer.zero_grad()
        optimizer.step()
        if place == "after step":
            optimizer.zero_grad(**options)

    return step


def trained(model):
    return [weight for weight in model.parameters() if weight.requires_grad]


WRONG = {
    "check_alive": {
        "largest": lambda blocks: [max(blocks, key=lambda block: block[1])[0]],
        "ever": lambda blocks: [name for name, *_ in blocks],
        "end": alive_at_the_end,
        "died": alive_until_and_with_death,
        "later": alive_at_the_last_peak,
    },
    "check_leak": {
        "spike": lambda trace, starts: trace.at_peak[0].line,
        "largest_left": lambda trace, starts: trace.at(trace.moments - 1)[0].line,
        "grew_once": grew_since_the_start,
    },
    "check_step": {
        "through_forward": step("before backward"),
        "zeros": step("after step", set_to_none=False),
        "no_update": step("before step"),
        "accumulates": step("nowhere"),
    },
    "check_state_bytes": {
        "one_copy": lambda model: sum(weight.nbytes + 4 for weight in trained(model)),
        "frozen": lambda model: sum(2 * weight.nbytes + 4 for weight in model.parameters()),
        "four_bytes": lambda model: sum(8 * weight.numel() + 4 for weight in trained(model)),
        "shared": lambda model: sum(
            2 * weight.nbytes + 4
            for layer in model.modules()
            for weight in layer.parameters(recurse=False)
            if weight.requires_grad
        ),
        "no_counters": lambda model: sum(2 * weight.nbytes for weight in trained(model)),
    },
}
