"""The card of a memory snapshot, on histories that are made up so that every number is known, and on bad files."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from course_utils.lessons.memory_snapshots.stand_in import memory_history
from course_utils.memory.allocator import Allocate, Allocator, AllocatorOptions, BlockState, EmptyCache, Event, Free
from own_program.snapshots.report import DeviceReport, SnapshotError, SnapshotReport, read_snapshot
from own_program.snapshots.stacks import read_stack
from tests.memory.test_allocator import TRACES

MIB, GIB = 2**20, 2**30
MODULE = ("/env/lib/python3.11/site-packages/torch/nn/modules/module.py", 1784, "_call_impl")
ADAM = ("/env/lib/python3.11/site-packages/torch/optim/adam.py", 180, "_init_group")
ENGINE = ("", 0, "torch::autograd::Engine::evaluate_function(...)")
STATES = {"allocated": "active_allocated", "awaiting free": "active_pending_free", "free": "inactive"}


def frames(*places: tuple[str, int, str]) -> list[dict[str, Any]]:
    return [dict(zip(("filename", "line", "name"), place, strict=True)) for place in places]


def train(line: int) -> tuple[str, int, str]:
    return ("/home/me/train.py", line, "main")


FORWARD = frames(("/home/me/net.py", 7, "forward"), MODULE, train(20))
BACKWARD = frames(("", 0, "at::empty_cuda"), ENGINE)
INPUT, STATE = frames(train(19)), frames(ADAM, train(23))
MOVED = frames((MODULE[0], 900, "_apply"), train(3))


class Recorded:
    """A program whose requests the simulated allocator meets, writing down what PyTorch would."""

    def __init__(self, options: str = "", device_bytes: int | None = None, base: int = 0x7F0000000000) -> None:
        self.allocator = Allocator(AllocatorOptions.parse(options), None, device_bytes)
        self.allocator._next_address = base
        self.options, self.entries, self.frames, self.time_us = options, [], {}, 0

    def _happens(self, event: Event, size: int, stack: list[dict[str, Any]]) -> None:
        self.time_us += 1000
        live = self.allocator.live
        address = live[event.id].address if isinstance(event, Free) else 0
        met = self.allocator.apply(event)
        happened = list(self.allocator.operations)
        if isinstance(event, Free):
            happened += [(action, address, size) for action in ("free_requested", "free_completed")]
        elif isinstance(event, Allocate):
            happened.append(("alloc", live[event.id].address, size) if met else ("oom", 0, size))
        more = {"stream": 0, "time_us": self.time_us, "frames": stack}
        more |= {} if met else {"device_free": self.allocator.device - self.allocator.reserved}
        self.entries += [{"action": action, "addr": at, "size": count} | more for action, at, count in happened]

    def take(self, name: str, size: int, stack: list[dict[str, Any]] | None = None) -> None:
        self.frames[name] = stack or []
        self._happens(Allocate(name, size), size, stack or [])

    def give(self, *names: str) -> None:
        for name in names:
            self._happens(Free(name), self.allocator.live[name].requested, [])

    def empty_cache(self) -> None:
        memory = MODULE[0].replace("nn/modules/module", "cuda/memory")
        self._happens(EmptyCache(), 0, frames((memory, 5, "empty_cache")))

    def snapshot(self, device: int = 0, since: int = 0, pool: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        segments = [
            {"device": device, "address": each.address, "total_size": each.bytes, "stream": 0}
            | {"segment_type": each.pool, "segment_pool_id": pool, "is_expandable": each.expandable}
            | {"blocks": [self._block(block) for block in each.blocks]}
            for each in self.allocator.state().segments
        ]
        traces = [*([[]] * device), self.entries[since:]]
        settings = {"PYTORCH_CUDA_ALLOC_CONF": self.options}
        return {"segments": segments, "device_traces": traces, "allocator_settings": settings}

    def _block(self, block: BlockState) -> dict[str, Any]:
        known = {"size": block.bytes, "requested_size": block.requested_bytes, "state": STATES[block.state]}
        return known | {"frames": self.frames.get(block.id, [])}


def text(report: SnapshotReport) -> str:
    return " ".join(repr(report).split())


def device_of(program: Recorded, since: int = 0) -> DeviceReport:
    return read_snapshot(program.snapshot(since=since)).devices[0]


def training(steps: int, leak: bool = False, setup_bytes: int = 0) -> Recorded:
    """Three layers forward, three back; the optimizer's state is taken in the first step."""
    program = Recorded()
    if setup_bytes:
        program.take("setup", setup_bytes, frames(train(2)))
        program.give("setup")
    for step in range(steps):
        program.take(f"batch {step}", 4 * MIB, INPUT)
        for layer in range(3):
            program.take(f"kept {step} {layer}", 30 * MIB, FORWARD)
        for layer in reversed(range(3)):
            program.take(f"gradient {step} {layer}", 12 * MIB, BACKWARD)
            program.give(f"kept {step} {layer}")
        if step == 0:
            program.take("state", 36 * MIB, STATE)
        program.give(f"batch {step}", *(f"gradient {step} {layer}" for layer in range(3)))
        if leak:
            program.take(f"logged {step}", 20 * MIB, frames(train(25)))
    return program


