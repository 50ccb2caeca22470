"""Wrong answers to the exercise of `in_place_operations`: one for each hint."""

import torch
from torch.nn import functional


def hidden_of(x, first):
    return functional.leaky_relu_(x @ first)


def raises(x, first, second):
    hidden = hidden_of(x, first)
    gate = torch.sigmoid(hidden @ second)
    gate *= hidden
    gate += x
    return gate


def silent(x, first, second):
    hidden = hidden_of(x, first)
    gate = torch.sigmoid(hidden @ second)
    gate.data *= hidden
    return gate + x


def caller(x, first, second):
    hidden = functional.leaky_relu(x.clone() @ first)
    x += torch.sigmoid(hidden @ second) * hidden
    return x


def copies(x, first, second):
    hidden = hidden_of(x, first)
    gate = torch.sigmoid(hidden @ second).clone()
    gate *= hidden
    return gate + x


WRONG = {
    "raises": raises,
    "silent": silent,
    "caller": caller,
    "copies": copies,
}
