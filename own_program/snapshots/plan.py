"""What to change, given what a snapshot shows. Where nothing stands out, nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter

from course_utils.memory.allocator import DEFAULT_LARGE_SEGMENT_BYTES, SMALL_REQUEST_BYTES, option_pairs
from course_utils.memory.cuda_history import Allocation
from course_utils.show.advice import Advice
from course_utils.show.formats import format_bytes, format_percent, format_seconds
from own_program.snapshots.history import DeviceHistory
from own_program.snapshots.stacks import CACHE, CHECKPOINT, FORWARD, LOSS, OPTIMIZER, WEIGHTS, Place, is_loaded
from own_program.snapshots.steps import Growth, last_round, trains
from own_program.snapshots.what_if import LEAST_SAVING, Trial, WhatIf

_LARGE = 0.4  # of the peak, from which on it is the thing to change
_OPTIMIZER_LARGE = _LOGITS_LARGE = 0.3
_CACHE_LARGE = 0.1
_SAME = 0.8  # of a checkpoint, in sizes that weights have
_ALIKE = 0.02  # how far sizes of logits and of their copies may differ, as where the last token has no target
_KEPT_BLOCKS = 8  # fewer may be the results that a pass needs at once
_FREED = 0.5  # of what forward passes asked for, from which on they do not keep it for a backward pass
_PILED = 4  # blocks of one line at once: it was called again while its earlier results were still needed
_CALLS, _CALLS_A_SECOND = 10, 100
_PREFERRED = "expandable_segments:True"  # it suits other sizes as well; the others suit those of the recording
LEAST_BYTES = 2 * DEFAULT_LARGE_SEGMENT_BYTES
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
    first = [_growth(tries, growth)]
    entries = [_setting(device, tries), _empty_cache(device, tries), _logits(device)]
    if device.was_short:
        if not (first[0] and growth.stack.kind == FORWARD and not tries.mended.fails):  # else it holds what grows
            entries += _activations(device) if trains(device) else _passes(device)
        entries.append(_optimizer(device))
        checkpoint = _checkpoint(device)
        enough = device.failure.requested_bytes / device.allocated_bytes[device.peak] if device.failure else 1.0
        (first if checkpoint and checkpoint.saves >= enough else entries).append(checkpoint)
    return tuple(filter(None, first + sorted(filter(None, entries), key=lambda entry: -(entry.saves or 0.0))))


def _setting(device: DeviceHistory, tries: WhatIf) -> Advice | None:
    preferred = (
        trial for trial in tries.settings if trial.name == _PREFERRED and not trial.fails and _worth(tries, trial)
    )
    best = next(preferred, tries.best)
    if best is None:
        return None
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
    needs, before = format_bytes(best.reserved_bytes), format_bytes(tries.before_bytes)
    because = f"The same requests need {needs} instead of {before}, in a simulation. {_OLDER_NAME}"
    of = "the reserved peak outside private pools" if device.private_bytes else "the reserved peak"
    return Advice(change, because, "caching_allocator", tries.saving(best), "simulated", of)


def _worth(tries: WhatIf, trial: Trial) -> bool:
    """Whether a setting saves what counts, and more than how the last segments happen to be filled."""
    return tries.counts(tries.saving(trial)) and tries.before_bytes - trial.reserved_bytes >= LEAST_BYTES


def _growth(tries: WhatIf, growth: Growth | None) -> Advice | None:
    mended = tries.mended
    if growth is None or mended is None or (mended.fails and not tries.base.fails):
        return None
    place, each = growth.stack.place, format_bytes(growth.bytes_a_round)
    saves, of, peak = tries.saving(mended), "the reserved peak", mended.reserved_bytes
    if not tries.counts(saves):  # else it fits into what is reserved anyway
        saves, of, peak = 1 - mended.in_use_bytes / max(1, tries.base.in_use_bytes), _IN_USE, mended.in_use_bytes
    because = f"Each of {growth.rounds} steps leaves {each} that no later one frees, most of it from {place}."
    mend, lesson = "Freed at each step's end", "memory_snapshots"
    change = f"free what each step keeps from {place}, or move it to the CPU"
    if growth.joined:
        because = f"{place} made a tensor anew {growth.rounds} times, larger by about {each} each time."
        mend, change = "Without it on the GPU", f"move to the CPU what {place} collects"
    elif growth.graphs:
        because = f"Each of {growth.rounds} batches without a backward pass leaves {each}, most of it from {place}."
        change, lesson = "use torch.no_grad() for what does not train, or free what each batch keeps", "no_grad"
    if mended.fails:
        return Advice(change, because, lesson)
    met = "the request that failed is met, and " if tries.base.fails else ""
    because = f"{because} {mend} in a simulation, {met}{of} is {format_bytes(peak)}."
    return Advice(change, because, lesson, saves if saves >= 0.005 else None, "about", of)


def _empty_cache(device: DeviceHistory, tries: WhatIf) -> Advice | None:
    kept, base, calls = tries.kept, tries.base, device.give_backs["empty_cache"]
    often = calls >= _CALLS and base.device_allocs > _CALLS_A_SECOND * device.seconds > 0
    if kept is None or not often or kept.reserved_bytes > base.reserved_bytes:
        return None
    saves = 1 - kept.device_allocs / base.device_allocs
    if saves < LEAST_SAVING:
        return None
    because = (
        f"It is called {calls} times in {format_seconds(device.seconds)}. Without it, calls that take memory from the "
        f"device are {kept.device_allocs} instead of {base.device_allocs}, and the peak is no higher."
    )
    change, of = "leave out torch.cuda.empty_cache()", "the calls that take memory from the device"
    return Advice(change, because, "caching_allocator", saves, "simulated", of)


def _logits(device: DeviceHistory) -> Advice | None:
    """Copies of the logits, if they fill much of the peak: all as large as the largest block of a loss function."""
    blocks = [(block.size_bytes, device.stack_of(block)) for block in device.live(device.peak)]
    failed = [(device.failure.requested_bytes, device.failure.stack)] if device.failure else []
    size = max((each for each, stack in (*blocks, *failed) if stack.kind == LOSS), default=0)
    copies, more = ([each for each in some if abs(each[0] - size) <= _ALIKE * size] for some in (blocks, failed))
    held, total = (sum(each for each, _ in some) for some in (copies or more, blocks))
    entropy = any(_ENTROPY.search(place.name) for _, stack in (*copies, *more) for place in stack.path)
    half = any(abs(2 * each - size) <= _ALIKE * size for each, _ in blocks)
    if held < max(_LOGITS_LARGE * total, LEAST_BYTES) or not (entropy or half):
        return None
    such = "a float32 copy of the logits and its log-softmax" if entropy else "float32 copies of the model's output"
    change, lesson = "compute the loss in pieces, or use a fused loss", "memory_snapshots"
    if not copies:
        because = f"The request that failed, of {format_bytes(size)}, is for what the loss works on, such as {such}."
        return Advice(change, because, lesson, size / (total + size), of="what was asked for")
    because = (
        f"{format_bytes(held)}, {format_percent(held / max(1, total))} of what is in use at the peak, lie in "
        f"{len(copies)} tensor{'s' * (len(copies) > 1)} of {format_bytes(size)} that the loss works on, such as {such}."
        f"{' The request that failed is for one more.' if more else ''}"
    )
    return Advice(change, because, lesson, held / total, of=_IN_USE)


def _held_by_forward(
    device: DeviceHistory, without: Container[tuple[Place, ...]] = ()
) -> tuple[list[Allocation], int, float]:
    """Blocks of forward passes at the peak, what they hold, and which share of what is in use that is."""
    of_forward = [block for block in device.live(device.peak) if device.stack_of(block).kind == FORWARD]
    blocks = [block for block in of_forward if device.stack_of(block).path not in without]
    held = sum(block.size_bytes for block in blocks)
    return blocks, held, held / max(1, device.allocated_bytes[device.peak])


def _recomputed(blocks: Sequence[Allocation], held: int, share: float) -> float:
    """What can be saved at most of blocks that are made again when they are needed: the largest is there then."""
    return share * (1 - max(block.size_bytes for block in blocks) / held)


def _activations(device: DeviceHistory) -> Iterator[Advice]:
    """What forward passes keep for a backward pass, where it was too much."""
    blocks, held, share = _held_by_forward(device)
    if share >= _LARGE and len(blocks) >= _KEPT_BLOCKS:
        words = f"{len(blocks)} blocks of forward passes hold {format_bytes(held)}, {format_percent(share)}"
        because = f"At the peak {words} of what is in use; a checkpointed module's are freed, and computed again."
        most = _recomputed(blocks, held, share)
        change = "checkpoint the activations of the largest modules"
        yield Advice(change, because, "activation_checkpointing", most, of=_IN_USE)
        because = "Most of these tensors shrink with the batch, and a step's gradients stay the same."
        yield Advice("use a smaller micro-batch, and accumulate its gradients", because, "gradient_accumulation")


def _passes(device: DeviceHistory) -> Iterator[Advice]:
    """What forward passes hold in a recording without a backward pass and an optimizer, where it was too much."""
    blocks, held, share = _held_by_forward(device, without=_growing(device))
    kinds, total = device.kinds(device.peak), max(1, device.allocated_bytes[device.peak])
    weights = kinds[WEIGHTS] + kinds[CHECKPOINT]
    others = device.failure and device.failure.others_hold(max(device.history.reserved_bytes))
    if 2 * weights > total and not others:
        because = f"The weights hold {format_bytes(weights)}, {format_percent(weights / total)} of what is in use."
        change = "keep the weights in fewer bits, or spread them over several GPUs"
        yield Advice(change, because, "loading_large_models")
    if share < _LARGE:
        cache = kinds[CACHE] + kinds[FORWARD] - held
        cached = cache / total
        if cached >= _CACHE_LARGE:
            what = "The KV cache" if held == kinds[FORWARD] else "What grows from pass to pass, as a KV cache does,"
            because = f"{what} holds {format_bytes(cache)}, {format_percent(cached)} of what is in use at the peak."
            yield Advice("use a smaller batch or shorter inputs", because, "batch_size", cached, of=_IN_USE)
        return
    most, keeps = _recomputed(blocks, held, share), _keeps(device, blocks, held)
    if keeps and any(device.stack_of(block).kind == LOSS for block in device.history.allocations):
        yield from _activations(device)  # it is about to train
        return
    no_grad = "run it under torch.no_grad(), if it does not train"
    lines = {device.stack_of(block).path for block in blocks}
    begin = last_round(device, device.peak) or 0
    earlier = [block for block in blocks if block.born < begin]
    if 2 * len({device.stack_of(block).path for block in earlier}) >= len(lines):  # else they may be results
        stays = sum(block.size_bytes for block in earlier) / held * share
        because = f"At the peak {format_percent(stays)} of what is in use is from earlier forward passes; "
        because += "no backward pass and no optimizer are in the recording."
        yield Advice(no_grad, because, "no_grad", stays, of=_IN_USE)
    elif keeps:
        because = "Forward passes keep what they made, and no backward pass and no optimizer are in the recording."
        yield Advice(no_grad, because, "no_grad", most, of=_IN_USE)
        if len(blocks) >= _KEPT_BLOCKS:
            because = "A checkpointed module's tensors are freed, and computed again in the backward pass."
            change = "checkpoint the activations of the largest modules, if it trains"
            yield Advice(change, because, "activation_checkpointing", most, of=_IN_USE)
    because = f"Forward passes hold {format_bytes(held)}, {format_percent(share)} of what is in use at the peak."
    change = "use a smaller batch or shorter inputs, or let the largest lines work in pieces"
    yield Advice(change, because, "memory_snapshots")


def _growing(device: DeviceHistory) -> set[tuple[Place, ...]]:
    """Lines of forward passes whose results grow from pass to pass, as a KV cache that is made anew for each token."""
    sizes: dict[tuple[Place, ...], list[int]] = {}
    for block in device.history.allocations:
        sizes.setdefault(device.stack_of(block).path, []).append(block.size_bytes)
    return {
        path
        for path, each in sizes.items()
        if each[-1] >= 2 * each[0] and all(b >= a - SMALL_REQUEST_BYTES for a, b in pairwise(each))
    }


def _keeps(device: DeviceHistory, blocks: Sequence[Allocation], held: int) -> bool:
    """Whether forward passes keep most of what they make, as for a backward pass.

    A line does that has as many blocks as it asked for. In one pass each line may be asked once: then most has to be
    there, or several blocks of one line, which are the layers'.
    """
    asked = [b for b in device.history.allocations if 0 < b.born <= device.peak and device.stack_of(b).kind == FORWARD]
    freed = sum(b.size_bytes for b in asked) - held >= _FREED * sum(b.size_bytes for b in asked)
    live, made = (Counter(device.stack_of(b).path for b in some) for some in (blocks, asked))
    kept = {path for path, count in live.items() if 2 * count >= made[path] and (count >= _PILED or not freed)}
    return sum(b.size_bytes for b in blocks if device.stack_of(b).path in kept) >= _FREED * held


def _optimizer(device: DeviceHistory) -> Advice | None:
    kinds = device.kinds(device.peak)
    share = kinds[OPTIMIZER] / max(1, sum(kinds.values()))
    if share < _OPTIMIZER_LARGE:
        return None
    held = f"{format_bytes(kinds[OPTIMIZER])}, {format_percent(share)}"
    because = f"At the peak the optimizer holds {held} of what is in use."
    return Advice("shard the optimizer's state over the GPUs with FSDP", because, "fsdp", share, of=_IN_USE)


def _checkpoint(device: DeviceHistory) -> Advice | None:
    """A checkpoint on the GPU, beside weights of the same sizes; weights that were loaded to be used have none."""
    blocks = [(block.size_bytes, device.stack_of(block)) for block in device.live(device.peak)]
    loaded = [(size, stack) for size, stack in blocks if is_loaded(stack.path)]
    weights = {size for size, stack in blocks if stack.kind == WEIGHTS and not is_loaded(stack.path)}
    held, total = (sum(size for size, _ in some) for some in (loaded, blocks))
    same = sum(size for size, _ in loaded if any(abs(size - other) <= _ALIKE * size for other in weights))
    if held < max(LEAST_SAVING * total, LEAST_BYTES) or same < _SAME * held:
        return None
    place = max(loaded, key=itemgetter(0))[1].place
    because = (
        f"torch.load at {place} put {format_bytes(held)} on the GPU, {format_percent(held / total)} of "
        "what is in use at the peak, in the sizes of weights that are there too: a second copy, if they come from it."
    )
    change = "load the checkpoint with map_location='cpu'"
    return Advice(change, because, "loading_large_models", held / total, of=_IN_USE)