def steps(count: int, asks: Callable[[Recorded, int], object], program: Recorded | None = None) -> Recorded:
    """Steps that train, with what each of them asks for besides."""
    program = program or Recorded()
    for step in range(count):
        program.take(f"kept {step}", (30 + step % 7) * MIB, FORWARD)
        asks(program, step)
        program.take(f"gradient {step}", 12 * MIB, BACKWARD)
        program.give(f"kept {step}", f"gradient {step}")
    return program


# What held the peak


def test_a_healthy_training_has_no_plan_and_its_peak_is_told_by_line_and_kind() -> None:
    report = read_snapshot(training(6).snapshot())
    device = report.devices[0]
    # The state is there from the first step on; the peak is the last layer's backward pass of a later one.
    assert device.peak_allocated_bytes == (36 + 4 + 90 + 12) * MIB
    assert [(holder.stack.kind, holder.bytes, holder.blocks) for holder in device.holders] == [
        ("forward", 90 * MIB, 3),
        ("optimizer", 36 * MIB, 1),
        ("backward", 12 * MIB, 1),
        ("other", 4 * MIB, 1),
    ]
    assert repr(device.holders[0].stack.place) == "net.py:7 forward"
    assert "nothing stands out" in report.card().words
    assert "reproduced to the byte" in text(report)
    assert "By what it is for: forward 63%, optimizer 25%, backward 8.5%, other 2.8%." in text(report)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*-2.13.0.json")), ids=lambda path: path.stem)
def test_what_pytorch_counted_itself_is_on_the_card(path: Path) -> None:
    recorded = json.loads(path.read_text())
    report = read_snapshot(path)
    device = report.devices[0]
    assert device.peak_allocated_bytes == recorded["stats"]["allocated_peak"]
    assert device.peak_reserved_bytes == recorded["stats"]["reserved_peak"]
    assert "Not recorded with stacks" in text(report)
    assert "backward" not in text(report)


def test_what_is_reserved_and_not_in_use_is_counted_while_the_most_is_reserved() -> None:
    program = Recorded()
    program.take("first", 100 * MIB)
    program.give("first")
    program.take("second", 120 * MIB)  # too large for what is cached
    device = device_of(program)
    assert (device.peak_reserved_bytes, device.lost_bytes) == (220 * MIB, 100 * MIB)
    # A recording that begins afterwards finds the peak before it.
    begun = len(program.entries)
    program.give("second")
    for _ in range(5):
        program.take("third", 2 * MIB)
        program.give("third")
    report = read_snapshot(program.snapshot(since=begun))
    late = report.devices[0]
    assert (late.peak_reserved_bytes, late.lost_bytes) == (220 * MIB, 100 * MIB)
    assert late.holders[0].stack.kind == "from before the recording"
    # Begun empty, any try needs less; that says nothing of a setting.
    assert "220 MiB reserved, all of it from before the recording: nothing stands out" in text(report)
    assert "that cache is older than the recording, and how it came about is not in the file" in text(report)
    assert late.tries.saving(late.tries.best) == 0


def test_a_backward_pass_is_told_from_its_frames_and_no_other() -> None:
    custom = frames(("/me/ops.py", 3, "backward"), ("/x/site-packages/torch/autograd/function.py", 311, "apply"))
    closure = [*FORWARD, *frames(("/x/site-packages/torch/optim/lbfgs.py", 3, "step"))]
    assert [read_stack(each).kind for each in (BACKWARD, custom, closure, MOVED, STATE, INPUT, [])] == [
        *("backward", "backward", "forward", "weights", "optimizer", "other", "no Python stack"),
    ]


# Other settings


def one_by_one(sizes: Iterable[int], options: str = "") -> Recorded:
    """Tensors of so many MiB, each freed before the next one is asked for."""
    program = Recorded(options)
    for number, size in enumerate(sizes):
        program.take(f"part {number}", size * MIB, INPUT)
        program.give(f"part {number}")
    return program


def fragmenting() -> Recorded:
    """Each request is a little larger than the one before: without pages that grow, none fits."""
    return one_by_one(range(100, 180, 4))


