"""The card of a memory snapshot, on histories that are made up so that every number is known, and on bad files."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from course_utils.lessons.memory_snapshots.stand_in import memory_history
from course_utils.memory.allocator import Allocate, Allocator, AllocatorOptions, BlockState, Event, Free
from own_program.snapshots.snapshot_report import DeviceReport, SnapshotError, SnapshotReport, read_snapshot
from tests.memory.test_allocator import TRACES

MIB = 2**20
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


class Recorded:
    """A program whose requests the simulated allocator meets, writing down what PyTorch would."""

    def __init__(self, device_bytes: int | None = None) -> None:
        self.allocator = Allocator(AllocatorOptions(), None, device_bytes)
        self.entries, self.frames, self.time_us = [], {}, 0

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

    def snapshot(self, device: int = 0, since: int = 0) -> dict[str, Any]:
        segments = [
            {"device": device, "address": each.address, "total_size": each.bytes, "stream": 0}
            | {"segment_type": each.pool, "segment_pool_id": (0, 0), "is_expandable": each.expandable}
            | {"blocks": [self._block(block) for block in each.blocks]}
            for each in self.allocator.state().segments
        ]
        traces = [*([[]] * device), self.entries[since:]]
        return {"segments": segments, "device_traces": traces, "allocator_settings": {}}

    def _block(self, block: BlockState) -> dict[str, Any]:
        known = {"size": block.bytes, "requested_size": block.requested_bytes, "state": STATES[block.state]}
        return known | {"frames": self.frames.get(block.id, [])}


def text(report: SnapshotReport) -> str:
    return " ".join(repr(report).split())


def device_of(program: Recorded, since: int = 0) -> DeviceReport:
    return read_snapshot(program.snapshot(since=since)).devices[0]


def training(steps: int, leaks: bool = False) -> Recorded:
    """Three layers forward, three back; the optimizer's state is taken in the first step."""
    program = Recorded()
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
        if leaks:
            program.take(f"logged {step}", 20 * MIB, frames(train(25)))
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
    assert report.card().plan == ()
    assert "nothing stands out" in report.card().words
    assert "reproduced to the byte" in text(report)
    assert "By what it is for: forward 63%, optimizer 25%, backward 8.5%, other 2.8%." in text(report)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*-2.13.0.json")), ids=lambda path: path.stem)
def test_what_pytorch_counted_itself_is_on_the_card(path: Path) -> None:
    recorded = json.loads(path.read_text())
    (device,) = read_snapshot(path).devices
    assert device.peak_allocated_bytes == recorded["stats"]["allocated_peak"]
    assert device.peak_reserved_bytes == recorded["stats"]["reserved_peak"]


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
    late = device_of(program, since=begun)
    assert (late.peak_reserved_bytes, late.lost_bytes) == (220 * MIB, 100 * MIB)
    assert late.holders[0].stack.kind == "from before the recording"
    assert late.plan == ()  # begun empty, any try needs less; that says nothing of a setting


# Other settings


def fragmenting() -> Recorded:
    """Each request is a little larger than the one before, which is free: without pages that grow, none fits."""
    program = Recorded()
    for size in range(100, 180, 4):
        program.take(f"part {size}", size * MIB, INPUT)
        program.give(f"part {size}")
    return program


def test_a_setting_that_needs_less_is_advised_with_what_it_saves() -> None:
    report = read_snapshot(fragmenting().snapshot())
    device, (advice, *_) = report.devices[0], report.devices[0].plan
    whole = sum(range(100, 180, 4)) * MIB
    assert device.peak_reserved_bytes == whole
    assert advice.change == "set PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert (advice.known, advice.of, advice.lesson) == ("simulated", "the reserved peak", "caching_allocator")
    assert advice.saves == pytest.approx(1 - 180 * MIB / whole)  # the largest request, in pages of 20 MiB
    assert "expandable_segments:True" in report.card().words


# Steps that leave something behind


OUTPUT = frames(("/home/me/net.py", 8, "forward"), MODULE, train(20))


@pytest.mark.parametrize("is_cleared", [True, False])
def test_what_is_filled_once_or_cleared_is_no_leak(is_cleared: bool) -> None:
    program = Recorded()
    for step in range(30):
        program.take(f"batch {step}", 4 * MIB, INPUT)
        program.take(f"kept {step}", (30 + step % 7) * MIB, FORWARD)
        if is_cleared or step < 12:
            program.take(f"output {step}", 10 * MIB, OUTPUT)
        if is_cleared and step == 7:
            program.give(*(f"output {each}" for each in range(8)))
        program.take(f"gradient {step}", 12 * MIB, BACKWARD)
        program.give(f"batch {step}", f"kept {step}", f"gradient {step}")
    assert device_of(program).growth is None


def test_what_each_step_leaves_is_counted() -> None:
    device = device_of(training(10, leaks=True))
    assert device.growth.bytes_a_round == 20 * MIB
    # All but what the first and the last two rounds leave.
    assert device.plan[0].saves == pytest.approx(7 * 20 * MIB / device.peak_allocated_bytes)


