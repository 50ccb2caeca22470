"""What to change, given what a snapshot shows. Where nothing stands out, nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from course_utils.memory.allocator import option_pairs
from course_utils.memory.cuda_history import Allocation
from course_utils.show.advice import Advice
from course_utils.show.formats import format_bytes, format_percent
from own_program.snapshots.device_history import DeviceHistory
from own_program.snapshots.growth import Growth, trains
from own_program.snapshots.stacks import FORWARD, LOSS
from own_program.snapshots.what_if import LEAST_BYTES, LEAST_SAVING, WhatIf

_LARGE = 0.4  # of the peak, from which on it is the thing to change
_LOGITS_LARGE = 0.3
_ALIKE = 0.02  # how far sizes of logits and of their copies may differ, as where the last token has no target
_KEPT_BLOCKS = 8  # fewer may be the results that a pass needs at once
_PREFERRED = "expandable_segments:True"  # it suits other sizes as well; the others suit those of the recording
# 2.9 knows the new name, and ignores it for some options: https://github.com/pytorch/pytorch/issues/183387
_OLDER_NAME = "Before PyTorch 2.10 the variable is PYTORCH_CUDA_ALLOC_CONF."
_IN_USE = "the peak in use"
_ENTROPY = re.compile(r"cross_entropy|log_softmax|nll_loss|CrossEntropy|CausalLM")


def plan_of(device: DeviceHistory, tries: WhatIf | None, growth: Growth | None) -> tuple[Advice, ...]:
    """The entries of a plan: what grows, which fills any memory in the end, and then the most first.

    Advice on what tensors hold is given only where memory was short, but for logits: where a request failed, or cached
    memory had to be given back for one.
    """
    if tries is None:
        return ()
    first = _growth(device, growth) if growth else None
    entries = [_setting(tries), _logits(device)]
    # Where forward passes leave what grows, they hold that.
    if device.was_short and not (growth and growth.stack.kind == FORWARD):
        entries += _activations(device) if trains(device) else _passes(device)
    ranked = sorted(filter(None, entries), key=lambda entry: -(entry.saves or 0.0))
    return tuple(filter(None, (first, *ranked)))


def _setting(tries: WhatIf) -> Advice | None:
    met = sorted((each for each in tries.settings if not each.fails), key=lambda each: each.reserved_bytes)
    if not met:
        return None
    best = next((each for each in met if each.name == _PREFERRED and tries.is_worth(each)), met[0])
    own = option_pairs(tries.replay.run.begin.options.text)
    beside = [f"{name}:{word}" for name, word in own if name != best.name.partition(":")[0]]
    change = f"set PYTORCH_ALLOC_CONF={','.join([*beside, best.name])}"
    if tries.base.fails:
        because = "The request that failed is met then, in a simulation of the same requests with as much memory."
        advice = Advice(change, f"{because} {_OLDER_NAME}", "caching_allocator")
        return advice if tries.error < LEAST_SAVING else None
    if not tries.is_worth(best):
        return None
    needs, before = format_bytes(best.reserved_bytes), format_bytes(tries.before_bytes)
    because = f"The same requests need {needs} instead of {before}, in a simulation. {_OLDER_NAME}"
    return Advice(change, because, "caching_allocator", tries.saving(best), "simulated", "the reserved peak")


def _growth(device: DeviceHistory, growth: Growth) -> Advice:
    place, each, kept = growth.stack.place, format_bytes(growth.bytes_a_round), format_bytes(growth.bytes)
    because = f"Each of {growth.rounds} steps leaves {each} that no later one frees, {kept} in all, most from {place}."
    change = f"free what each step keeps from {place}, or move it to the CPU"
    freed = growth.bytes - growth.bytes_a_round  # a step holds its own until it ends
    share = min(1.0, freed / device.allocated_bytes[device.peak])
    return Advice(change, because, "memory_snapshots", share, "about", _IN_USE)


def _logits(device: DeviceHistory) -> Advice | None:
    """Copies of the logits, if they fill much of the peak: all as large as the largest block of a loss function."""
    blocks = [(block.size_bytes, device.stack_of(block)) for block in device.live(device.peak)]
    failed = [(device.failure.requested_bytes, device.failure.stack)] if device.failure else []
    size = max((each for each, stack in (*blocks, *failed) if stack.kind == LOSS), default=0)
    copies, more = ([each for each in some if abs(each[0] - size) <= _ALIKE * size] for some in (blocks, failed))
    held, total = (sum(each for each, _ in some) for some in (copies, blocks))
    entropy = any(_ENTROPY.search(place.name) for _, stack in (*copies, *more) for place in stack.path)
    half = any(abs(2 * each - size) <= _ALIKE * size for each, _ in blocks)
    if held < max(_LOGITS_LARGE * total, LEAST_BYTES) or not (entropy or half):
        return None
    such = "a float32 copy of the logits and its log-softmax" if entropy else "float32 copies of the model's output"
    change, lesson = "compute the loss in pieces, or use a fused loss", "memory_snapshots"
    because = (
        f"{format_bytes(held)}, {format_percent(held / total)} of what is in use at the peak, lie in "
        f"{len(copies)} tensor{'s' * (len(copies) > 1)} of {format_bytes(size)} that the loss works on, such as {such}."
        f"{' The request that failed is for one more.' if more else ''}"
    )
    return Advice(change, because, lesson, held / total, of=_IN_USE)


def _held_by_forward(device: DeviceHistory) -> tuple[list[Allocation], int, float]:
    """Blocks of forward passes at the peak, what they hold, and which share of what is in use that is."""
    blocks = [block for block in device.live(device.peak) if device.stack_of(block).kind == FORWARD]
    held = sum(block.size_bytes for block in blocks)
    return blocks, held, held / max(1, device.allocated_bytes[device.peak])


def _activations(device: DeviceHistory) -> Iterator[Advice]:
    """What forward passes keep for a backward pass, where it was too much."""
    blocks, held, share = _held_by_forward(device)
    if share >= _LARGE and len(blocks) >= _KEPT_BLOCKS:
        words = f"{len(blocks)} blocks of forward passes hold {format_bytes(held)}, {format_percent(share)}"
        because = f"At the peak {words} of what is in use; a checkpointed module's are freed, and computed again."
        most = share * (1 - max(block.size_bytes for block in blocks) / held)  # the largest has to be there again
        change = "checkpoint the activations of the largest modules"
        yield Advice(change, because, "activation_checkpointing", most, of=_IN_USE)
        because = "Most of these tensors shrink with the batch, and a step's gradients stay the same."
        yield Advice("use a smaller micro-batch, and accumulate its gradients", because, "gradient_accumulation")


def _passes(device: DeviceHistory) -> Iterator[Advice]:
    """What forward passes hold in a recording without a backward pass and an optimizer, where it was too much."""
    _, held, share = _held_by_forward(device)
    if share >= _LARGE:
        because = (
            f"Forward passes hold {format_bytes(held)}, {format_percent(share)} of what is in use at the peak; no "
            "backward pass and no optimizer are in the recording. If it does not train, run it under torch.no_grad()."
        )
        change = "use a smaller batch or shorter inputs, or let the largest lines work in pieces"
        yield Advice(change, because, "memory_snapshots")