def test_a_setting_that_needs_less_is_advised_with_what_it_saves() -> None:
    report = read_snapshot(fragmenting().snapshot())
    device, (advice, *_) = report.devices[0], report.devices[0].plan
    whole = sum(range(100, 180, 4)) * MIB
    assert device.peak_reserved_bytes == whole
    assert advice.change == "set PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert (advice.known, advice.of, advice.lesson) == ("simulated", "the reserved peak", "caching_allocator")
    assert advice.saves == pytest.approx(1 - 180 * MIB / whole)  # the largest request, in pages of 20 MiB
    assert "expandable_segments:True" in report.card().words
    assert "Before PyTorch 2.10 the variable is PYTORCH_CUDA_ALLOC_CONF" in advice.because


def test_a_segment_or_two_are_no_advice_and_expandable_ones_come_before_what_suits_the_recording() -> None:
    assert device_of(one_by_one((30, 34))).plan == ()
    (advice,) = device_of(one_by_one(range(130, 146, 2))).plan  # rounded to 144 MiB they are all the same
    assert advice.change == "set PYTORCH_ALLOC_CONF=expandable_segments:True"


def test_settings_that_are_not_recorded_show_in_the_history() -> None:
    value = one_by_one([30] * 5, "expandable_segments:True").snapshot()
    del value["allocator_settings"]
    report = read_snapshot(value)
    tries = report.devices[0].tries
    assert "options: expandable_segments:True" in text(report)
    # It stays beside the others: rounded to 32 MiB, in pages of 20 MiB.
    reserved = {trial.name: trial.reserved_bytes for trial in tries.trials}
    assert (reserved["expandable_segments:False"], reserved["roundup_power2_divisions:4"]) == (30 * MIB, 40 * MIB)
    value = training(2).snapshot()
    del value["allocator_settings"]
    assert "options: defaults (not recorded, assumed)" in text(read_snapshot(value))


def test_emptying_the_cache_again_and_again_is_counted_and_tried_without() -> None:
    program = Recorded()
    for number in range(50):
        program.take(f"part {number}", 30 * MIB, INPUT)
        program.give(f"part {number}")
        program.empty_cache()
    report = read_snapshot(program.snapshot())
    (advice,) = report.devices[0].plan
    assert advice.change == "leave out torch.cuda.empty_cache()"
    assert advice.saves == pytest.approx(1 - 1 / 50)
    assert "The recording covers only 149 ms." in text(report)


def test_emptying_a_cache_that_is_not_used_again_or_once_is_no_advice() -> None:
    program = Recorded()
    for number in range(40):
        program.take(f"kept {number}", 30 * MIB, INPUT)
        program.empty_cache()  # nothing is cached, so nothing is given back
    program.take("once", 90 * MIB, INPUT)
    program.give("once")
    begun = len(program.entries)
    program.empty_cache()
    for number in range(20):
        program.take(f"more {number}", 30 * MIB, INPUT)
    for since in (0, begun):
        device = device_of(program, since)
        assert device.device.give_backs["empty_cache"] == 1
        assert device.plan == ()


