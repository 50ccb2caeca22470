"""What `flatten_parameters` says of an RNN's list, of its code to paste, and of what flattening can break."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, parametrize, vector_to_parameters
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from course_utils.lessons.flatten_parameters.stand_in import (
    CountingLSTM,
    cloned,
    counted,
    is_flat,
    lay_flat,
    saved_and_loaded,
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


def test_a_copy_has_new_objects_and_its_list_names_them() -> None:
    rnn = CountingLSTM(8, 8)
    lay_flat(rnn._flat_weights)
    copied = copy.deepcopy(rnn)
    assert copied.weight_hh_l0 is not rnn.weight_hh_l0
    assert copied._flat_weight_refs[1]() is copied.weight_hh_l0
    copied(torch.zeros(1, 1, 8))
    assert copied.calls == rnn.calls
    assert not is_flat(copied._flat_weights)


def test_flattening_takes_the_weights_out_of_a_buffer_that_something_else_updates() -> None:
    rnn = CountingLSTM(8, 8)
    weights = list(rnn.parameters())
    buffer = parameters_to_vector(weights).detach()
    vector_to_parameters(buffer, weights)
    buffer.fill_(1)
    assert rnn.weight_hh_l0.eq(1).all()
    rnn.flatten_parameters()
    buffer.fill_(2)
    assert rnn.weight_hh_l0.eq(1).all()


def test_only_a_forward_writes_the_list_of_known_objects() -> None:
    rnn, x = CountingLSTM(8, 8), torch.zeros(1, 1, 8)
    before = rnn.calls
    rnn.weight_hh_l0 = nn.Parameter(rnn.weight_hh_l0.detach().clone())
    rnn.flatten_parameters()
    rnn(x)
    rnn(x)
    assert rnn.calls - before == 2
    rnn.to("cpu").float()
    assert rnn.calls - before == 4  # also where nothing changes


def test_functional_call_flattens_whenever_its_tensors_are_others() -> None:
    def flattenings(run: Callable[[CountingLSTM, dict[str, torch.Tensor]], Any]) -> int:
        rnn = CountingLSTM(8, 8)
        before, weights = rnn.calls, cloned(rnn)
        for _ in range(10):
            run(rnn, weights)
        return rnn.calls - before

    x = torch.zeros(1, 1, 8)
    assert flattenings(lambda rnn, weights: functional_call(rnn, weights, x)) == 1
    assert flattenings(lambda rnn, weights: functional_call(rnn, cloned(rnn), x)) == 10
    assert flattenings(lambda rnn, weights: (functional_call(rnn, weights, x), rnn(x))) == 20


def test_two_rnns_that_share_some_weights_are_not_both_flat() -> None:
    for shared, both in ((["weight_hh_l0"], False), (CountingLSTM(8, 8)._flat_weights_names, True)):
        one, other, x = CountingLSTM(8, 8), CountingLSTM(8, 8), torch.zeros(1, 1, 8)
        for name in shared:
            setattr(other, name, getattr(one, name))
        for rnn in (one, other, one, other):
            rnn(x)
        assert is_flat(other._flat_weights)
        assert is_flat(one._flat_weights) == both


def test_copying_a_module_flattens_the_original_if_its_weights_are_new_objects() -> None:
    rnn = CountingLSTM(8, 8)
    rnn.weight_hh_l0 = nn.Parameter(rnn.weight_hh_l0.detach().clone())
    copied = copy.deepcopy(rnn)
    assert is_flat(rnn._flat_weights)
    assert not is_flat(copied._flat_weights)


@pytest.mark.parametrize("never", [False, True])
def test_a_forward_takes_the_tensors_of_functional_call_out_of_their_vector(never: bool) -> None:
    rnn, x = CountingLSTM(8, 8), torch.ones(3, 2, 8)
    if never:
        rnn.flatten_parameters = lambda: None
    vector = parameters_to_vector(rnn.parameters()).detach()
    pieces = vector.split([weight.numel() for weight in rnn.parameters()])
    views = {name: piece.view_as(weight) for (name, weight), piece in zip(rnn.named_parameters(), pieces, strict=True)}
    before, _ = functional_call(rnn, views, x)
    vector.zero_()
    after, _ = functional_call(rnn, views, x)
    assert before.any()
    assert torch.equal(after, torch.zeros_like(before) if never else before)


def test_spectral_norm_moves_its_buffers_at_each_of_four_readings() -> None:
    rnn = spectral_norm(CountingLSTM(8, 8), "weight_hh_l0")
    once = copy.deepcopy(rnn)
    assert counted(lambda each, x: each(x), rnn)["computed"] == 4
    once.load_state_dict(rnn.state_dict())
    rnn(torch.zeros(1, 1, 8))
    with parametrize.cached():
        once(torch.zeros(1, 1, 8))
    vectors = [each.parametrizations.weight_hh_l0[0]._u for each in (rnn, once)]
    assert not torch.allclose(*vectors)


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


def test_a_module_that_was_saved_scattered_stays_so_when_loaded() -> None:
    flat, x = CountingLSTM(8, 8), torch.zeros(1, 1, 8)
    loaded = saved_and_loaded(copy.deepcopy(flat))
    before = loaded.calls
    for _ in range(2):
        loaded(x)
    assert loaded.calls == before
    assert not is_flat(loaded._flat_weights)
    assert is_flat(saved_and_loaded(flat)._flat_weights)


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
