"""Wrong answers to the exercises of the lesson: one for each hint."""

import torch
from torch.nn import functional

from course_utils.lessons.in_place_operations.cases import small_net
from course_utils.materials.step_memory import peak_bytes


def keeps_a_copy(operation):
    x = torch.randn(8, requires_grad=True) * 1
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.data_ptr()), print):
        y = operation(x)
    return any(place != y.data_ptr() for place in kept)


def keeps_its_input(operation):
    x = torch.randn(8, requires_grad=True) * 1
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.data_ptr()), print):
        operation(x)
    return x.data_ptr() in kept


def forward_peak(operation):
    return peak_bytes(small_net(operation)[0])


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


def all_out(x, first, second):
    hidden = functional.leaky_relu(x @ first)
    return torch.sigmoid(hidden @ second) * hidden + x


WRONG = {
    "check_saves": {
        "always": lambda operation, operation_: True,
        "never": lambda operation, operation_: False,
        "no_copy": lambda operation, operation_: not keeps_a_copy(operation_),
        "keeps_input": lambda operation, operation_: keeps_its_input(operation),
        "forward_peak": lambda operation, operation_: forward_peak(operation_) < forward_peak(operation),
    },
    "check_block": {
        "raises": raises,
        "silent": silent,
        "caller": caller,
        "copies": copies,
        "all_out": all_out,
    },
}