@pytest.mark.parametrize("asks", [0, 1, 10])
def test_a_history_in_which_next_to_nothing_happened_is_none(asks: int) -> None:
    program = training(3)
    begun = len(program.entries)
    for number in range(asks):
        program.take(f"more {number}", MIB // 2, INPUT)
    program.give("state")
    report = read_snapshot(program.snapshot(since=begun))
    assert (f"its history of {asks * 2 + 2} entries is too short to tell a peak" in text(report)) == (asks < 10)
    assert ("held up to" in text(report)) == (asks == 10)


# Steps that leave something behind


OUTPUT = frames(("/home/me/net.py", 8, "forward"), MODULE, train(20))


@pytest.mark.parametrize("kind", ["own line", "no own line", "every second"])
def test_a_leak_comes_first_whatever_its_sizes_and_wherever_its_loop_is(kind: str) -> None:
    def leaks(program: Recorded, step: int) -> None:
        if kind == "own line":
            program.take("batch", 4 * MIB, INPUT)
            program.give("batch")
        program.take(f"output {step}", (20 + step % 5) * MIB, OUTPUT)
        if kind == "every second" and step % 2:
            program.give(f"output {step}")

    plan = device_of(steps(20, leaks, fragmenting())).plan  # in which a setting saves much as well
    assert plan[0].change == "free what each step keeps from net.py:8 forward, or move it to the CPU"
    assert plan[0].saves > 0.05
    assert len(plan) == 2


@pytest.mark.parametrize("kind", ["warms up", "is cleared", "is set up"])
def test_what_is_filled_once_or_cleared_is_no_leak(kind: str) -> None:
    def fills(program: Recorded, step: int) -> None:
        program.take(f"batch {step}", 4 * MIB, INPUT)
        program.give(f"batch {step}")
        if kind == "is cleared" or step < 12:
            program.take(f"output {step}", 10 * MIB, OUTPUT)
        if kind == "is cleared" and step == 7:
            program.give(*(f"output {each}" for each in range(8)))
        if kind == "is set up" and step % 5 == 4:  # more of the model is trained
            program.take(f"state {step}", 20 * MIB, STATE)

    assert device_of(steps(30, fills)).growth is None


INSIDE = frames(("/me/net.py", 9, "forward"), MODULE, MODULE, train(20))
LATER = [frames(train(line)) for line in (21, 22)]


@pytest.mark.parametrize(
    ("asks", "frees"),
    [
        ([("layer", FORWARD), ("inside", INSIDE)], ()),  # called one by one from the program, each keeps its result
        ([("layer", FORWARD), ("kept", LATER[0]), ("next", LATER[1])], ("layer",)),  # with gradients to come
        ([("weights", MOVED), ("inside", FORWARD), ("packed", LATER[0])], ("weights", "inside")),
        ([("read", LATER[0]), ("weight", MOVED)], ("read",)),  # weights that are loaded one by one
    ],
)
def test_layers_are_no_steps(asks: list[tuple[str, list[dict[str, Any]]]], frees: tuple[str, ...]) -> None:
    program = Recorded()
    for number in range(20):
        for name, stack in asks:
            program.take(f"{name} {number}", 20 * MIB, stack)
        program.give(*(f"{name} {number}" for name in frees))
    assert device_of(program).growth is None
    assert not any("torch" in advice.change for advice in device_of(program).plan)


def test_what_an_evaluation_now_and_then_leaves_is_found() -> None:
    def asks(program: Recorded, step: int) -> None:
        program.take(f"batch {step}", 4 * MIB, INPUT)
        program.give(f"batch {step}")
        if step % 4 == 3:
            program.take("asked", 4 * MIB, frames(train(50)))
            program.take(f"prediction {step}", 25 * MIB, frames(("/home/me/net.py", 7, "forward"), MODULE, train(51)))
            program.give("asked")

    growth = device_of(steps(24, asks)).growth
    assert growth.bytes_a_round == pytest.approx(25 * MIB, rel=0.05)
    assert (growth.rounds, growth.stack.caller.line) == (4, 51)


def test_what_each_step_leaves_is_counted_and_freed_in_a_simulation() -> None:
    device = device_of(training(10, leak=True))
    assert device.growth.bytes_a_round == 20 * MIB
    assert device.plan[0].saves == pytest.approx(1 - device.tries.mended.reserved_bytes / device.peak_reserved_bytes)
    # All but what the first and the last round leave goes; segments are of whole multiples of 2 MiB.
    assert device.peak_reserved_bytes - device.tries.mended.reserved_bytes >= 6 * 20 * MIB


def test_a_leak_is_told_where_it_fits_into_memory_that_is_reserved_anyway() -> None:
    device = device_of(training(10, leak=True, setup_bytes=500 * MIB))
    assert device.peak_reserved_bytes < 520 * MIB
    (advice,) = device.plan
    assert (advice.lesson, advice.saves) == ("memory_snapshots", None)
    assert "Each of 8 steps leaves 20.0 MiB" in advice.because


@pytest.mark.parametrize("leaks", [False, True])
def test_a_real_program_on_the_cpu(tmp_path: Path, leaks: bool) -> None:
    """Real operations and stacks, with what PyTorch's allocator would have written."""
    model, kept = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3))), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with memory_history() as dump:
        for _ in range(8):
            inputs = torch.ones(2048, 512) * 2
            outputs = model(inputs)
            outputs.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if leaks:
                kept.append(outputs.detach() + 1)
            del outputs
        dump(str(tmp_path / "snapshot.pickle"))
    (device,) = read_snapshot(tmp_path / "snapshot.pickle").devices
    assert [advice.lesson for advice in device.plan] == ["memory_snapshots"] * leaks
    assert device.holders[0].stack.kind in ("forward", "no Python stack", "other")
    if leaks:
        assert (device.growth.bytes_a_round, device.growth.stack.place.file) == (2048 * 512 * 4, __file__)


# Out of memory


