"""Wrong answers to the exercise of `ddp`: one for each hint."""

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


def average(model, divisor, zeros, skips):
    for weight in model.parameters():
        if weight.grad is None and zeros:
            weight.grad = torch.zeros_like(weight)
        if weight.grad is not None or not skips:
            dist.all_reduce(weight.grad)
            weight.grad /= divisor


def loop(model, optimizer, batches, alike=True, divisor=2, before=False, after=True, zeros=True, skips=False):
    for weight in model.parameters() if alike else ():
        dist.broadcast(weight.detach(), src=0)
    for x, y in batches:
        optimizer.zero_grad()
        if before:
            average(model, divisor, zeros, skips)
        mse_loss(model(x), y).backward()
        if after:
            average(model, divisor, zeros, skips)
        optimizer.step()


WRONG = {
    "check_train": {
        "untouched": lambda *given: loop(*given, alike=False, after=False),
        "own_gradient": lambda *given: loop(*given, before=True, after=False),
        "no_broadcast": lambda *given: loop(*given, alike=False),
        "sum": lambda *given: loop(*given, divisor=1),
        "twice": lambda *given: loop(*given, divisor=4),
        "no_gradient": lambda *given: loop(*given, zeros=False),
        "waits": lambda *given: loop(*given, zeros=False, skips=True),
    },
}
