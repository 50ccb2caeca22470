"""`flatten_parameters`: the table and code of its reference page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from authoring.reference_pages import reference_pages
from course_utils import recorded
from course_utils.lessons.flatten_parameters.stand_in import FlatteningLSTM, examine, lay_flat
from tests.flatten_operations import OPERATIONS, cloned

[TEXT] = [page.read_text("utf-8") for page in reference_pages() if page.stem == "flatten_parameters"]


@pytest.fixture(scope="module")
def is_scattered() -> Callable[[nn.RNNBase], bool]:
    """The function that the reference page gives to paste."""
    namespace: dict[str, Any] = {}
    exec(re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1], namespace)
    return namespace["is_scattered"]


def test_the_table_of_operations_is_what_the_rules_give_and_its_warnings_are_the_records() -> None:
    groups = re.findall(r"^\| ((?:copies all|flattens|in place).*?) \| (.+) \|$", TEXT, re.MULTILINE)
    rows = {name: later for later, names in groups for name in names.split(" · ")}
    warned = recorded("flatten_parameters/what_scatters_it_cuda", machine="nvidia-h200")
    assert set(rows) == set(OPERATIONS) == set(warned.labels)
    for name, change in OPERATIONS.items():
        scattered, called = examine(change).values()
        later = "copies all" if scattered else "flattens" if called else "in place"
        assert rows[name] == later + (", with a warning" if warned[name]["cuDNN warns"] else ""), name


def test_one_forward_brings_the_pasted_answer_up_to_date(is_scattered: Callable[[nn.RNNBase], bool]) -> None:
    assigned, normed, x = FlatteningLSTM(8, 8), FlatteningLSTM(8, 8), torch.zeros(1, 1, 8)
    for rnn in (assigned, normed):
        lay_flat(rnn._flat_weights)
        assert not is_scattered(rnn)
    assigned.load_state_dict(cloned(assigned), assign=True)
    assert is_scattered(assigned)
    weight_norm(normed, "weight_hh_l0")
    assert normed._flat_weights[1] is not normed.weight_hh_l0
    for rnn in (assigned, normed):
        rnn(x)
    assert not is_scattered(assigned)
    assert not is_scattered(normed)