@pytest.mark.parametrize("kind", ["grows", "begins anew", "stays"])
def test_results_that_are_joined_on_the_gpu_grow(kind: str) -> None:
    program = Recorded(device_bytes=1200 * MIB)
    for step in range(16):
        joined = {"grows": step, "begins anew": step % 8, "stays": 4}[kind] + 1
        program.take(f"output {step}", 30 * MIB, OUTPUT)
        program.take(f"all {step}", joined * 30 * MIB, frames(train(31)))
        program.give(f"output {step}", *([f"all {step - 1}"] if step else []))
        if len(program.allocator.live) > 1:
            break
    program.take("large", 1190 * MIB, INPUT)
    plan = device_of(program).plan
    found = [advice for advice in plan if advice.change == "move to the CPU what train.py:31 main collects"]
    assert found == list(plan[:1]) * (kind == "grows")
    if found:
        assert "larger by about 30.0 MiB each time" in found[0].because


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("kind", ["graphs", "outputs", "nothing", "as before"])
def test_what_batches_keep_after_training_comes_before_settings(kind: str, again: bool) -> None:
    """Layers that the program calls one by one keep no more than in the steps before."""
    program = Recorded(device_bytes=1500 * MIB)
    line = train(70) if kind != "as before" else train(20)
    asked = [frames(("/home/me/net.py", 7 + layer, "forward"), MODULE) for layer in range(5)]
    for step in range(3):
        made = [f"{step} {batch} {layer}" for batch in range(12 if kind == "as before" else 1) for layer in range(5)]
        for name in made:
            program.take(f"in {name}", MIB, frames(train(19)))
            program.take(name, 20 * MIB, [*asked[int(name[-1])], *frames(train(20))])
        program.take(f"gradient {step}", MIB, BACKWARD)
        program.give(f"gradient {step}", *made, *(f"in {name}" for name in made))
    for batch in range(12):
        program.take(f"batch {batch}", MIB, frames(train(69)))
        for layer in range(5):
            program.take(f"val {batch} {layer}", 20 * MIB, [*asked[layer], *frames(line)])
        kept = {"graphs": 5, "as before": 5, "outputs": 1, "nothing": 0}[kind]
        program.give(f"batch {batch}", *(f"val {batch} {layer}" for layer in range(5 - kept)))
    if again:
        program.take("gradient", MIB, BACKWARD)
    program.take("large", 1490 * MIB, INPUT)
    first = device_of(program).plan[:1]
    assert [advice.lesson for advice in first if "no_grad" in advice.change] == ["no_grad"] * (kind == "graphs")
    leaks = [advice.change for advice in first if advice.change.startswith("free what each step keeps")]
    assert leaks == ["free what each step keeps from net.py:11 forward, or move it to the CPU"] * (kind == "outputs")


@pytest.mark.parametrize("beside", [True, False])
def test_a_checkpoint_that_was_loaded_onto_the_gpu_is_told_from_weights_that_are_used(beside: bool) -> None:
    program = Recorded(device_bytes=1000 * MIB)
    load = frames((MODULE[0].replace("nn/modules/module", "serialization"), 853, "_load"), train(5))
    for number in range(4):
        program.take(f"loaded {number}", 60 * MIB, load)
        program.take(f"weight {number}", 60 * MIB, MOVED if beside else STATE)
    program.take("kept", 400 * MIB, FORWARD)
    program.take("gradient", 200 * MIB, BACKWARD)
    found = [advice for advice in device_of(program).plan if "map_location='cpu'" in advice.change]
    assert len(found) == beside
    if beside:
        assert "torch.load at train.py:5 main put 240 MiB on the GPU, 27% of what is in use" in found[0].because


@pytest.mark.parametrize("trains", [True, False])
def test_a_request_that_failed_says_what_stood_in_its_way(trains: bool) -> None:
    program = Recorded(device_bytes=1000 * MIB)
    for number in range(12):
        program.take(f"kept {number}", 60 * MIB, FORWARD)
    program.give(*(f"kept {number}" for number in range(0, 12, 2)))
    for number in range(0, 12, 2):
        program.take(f"again {number}", 40 * MIB, FORWARD)  # 20 MiB are left of each
    program.take("large", 500 * MIB, FORWARD)
    noted = [{"name": "Optimizer.zero_grad#AdamW.zero_grad"}] if trains else []
    report = read_snapshot(program.snapshot() | {"external_annotations": noted})
    words = text(report)
    assert "GPU 0 ran out of memory at a request of 500 MiB: 720 MiB were reserved, and 600 MiB of them in use" in words
    assert "120 MiB were reserved and not in use, in pieces of at most 20.0 MiB; the device had 280 MiB left" in words
    lessons = [advice.lesson for advice in report.devices[0].plan]
    unsure = ["no_grad", "activation_checkpointing", "memory_snapshots"]  # it may be the first step of a training
    assert lessons == (["activation_checkpointing", "gradient_accumulation"] if trains else unsure)
    assert ("if it does not train" in words) == ("if it trains" in words) == (not trains)
    assert report.devices[0].plan[0].saves == pytest.approx(11 / 12)  # of 720 MiB one block of 60 has to be there


def passes(keeps: bool) -> Recorded:
    """Forward passes alone, which free what they make as they go on, or keep their graphs until the next one's end."""
    program, live = Recorded(device_bytes=4000 * MIB), []
    for number in range(12):
        program.take("batch", MIB, INPUT)
        for layer in range(6):
            name, line = f"made {number} {layer}", ("/home/me/net.py", 7 + layer, "forward")
            program.take(name, (300 + 10 * number) * MIB, frames(line, MODULE, train(20)))
            if name not in program.allocator.live:
                return program
            live.append(name)
            if not keeps and len(live) > 1:
                program.give(live.pop(0))
        program.give("batch", *(live.pop(0) for _ in range(len(live) - 6)))
    return program


