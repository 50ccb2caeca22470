"""Wrong answers to the exercise of `ddp`: one for each hint."""

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss


def start_alike(model):
    for weight in model.parameters():
        dist.broadcast(weight.detach(), src=0)


def backward(model, optimizer, x, y):
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()


def add_up(model, divisor):
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        dist.all_reduce(weight.grad)
        weight.grad /= divisor


def plain(model, optimizer, batches):
    for x, y in batches:
        backward(model, optimizer, x, y)
        optimizer.step()


def averages_before(model, optimizer, batches):
    start_alike(model)
    for x, y in batches:
        optimizer.zero_grad()
        add_up(model, 2)
        mse_loss(model(x), y).backward()
        optimizer.step()


def no_broadcast(model, optimizer, batches):
    for x, y in batches:
        backward(model, optimizer, x, y)
        add_up(model, 2)
        optimizer.step()


def adds_up(model, optimizer, batches):
    start_alike(model)
    for x, y in batches:
        backward(model, optimizer, x, y)
        add_up(model, 1)
        optimizer.step()


def divides_twice(model, optimizer, batches):
    start_alike(model)
    for x, y in batches:
        backward(model, optimizer, x, y)
        add_up(model, dist.get_world_size() ** 2)
        optimizer.step()


def trips_over_none(model, optimizer, batches):
    start_alike(model)
    for x, y in batches:
        backward(model, optimizer, x, y)
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= 2
        optimizer.step()


def leaves_none_out(model, optimizer, batches):
    start_alike(model)
    for x, y in batches:
        backward(model, optimizer, x, y)
        for weight in model.parameters():
            if weight.grad is not None:
                dist.all_reduce(weight.grad)
                weight.grad /= 2
        optimizer.step()


WRONG = {
    "check_train": {
        "untouched": plain,
        "own_gradient": averages_before,
        "no_broadcast": no_broadcast,
        "sum": adds_up,
        "twice": divides_twice,
        "no_gradient": trips_over_none,
        "waits": leaves_none_out,
    },
}
