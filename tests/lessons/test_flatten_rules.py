"""`flatten_parameters`: its code to paste, and a scripted module; facts about torch are in its lesson.yml."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from course_utils.lessons.flatten_parameters.stand_in import (
    CountingLSTM,
    cloned,
    is_flat,
    lay_flat,
)
from course_utils.records.lessons import find_lesson

NOTEBOOK = find_lesson("flatten_parameters").path


@pytest.fixture(scope="module")
def is_scattered() -> Callable[[nn.RNNBase], bool]:
    """The function that the lesson gives to paste."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    [source] = ["".join(cell["source"]) for cell in cells if "def is_scattered" in "".join(cell["source"])]
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace["is_scattered"]


def test_pasted_code_stands_a_missing_weight(is_scattered: Callable[[nn.RNNBase], bool]) -> None:
    rnn = nn.LSTM(8, 8)
    del rnn._parameters["weight_hh_l0"]
    rnn.to("cpu")
    assert None in rnn._flat_weights
    assert is_scattered(rnn)


def test_one_forward_brings_the_pasted_answer_up_to_date(is_scattered: Callable[[nn.RNNBase], bool]) -> None:
    assigned, normed, x = CountingLSTM(8, 8), CountingLSTM(8, 8), torch.zeros(1, 1, 8)
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_has_no_such_call_and_keeps_the_layout_it_was_saved_with() -> None:
    for flat in (False, True):
        rnn = nn.LSTM(8, 8)
        if flat:
            lay_flat(list(rnn.parameters()))
        file = io.BytesIO()
        torch.jit.save(torch.jit.script(rnn), file)
        file.seek(0)
        loaded = torch.jit.load(file)
        with pytest.raises(
            AttributeError, match="'RecursiveScriptModule' object has no attribute 'flatten_parameters'"
        ):
            loaded.flatten_parameters()
        assert is_flat([getattr(loaded, name) for name in rnn._flat_weights_names]) == flat


def test_pasted_code_does_not_see_gaps_nor_missing_biases(is_scattered: Callable[[nn.RNNBase], bool]) -> None:
    for rnn, gap in ((nn.LSTM(8, 8), 7), (nn.LSTM(8, 8, bias=False), 0)):
        assert is_scattered(rnn)
        weights = sorted(rnn.parameters(), key=lambda weight: -weight.dim())
        buffer, start = torch.zeros(sum(weight.numel() + gap for weight in weights)), 0
        for weight in weights:
            weight.data = buffer[start : start + weight.numel()].view_as(weight)
            start += weight.numel() + gap
        assert not is_scattered(rnn)