def test_forward_passes_that_do_not_train_are_made_smaller_and_not_checkpointed() -> None:
    device = read_snapshot(passes(keeps=False).snapshot()).devices[0]
    assert device.device.give_backs["retry"]
    (advice,) = [advice for advice in device.plan if advice.lesson != "caching_allocator"]
    assert advice.change.startswith("use a smaller batch or shorter inputs")
    words = text(read_snapshot(passes(keeps=True).snapshot()))
    assert "torch.no_grad()" in words
    assert "of what is in use is from earlier forward passes" in words
    assert "heckpoint" not in words


CROSS_ENTROPY = ("/env/lib/python3.11/site-packages/torch/nn/functional.py", 3494, "cross_entropy")


@pytest.mark.parametrize("share", [1, 12])
def test_copies_of_logits_are_named_where_they_fill_the_memory(share: int) -> None:
    program = Recorded(device_bytes=4000 * MIB)
    program.take("weights", 500 * MIB, MOVED)
    program.take("hidden", 400 * MIB, FORWARD)
    program.take("logits", 600 * MIB // share, FORWARD)
    program.take("float", 1200 * MIB // share, frames(("/home/me/losses.py", 12, "compute_loss"), train(21)))
    program.take("log-softmax", 1200 * MIB // share, frames(CROSS_ENTROPY, train(21)))
    program.take("gradient", 1200 * MIB, BACKWARD)
    report = read_snapshot(program.snapshot())
    found = [advice for advice in report.devices[0].plan if advice.change.startswith("compute the loss in pieces")]
    assert len(found) == (share == 1)
    if found:
        assert "2.34 GiB, 62% of what is in use at the peak, lie in 2 tensors of 1.17 GiB" in found[0].because
        assert "The request that failed is for one more." in found[0].because
        assert "loss 62%" in text(report)


@pytest.mark.parametrize("size", [400, 4000, 24230, 34000, 81000])
def test_a_device_that_others_fill_is_told(size: int) -> None:
    """24,230 MiB are what a GPU of 24 GiB leaves to a program that is alone, and 81,000 one of 80 GiB."""
    program = Recorded(device_bytes=size * MIB)
    program.take("weights", (size - 15) * MIB, MOVED)
    program.take("batch", 20 * MIB, INPUT)
    report = read_snapshot(program.snapshot())
    assert ("so others hold the rest (nvidia-smi)" in text(report)) == (size == 400)
    assert ("If the device has much more than" in text(report)) == (size in (4000, 34000))
    assert "met under none of the 5 changes" in text(report)
    fewer_bits = [advice.change.startswith("keep the weights in fewer bits") for advice in report.devices[0].plan]
    assert fewer_bits == [True] * (size != 400)


@pytest.mark.parametrize("by_hand", [True, False])
def test_weights_and_a_cache_that_fill_the_memory_are_told(by_hand: bool) -> None:
    program = Recorded(device_bytes=2000 * MIB)
    program.take("weights", 1200 * MIB, MOVED)
    line = ("/home/me/net.py", 9, "forward") if by_hand else ("/env/transformers/cache_utils.py", 9, "update")
    for token in range(10):  # made anew for each, by layer
        for layer in range(4):
            program.take(f"keys {token} {layer}", (token + 1) * 20 * MIB, frames(line, MODULE, train(20)))
            if program.entries[-1]["action"] == "oom":
                break
            program.give(*([f"keys {token - 1} {layer}"] if token else []))
    weights, cached = sorted(device_of(program).plan, key=lambda advice: advice.saves or 0)
    assert "1.17 GiB, 61% of what is in use" in weights.because
    assert (cached.change, cached.known) == ("use a smaller batch or shorter inputs", "at most")
    assert cached.saves == pytest.approx(780 / 1980)


def test_an_optimizer_that_fills_the_memory_is_sharded() -> None:
    program = Recorded(device_bytes=400 * MIB)
    for name, size in {"state": 200, "weights": 100, "more": 200}.items():
        program.take(name, size * MIB, STATE if size == 200 else MOVED)
    (advice,) = device_of(program).plan
    assert (advice.lesson, advice.known, advice.saves) == ("fsdp", "at most", pytest.approx(2 / 3))


def test_a_setting_under_which_the_request_is_met_is_found() -> None:
    program = Recorded(device_bytes=1000 * MIB)
    for number in range(8):
        program.take(f"a {number}", 100 * MIB, INPUT)
    program.give(*(f"a {number}" for number in range(8)))
    for number in range(8):
        program.take(f"b {number}", 60 * MIB, INPUT)  # in segments of 100 MiB, 40 MiB of each are left
    program.take("large", 300 * MIB, INPUT)
    device = device_of(program)
    assert device.device.failure.largest_free_bytes == 40 * MIB
    assert [advice.change for advice in device.plan] == ["set PYTORCH_ALLOC_CONF=expandable_segments:True"]
    assert device.plan[0].saves is None


# Several devices, private pools, newer and older files


def several() -> dict[str, Any]:
    one, two = training(5).snapshot(), fragmenting().snapshot(device=2)
    traces = [one["device_traces"][0], [], two["device_traces"][2]]
    return {"segments": one["segments"] + two["segments"], "device_traces": traces}


def test_each_device_has_a_card_and_one_names_them() -> None:
    report = read_snapshot(several())
    assert report.card().words.startswith("2 GPUs, GPU 2 the most")
    assert len(report.cards) == 3
    assert report._repr_html_().count('class="course-card"') == 3
    assert read_snapshot(several(), device=2).card().words.startswith("GPU 2 held up to")
    with pytest.raises(SnapshotError, match="has no memory of GPU 1: it has 0 and 2"):
        read_snapshot(several(), device=1)


def test_a_gpu_that_is_hardly_used_has_no_room_to_give() -> None:
    value = several()
    assert "They are loaded unevenly" in repr(read_snapshot(value))
    stray = Recorded(base=0x500000000000)
    stray.take("stray", 512)
    idle = stray.snapshot(device=1)
    value["segments"] = [each for each in value["segments"] if each["device"]] + idle["segments"]
    value["device_traces"] = [[{"action": "snapshot"}], idle["device_traces"][1], value["device_traces"][2]]
    report = read_snapshot(value)
    assert "unevenly" not in repr(report)
    assert "This program hardly used GPU 1." in report.card().notes
    assert "This program did not use GPU 0." in report.cards[-1].notes


@pytest.mark.parametrize("said", [True, False])
def test_a_private_pool_is_counted_and_left_out_of_what_is_simulated(said: bool) -> None:
    common, private = fragmenting(), Recorded(base=0x600000000000)
    private.take("graph", 64 * MIB, FORWARD)
    one, two = common.snapshot(), private.snapshot(pool=(0, 1))
    more = [entry | ({"pool_id": (0, 1)} if said else {}) for entry in two["device_traces"][0]]
    both = {"segments": one["segments"] + two["segments"], "device_traces": [more + one["device_traces"][0]]}
    report, before = read_snapshot(both), read_snapshot(one).devices[0]
    (device,) = report.devices
    assert device.peak_reserved_bytes == before.peak_reserved_bytes + 64 * MIB
    assert device.tries.recorded_bytes == before.tries.recorded_bytes
    assert device.tries.replay.agrees
    assert "64.0 MiB are in private pools" in text(report)
    assert "outside private pools" in device.plan[0].of


def test_annotations_of_later_versions_change_nothing_and_unknown_entries_are_said() -> None:
    plain, marked = training(5).snapshot(), training(5).snapshot()
    trace = marked["device_traces"][0]
    for at in range(len(trace), 0, -7):
        address = {"addr": trace[at - 1].get("addr", 0), "size": 0, "stream": 0, "frames": []}
        trace.insert(at, {"action": "annotate", "user_metadata": "retained"} | address)
    expected = repr(read_snapshot(plain))
    assert repr(read_snapshot(marked)) == expected
    trace.insert(3, {"action": "teleport", "addr": 0})
    assert "1 entry named teleport" in text(read_snapshot(marked))


def test_a_snapshot_without_a_history_shows_who_holds_the_memory() -> None:
    program = training(3)
    report = read_snapshot(program.snapshot() | {"device_traces": [[]]})
    assert report.card().words == "GPU 0 has 146 MiB reserved, and 36.0 MiB of it in use; the snapshot has no history."
    assert "_record_memory_history" in text(report)
    assert report.devices[0].holders[0].stack.kind == "optimizer"
    assert report.devices[0].tries is None
    assert read_snapshot(program.snapshot()["segments"]).card().words == report.card().words
    # PyTorch 2.0 kept stacks in a history of each block.
    value = program.snapshot() | {"device_traces": [[]]}
    for block in (block for segment in value["segments"] for block in segment["blocks"]):
        block["history"] = [{"frames": block.pop("frames")}]
    assert read_snapshot(value).devices[0].holders[0].stack.kind == "optimizer"


@pytest.mark.parametrize("what", ["contradicts", "odd"])
def test_a_history_that_makes_no_sense_is_not_replayed(what: str) -> None:
    value = training(3).snapshot()
    trace = value["device_traces"][0]
    if what == "contradicts":
        del trace[20:30]
        assert "The history cannot be replayed" in text(read_snapshot(value))
    else:
        trace[4]["frames"] = {"no": "list"}
        value["allocator_settings"]["roundup_power2_divisions"] = {}
        assert read_snapshot(value).devices[0].tries.replay.agrees
        value["allocator_settings"]["max_split_size"] = "large"
        with pytest.raises(SnapshotError, match="its history or its settings make no sense"):
            read_snapshot(value)


# Files


def test_a_file_its_bytes_and_json_give_the_same(tmp_path: Path) -> None:
    value = training(5).snapshot()
    paths = [tmp_path / "a" / "snapshot.pickle", tmp_path / "b" / "snapshot.pickle"]
    for path, data in zip(paths, (pickle.dumps(value), json.dumps(value).encode()), strict=True):
        path.parent.mkdir()
        path.write_bytes(data)
    texts = {repr(read_snapshot(path)) for path in paths}
    assert len(texts) == 1
    others = (*(pickle.dumps(value, protocol) for protocol in range(2, 6)), saved(value))
    for data in (*others, *map(gzip.compress, others)):
        assert read_snapshot(data).devices[0].plan == ()


def test_two_lists_of_segments_are_compared(tmp_path: Path) -> None:
    paths = [tmp_path / "early.pickle", tmp_path / "late.pt"]
    paths[0].write_bytes(pickle.dumps(training(2).snapshot()["segments"]))
    paths[1].write_bytes(saved(training(5, leak=True).snapshot()["segments"]))
    assert "train.py:25 main" in repr(read_snapshot(*paths))


SEGMENT = {
    "address": 2**21,
    "total_size": 2**21,
    "segment_type": "small",
    "blocks": [{"size": 2**21, "state": "inactive"}],
}
BLOCKS = [{"size": 0, "state": "inactive"}] * 2000


class Hostile:
    def __reduce__(self):
        return os.mkdir, ("hostile",)


def saved(value: Any) -> bytes:
    """What torch.save writes."""
    torch.save(value, file := io.BytesIO())
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty: record one with"),
        (pickle.dumps({"segments": [Hostile()]}), r"would load \w+.mkdir, .*: do not load this file"),
        (pickle.dumps({"segments": []})[:-5], "cut short"),
        (b'{"segments": [1', "damaged or cut short"),
        (pickle.dumps([1]), "holds a list and no memory snapshot"),
        (b"PK\x03\x04rest", "is damaged: it cannot be unpacked"),
        (gzip.compress(pickle.dumps({"segments": []}))[:-9], "is cut short"),
        (saved({"weight": torch.ones(3)}), "as checkpoints do, and so is no memory snapshot"),
        (b'{"traceEvents": []}', "read it with `course trace`"),
        (b"loss 0.3\n", "neither a pickle nor JSON"),
        (b"[" * 200_000, "nested far too deep"),
        (b"\x80\x04}()" + b"\x85" * 300_000 + b"K\x01u.", "tuples of other things than numbers"),  # one in another
        (b"\x80\x04]r\xff\xff\xff\x7f.", "made to fill the memory"),
        (b'{"segments": [], "device_traces": [[{"action": "alloc", "size": -1}]]}', "no action or size"),
        (b'{"segments": [{"address": 0}], "device_traces": []}', "segment 0 has no address"),
        (b'{"segments": [], "device_traces": []}', "has no memory of any GPU"),
        (pickle.dumps({"segments": [SEGMENT] * 2}), "segments overlap"),
        (pickle.dumps({"segments": [{**SEGMENT, "blocks": BLOCKS}] * 1000}), "2000000 blocks, and at most 1000000"),
    ],
    ids=lambda value: "data" if isinstance(value, bytes) else value,  # bytes differ from process to process
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(
    data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SnapshotError, match=message) as caught:
        read_snapshot(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    with path.open("wb") as file:
        file.truncate(600 * MIB)
    with pytest.raises(SnapshotError, match=r"has more than 160 MiB, .* max_entries"):
        read_snapshot(path)
    with pytest.raises(SnapshotError, match="cannot be read: No such file"):
        read_snapshot(tmp_path / "none.pickle")
    with pytest.raises(SnapshotError, match=r"is a folder with 1 snapshot: read .*snapshot\.pickle"):
        read_snapshot(tmp_path)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_file_gives_a_sentence_or_a_card(data) -> None:
    value = training(2).snapshot()
    kinds = (pickle.dumps(value), saved(value), gzip.compress(pickle.dumps(value)))
    content = bytearray(data.draw(st.sampled_from(kinds)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        report = read_snapshot(bytes(content))
    except SnapshotError:
        return
    assert repr(report)


def test_it_needs_the_standard_library_alone() -> None:
    """So that it runs in a page, in Pyodide."""
    program = """
import sys
for name in ("numpy", "torch", "matplotlib", "cattrs", "attrs", "tqdm", "yaml", "scipy", "PIL", "jinja2"):
    sys.modules[name] = None
from own_program import read_snapshot
print(read_snapshot(sys.stdin.buffer.read()))
"""
    data = pickle.dumps(fragmenting().snapshot())
    run = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, timeout=60)
    assert run.stderr == b""
    assert b"expandable_segments:True" in run.stdout
