"""What to change, given what a snapshot shows. Where nothing stands out, nothing."""

from __future__ import annotations

from course_utils.memory.allocator import DEFAULT_LARGE_SEGMENT_BYTES, option_pairs
from course_utils.show.advice import Advice
from course_utils.show.formats import format_bytes, format_percent
from own_program.snapshots.history import DeviceHistory
from own_program.snapshots.stacks import FORWARD, OPTIMIZER
from own_program.snapshots.steps import Growth, loops_without_training
from own_program.snapshots.what_if import LEAST_SAVING, Trial, WhatIf

LEAK_LESSON = "memory_snapshots"
_MOST = 5
_LARGE = 0.4  # of the peak, from which on it is the thing to change
_OPTIMIZER_LARGE = 0.3
_KEPT_BLOCKS = 8  # fewer may be the results that a pass needs at once
_CALLS_A_SECOND = 100
_PREFERRED = "expandable_segments:True"  # it suits other sizes as well; the others suit those of the recording
_LEAST_BYTES = 2 * DEFAULT_LARGE_SEGMENT_BYTES
# 2.9 knows the new name, and ignores it for some options: https://github.com/pytorch/pytorch/issues/183387
_OLDER_NAME = "Before PyTorch 2.10 the variable is PYTORCH_CUDA_ALLOC_CONF."


def plan_of(
    device: DeviceHistory, tries: WhatIf | None, growth: Growth | None, mended: Trial | None
) -> tuple[Advice, ...]:
    """The entries of a plan, the most first.

    Advice on what tensors hold is given only where memory was short: where a request failed, or cached memory had to be
    given back for one.
    """
    if tries is None:
        return ()
    entries = [_setting(device, tries), _growth(device, tries, growth, mended), _empty_cache(device, tries)]
    if device.failure or device.give_backs["retry"]:
        entries += _large_kinds(device)
    kept = [entry for entry in entries if entry is not None]
    return tuple(sorted(kept, key=lambda entry: -(entry.saves or 0.0))[:_MOST])


def _setting(device: DeviceHistory, tries: WhatIf) -> Advice | None:
    met = [trial for trial in tries.trials if trial.is_setting and not trial.fails]
    if not met:
        return None
    best = min(met, key=lambda trial: (trial.name != _PREFERRED or not _worth(tries, trial), trial.reserved_bytes))
    name = best.name.partition(":")[0]
    own = option_pairs(tries.replay.run.begin.options.text)
    beside = [f"{other}:{word}" for other, word in own if other != name]
    change = f"set PYTORCH_ALLOC_CONF={','.join([*beside, best.name])}"
    if tries.base.fails:
        if tries.error >= LEAST_SAVING:
            return None
        because = "The request that failed is met then, in a simulation of the same requests with as much memory."
        return Advice(change, f"{because} {_OLDER_NAME}", "caching_allocator")
    if not _worth(tries, best):
        return None
    because = (
        f"The same requests need {format_bytes(best.reserved_bytes)} instead of {format_bytes(tries.recorded_bytes)}, "
        f"in a simulation that {_error_words(tries)}. {_OLDER_NAME}"
    )
    of = "the reserved peak outside private pools" if device.private_bytes else "the reserved peak"
    return Advice(change, because, "caching_allocator", tries.saving(best), "simulated", of)


def _error_words(tries: WhatIf) -> str:
    if tries.error < 5e-4:
        return "reproduces the recorded peak"
    return f"is off by {format_percent(tries.error)} for the recorded settings"


def _worth(tries: WhatIf, trial: Trial) -> bool:
    """Whether a setting saves what counts, and more than how the last segments happen to be filled."""
    return tries.counts(tries.saving(trial)) and tries.recorded_bytes - trial.reserved_bytes >= _LEAST_BYTES


def _growth(device: DeviceHistory, tries: WhatIf, growth: Growth | None, mended: Trial | None) -> Advice | None:
    if growth is None or mended is None or (mended.fails and not tries.base.fails):
        return None
    if growth.bytes_a_round * growth.rounds < LEAST_SAVING * device.allocated_bytes[device.peak]:
        return None
    because = (
        f"Each of {growth.rounds} steps leaves {format_bytes(growth.bytes_a_round)} that no later one frees, most of "
        f"it from {growth.stack.place}. Freed at each step's end in a simulation, the peak is "
        f"{format_bytes(mended.reserved_bytes)}."
    )
    saves = tries.saving(mended)
    saves = saves if saves > 0 and (tries.counts(saves) or tries.base.fails) else None  # else it is the recording's
    change = f"free what each step keeps from {growth.stack.place}, or move it to the CPU"
    return Advice(change, because, LEAK_LESSON, saves, "about", "the reserved peak")


def _empty_cache(device: DeviceHistory, tries: WhatIf) -> Advice | None:
    kept = next((trial for trial in tries.trials if trial.keeps_cache), None)
    calls = tries.device_calls
    often = device.seconds > 0 and calls > _CALLS_A_SECOND * device.seconds
    if not device.give_backs["empty_cache"] or kept is None or not often or kept.reserved_bytes > tries.recorded_bytes:
        return None
    because = (
        f"It is called {device.give_backs['empty_cache']} times in {device.seconds:.3g} s. Without it, calls that take "
        f"memory from the device are {kept.device_allocs} instead of {calls}, and the peak is no higher."
    )
    saves = 1 - kept.device_allocs / calls
    change, of = "leave out torch.cuda.empty_cache()", "the calls that take memory from the device"
    return Advice(change, because, "caching_allocator", saves, "simulated", of)


def _large_kinds(device: DeviceHistory) -> list[Advice]:
    """What tensors hold at the peak, where it was too much."""
    kinds = device.kinds(device.peak)
    total = max(1, sum(kinds.values()))
    forward, optimizer = kinds[FORWARD] / total, kinds[OPTIMIZER] / total
    of, found = "the peak in use", []
    kept = [block.size_bytes for block in device.live(device.peak) if device.kind_of(block) == FORWARD]
    if forward >= _LARGE and len(kept) >= _KEPT_BLOCKS:
        share = f"{len(kept)} blocks of forward passes hold {format_bytes(kinds[FORWARD])}, {format_percent(forward)}"
        because = f"At the peak {share} of what is in use; a checkpointed module's are freed, and computed again."
        # One that is computed again is there while it is needed.
        most = (sum(kept) - max(kept)) / total
        change = "checkpoint the activations of the largest modules"
        found.append(Advice(change, because, "activation_checkpointing", most, of=of))
        because = "Most of these tensors shrink with the batch, and a step's gradients stay the same."
        change = "use a smaller micro-batch, and accumulate its gradients"
        found.append(Advice(change, because, "gradient_accumulation"))
        if loops_without_training(device):
            because = "The recording has many calls of the model, no backward pass and no optimizer."
            change = "run it under torch.no_grad(), if it does not train"
            found.append(Advice(change, because, "no_grad", most, of=of))
    if optimizer >= _OPTIMIZER_LARGE:
        held = f"{format_bytes(kinds[OPTIMIZER])}, {format_percent(optimizer)}"
        change = "shard the optimizer's state over the GPUs with FSDP"
        because = f"At the peak the optimizer holds {held} of what is in use."
        found.append(Advice(change, because, "fsdp", optimizer, of=of))
    return found