def test_a_real_program_on_the_cpu(tmp_path: Path) -> None:
    """Real operations and stacks, with what PyTorch's allocator would have written."""
    model, kept = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with memory_history() as dump:
        for _ in range(6):
            outputs = model(torch.ones(8192, 64) * 2)
            outputs.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            kept.append(outputs.detach() + 1)
            del outputs
        dump(str(tmp_path / "snapshot.pickle"))
    (device,) = read_snapshot(tmp_path / "snapshot.pickle").devices
    assert [advice.lesson for advice in device.plan] == ["memory_snapshots"]
    assert (device.growth.bytes_a_round, device.growth.stack.place.file) == (8192 * 64 * 4, __file__)


# Out of memory


def test_a_request_that_failed_says_what_stood_in_its_way() -> None:
    program = Recorded(device_bytes=1000 * MIB)
    for number in range(12):
        program.take(f"kept {number}", 60 * MIB, FORWARD)
    program.give(*(f"kept {number}" for number in range(0, 12, 2)))
    for number in range(0, 12, 2):
        program.take(f"again {number}", 40 * MIB, FORWARD)  # 20 MiB are left of each
    program.take("large", 500 * MIB, FORWARD)
    noted = [{"name": "Optimizer.zero_grad#AdamW.zero_grad"}]
    report = read_snapshot(program.snapshot() | {"external_annotations": noted})
    words = text(report)
    assert "GPU 0 ran out of memory at a request of 500 MiB: 720 MiB were reserved, and 600 MiB of them in use" in words
    assert "120 MiB were reserved and not in use, in pieces of at most 20.0 MiB; the device had 280 MiB left" in words
    lessons = [advice.lesson for advice in report.devices[0].plan]
    assert lessons == ["activation_checkpointing", "gradient_accumulation"]


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


LOSS = frames(("/env/lib/python3.11/site-packages/torch/nn/functional.py", 3, "cross_entropy"), train(21))


@pytest.mark.parametrize(
    ("stack", "change"),
    [
        (LOSS, "compute the loss in pieces, or use a fused loss"),
        (FORWARD, "use a smaller batch or shorter inputs, or let the largest lines work in pieces"),
    ],
    ids=["copies of logits", "a forward pass that no gradient comes from"],
)
def test_what_the_tensors_were_for_is_advised_on_where_memory_ran_out(stack: list[dict[str, Any]], change: str) -> None:
    program = Recorded(device_bytes=1000 * MIB)
    program.take("inputs", 100 * MIB, INPUT)
    for number in range(3):
        program.take(f"large {number}", 400 * MIB, stack)
    assert [advice.change for advice in device_of(program).plan] == [change]


# Several devices, and no history


def test_each_device_has_a_card_and_one_names_them() -> None:
    one, two = training(5).snapshot(), fragmenting().snapshot(device=2)
    traces = [one["device_traces"][0], [], two["device_traces"][2]]
    several = {"segments": one["segments"] + two["segments"], "device_traces": traces}
    report = read_snapshot(several)
    assert report.card().words.startswith("2 GPUs, GPU 2 the most")
    assert len(report.cards) == 3
    assert report._repr_html_().count('class="course-card"') == 3
    assert read_snapshot(several, device=2).card().words.startswith("GPU 2 held up to")
    with pytest.raises(SnapshotError, match="has no memory of GPU 1: it has 0 and 2"):
        read_snapshot(several, device=1)


def test_a_snapshot_without_a_history_shows_who_holds_the_memory() -> None:
    program = training(3)
    report = read_snapshot(program.snapshot() | {"device_traces": [[]]})
    assert report.card().words == "GPU 0 has 146 MiB reserved, and 36.0 MiB of it in use; the snapshot has no history."
    assert "_record_memory_history" in text(report)
    assert report.devices[0].holders[0].stack.kind == "optimizer"


# Files


def test_whatever_a_snapshot_was_written_with_its_card_is_the_same() -> None:
    value = training(5).snapshot()
    written = (pickle.dumps(value), pickle.dumps(value, 2), json.dumps(value).encode(), saved(value))
    assert len({text(read_snapshot(data)) for data in (*written, gzip.compress(written[0]))}) == 1


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
        (pickle.dumps({"segments": []})[:-5], "damaged or cut short"),
        (saved({"weight": torch.ones(3)}), "as checkpoints do, and so is no memory snapshot"),
        (b'{"segments": [{"address": 0}], "device_traces": []}', "is damaged: its history or its settings"),
    ],
    ids=lambda value: "data" if isinstance(value, bytes) else value,  # bytes differ from process to process
)
def test_what_is_wrong_with_a_file_is_said_in_one_sentence(
    data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a folder would be made
    with pytest.raises(SnapshotError, match=message) as caught:
        read_snapshot(data)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
