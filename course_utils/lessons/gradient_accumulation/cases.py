"""What the lesson accumulates: parts of a batch that differ in tokens, and layers that look across the batch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.materials.step_memory import kept_bytes, peak_bytes, worked_out
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.fresh import Fresh, fresh
from course_utils.measure.machine import course_size, scaled

# How many tokens count in each part of 8 texts of 64 tokens: answers of 64, 8, 2 and 1 tokens.
COUNTED = (512, 64, 16, 8)
Part = tuple[torch.Tensor, torch.Tensor]
# What a part's loss is to be: of the sum of its losses, its own tokens, those of all parts, and the number of parts.
Ways = Mapping[str, Callable[[Any, int, int, int], Any]]
# Of the group whose memory and time are measured: how many texts, and into how many parts they are cut.
TEXTS, PARTS = 32, (1, 2, 4, 8, 16, 32)


def parts_of_text() -> list[Part]:
    """Four parts: int64 ``(tokens, targets)`` of ``[8, 64]``; -100 stands for a target that does not count.

    Example:
        >>> [int((targets != -100).sum()) for _, targets in parts_of_text()]
        [512, 64, 16, 8]
    """
    parts = []
    batches = text_batches(library_text(2**18), batch=8, length=64, steps=len(COUNTED))
    for counted, (tokens, targets) in zip(COUNTED, batches, strict=True):
        targets = targets.clone()
        targets[:, : 64 - counted // 8] = -100
        parts.append((tokens, targets))
    return parts


def loss_sum(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all tokens that count, in nats."""
    return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")


def _vector(tensors: Iterator[torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors if tensor is not None])


def gradient(model: nn.Module) -> torch.Tensor:
    """A copy of all gradients, as one vector."""
    return _vector(weight.grad for weight in model.parameters())


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The length of the difference, over the length of what is wanted."""
    return ((found - wanted).norm() / wanted.norm()).item()


def _small_gpt(dtype: torch.dtype = torch.float64) -> GPT:
    torch.manual_seed(0)
    return GPT(context=64, width=64, layers=2).to(dtype)


@contextlib.contextmanager
def _gradients_of_logits(model: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Autograd's gradients at the logits of each forward pass, in the order of the backward passes."""
    found: list[torch.Tensor] = []

    def watch(module: nn.Module, inputs: Any, logits: torch.Tensor) -> None:
        logits.register_hook(found.append)

    with model.register_forward_hook(watch):
        yield found


def _accumulated(
    way: Callable[..., Any],
    parts: Sequence[Part],
    most_norm: float | None = None,
    dtype: torch.dtype = torch.float64,
    model: nn.Module | None = None,
) -> nn.Module:
    """The model, or a new one, with the gradients of all parts; their sum is clipped after each (a mistake) or not."""
    model, total = model or _small_gpt(dtype), sum(int((targets != -100).sum()) for _, targets in parts)
    for tokens, targets in parts:
        way(loss_sum(model, tokens, targets), int((targets != -100).sum()), total, len(parts)).backward()
        if most_norm:
            nn.utils.clip_grad_norm_(model.parameters(), most_norm)
    return model


def _at_once(parts: Sequence[Part], dtype: torch.dtype = torch.float64, model: nn.Module | None = None) -> nn.Module:
    model = model or _small_gpt(dtype)
    tokens, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    (loss_sum(model, tokens, targets) / (targets != -100).sum()).backward()
    return model


def gradients_by(ways: Ways) -> list[dict[str, Any]]:
    """For each way to divide: the gradient's error and norm, and how much more a token of the last part counts.

    What tokens of a part count is the length of autograd's gradient at their logits, over that in the batch at once.
    """
    parts, model = parts_of_text(), _small_gpt()
    with _gradients_of_logits(model) as at_logits:
        wanted = gradient(_at_once(parts, model=model))
    at_once = at_logits[0].chunk(len(parts))
    single = gradient(_at_once(parts, torch.float32)).double()
    rows = []
    for name, way in ways.items():
        model = _small_gpt()
        with _gradients_of_logits(model) as at_logits:
            found = gradient(_accumulated(way, parts, model=model))
        first, *_, last = (part.norm() / same.norm() for part, same in zip(at_logits, at_once, strict=True))
        rows.append(
            {
                "the loss of a part": name,
                "error": error(found, wanted),
                "norm": (found.norm() / wanted.norm()).item(),
                "last token / first": (last / first).item(),
                "error in float32": error(gradient(_accumulated(way, parts, dtype=torch.float32)).double(), single),
            }
        )
    return rows


def steps_by(ways: Ways) -> list[dict[str, Any]]:
    """For each way, and for a sum that is clipped after each part: the error of a first step of two optimizers.

    Gradients are clipped to half the length of the right gradient.
    """
    parts = parts_of_text()
    most_norm = gradient(_at_once(parts)).norm().item() / 2

    def step(model: nn.Module, rule: str) -> torch.Tensor:
        before = _vector(model.parameters())
        if rule == "SGD, clipped":
            nn.utils.clip_grad_norm_(model.parameters(), most_norm)
        made = torch.optim.AdamW if rule == "AdamW" else torch.optim.SGD
        made(model.parameters(), lr=1e-3).step()
        return _vector(model.parameters()) - before

    rules = ("SGD, clipped", "AdamW")
    wanted = {rule: step(_at_once(parts), rule) for rule in rules}
    rows = [
        {"the loss of a part": name}
        | {rule: error(step(_accumulated(way, parts), rule), wanted[rule]) for rule in rules}
        for name, way in ways.items()
    ]
    first, right = next(iter(ways.items()))
    clipped = step(_accumulated(right, parts, most_norm), "SGD, clipped")
    label = f"{first}, clipped after each part"
    return [*rows, {"the loss of a part": label, "SGD, clipped": error(clipped, wanted["SGD, clipped"]), "AdamW": None}]


def _trainer(device: torch.device | str) -> tuple[nn.Module, torch.optim.Optimizer, Part]:
    """A GPT, its optimizer, and the texts of one step."""
    small = (16, 48, 1) if course_size() == "test" else (64, 96, 2)
    length, width, layers = scaled(cpu=small, cuda=(512, 384, 6))
    torch.manual_seed(0)
    model = GPT(context=length, width=width, layers=layers).to(device)
    texts = next(text_batches(library_text(2**18), TEXTS, length, steps=1, device=device))
    return model, torch.optim.AdamW(model.parameters()), texts


def step_in_parts(
    parts: int, steps: int = 1, device: torch.device | str = "cpu", watch: Callable[[nn.Module], Any] | None = None
) -> Callable[[], int]:
    """A training step on the group in so many parts, or so many steps on a share of the parts each.

    Args:
        parts: into how many parts the texts are cut.
        steps: how many optimizer steps are taken, each after as many parts.
        device: where the model and its texts are.
        watch: is called with the model, before anything else is.

    Returns:
        a function that takes the step or steps, and returns how many tokens it trained on.
    """
    model, optimizer, (tokens, targets) = _trainer(device)
    if watch:
        watch(model)
    pairs = list(zip(tokens.chunk(parts), targets.chunk(parts), strict=True))
    in_a_step = parts // steps

    def run() -> int:
        for number, pair in enumerate(pairs, start=1):
            (loss_sum(model, *pair) / (tokens.numel() // steps)).backward()
            if number % in_a_step == 0:
                optimizer.step()
                optimizer.zero_grad()
        return tokens.numel()

    run()  # makes the optimizer's state
    return run


def memory_by_parts(device: torch.device | str = "cpu") -> list[dict[str, Any]]:
    """The peak of a step by the number of parts, with what is there before it, and what adds up to it."""
    model, _, (tokens, targets) = _trainer(device)
    weights = sum(weight.nbytes for weight in model.parameters())
    rows = []
    for count, steps in [*((count, 1) for count in PARTS), (PARTS[-1], PARTS[-1])]:
        small = tokens[: TEXTS // count], targets[: TEXTS // count]
        kept = kept_bytes(lambda pair=small: loss_sum(model, *pair), [*small, *model.parameters()])
        waiting: list[int] = []  # bytes of the gradients that are there when a forward pass ends

        def note(module: nn.Module, *_: Any, noted: list[int] = waiting) -> None:
            noted.append(sum(weight.grad.nbytes for weight in module.parameters() if weight.grad is not None))

        peak = peak_bytes(
            step_in_parts(count, steps, device, lambda model, hook=note: model.register_forward_hook(hook))
        )
        rows.append(
            {
                "32 texts": "at once" if count == 1 else f"{count} parts" if steps == 1 else f"{count} steps",
                "peak": None if peak is None else 3 * weights + peak,
                "kept by a part": kept,
                "gradients meanwhile": max(waiting),
                "weights and AdamW": 3 * weights,
            }
        )
    return rows


def time_by_parts(device: torch.device | str = "cpu") -> dict[str, Fresh]:
    """Cases for :func:`compare`: the same tokens, as one batch, in parts, and with a step for each part."""
    counts = {"8 parts of 4": (8, 1), "at once": (1, 1), "32 parts of 1": (32, 1), "32 steps on 1": (32, 32)}
    return {name: fresh(step_in_parts, *count, device) for name, count in counts.items()}


def fit_under(limit_bytes: int, counts: Sequence[int]) -> dict[str, bool]:
    """Whether a step on the GPU finds the memory that it needs in so many parts, if PyTorch may take so many bytes."""
    fitted = {}
    try:
        torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.mem_get_info()[1])
        for count in counts:
            torch.cuda.empty_cache()
            try:
                step_in_parts(count, device="cuda")()
                fitted[f"in {count} parts"] = True
            except torch.OutOfMemoryError:
                fitted[f"in {count} parts"] = False
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return fitted


def gpt2_in_parts(texts: int = 32, sizes: Sequence[int] = (32, 8, 1), few: int = 64) -> list[dict[str, Any]]:
    """The peak of a step of GPT-2 with 124M weights under bf16 autocast, in parts of each size: worked out.

    A group of two parts has the peak of a group of many: the second part meets the gradients of the first. The last row
    is the group at once with a vocabulary of only ``few`` tokens: what its activations lack is that of logits and loss.
    """
    layers = 2 if course_size() == "test" else 12

    def build_for(size: int, vocabulary: int) -> Callable[[], Any]:
        def build() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
            model = GPT(vocabulary=vocabulary, context=1024, width=768, layers=layers, heads=12)
            optimizer = torch.optim.AdamW(model.parameters())

            def step() -> None:
                for _ in range(min(2, texts // size)):
                    tokens = torch.zeros(size, 1024, dtype=torch.int64)
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = loss_sum(model, tokens, tokens)
                    (loss / (texts * 1024)).backward()
                    del loss
                optimizer.step()  # without zero_grad(): what the step leaves behind is counted as gradients

            for weight in model.parameters():  # a first step, for the optimizer's state
                weight.grad = torch.empty_like(weight)
            optimizer.step()
            optimizer.zero_grad()
            return model, optimizer, step

        return build

    rows = []
    for size, vocabulary in [*((size, 50304) for size in sizes), (texts, few)]:
        memory = worked_out(build_for(size, vocabulary), steps=1)
        at_peak = memory.at_peak
        label = f"{size} texts" if size > 1 else "1 text"
        rows.append(
            {
                "in parts of": label if vocabulary > few else f"{label}, vocabulary of {few}",
                "peak": memory.peak_bytes,
                "activations": at_peak["activations"],
                "gradients": at_peak["gradients"],
                "weights and AdamW": at_peak["weights"] + at_peak["optimizer"],
            }
        )
    return rows


class _ClosestPair(nn.Module):
    """Scores of each sample against all others of its batch: the first step of a contrastive loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.t()


def across_the_batch(parts: int = 4) -> list[dict[str, Any]]:
    """The error of accumulated gradients where a layer, random numbers, or the loss look across the batch.

    Float64, 32 samples.
    """

    def net(*layers: nn.Module) -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 32), *layers, nn.Linear(32, 8)).double()

    torch.manual_seed(1)
    samples, labels = torch.randn(32, 16).double(), torch.randint(8, (32,))
    cases: dict[str, tuple[nn.Module, bool]] = {
        "LayerNorm": (net(nn.LayerNorm(32), nn.ReLU()), False),
        "BatchNorm": (net(nn.BatchNorm1d(32), nn.ReLU()), False),
        "BatchNorm, in eval()": (net(nn.BatchNorm1d(32).eval(), nn.ReLU()), False),
        "two dropouts": (net(nn.Dropout(), nn.Linear(32, 32), nn.Dropout()), False),
        "a contrastive loss": (nn.Sequential(net(nn.ReLU()), _ClosestPair()), True),
    }
    rows = []
    for name, (model, contrastive) in cases.items():
        found = []
        for count in (1, parts):
            tried = copy.deepcopy(model)
            torch.manual_seed(2)
            for inputs, targets in zip(samples.chunk(count), labels.chunk(count), strict=True):
                answers = torch.arange(len(inputs)).roll(1) if contrastive else targets
                (functional.cross_entropy(tried(inputs), answers) / count).backward()
            found.append(gradient(tried))
        rows.append({"a model with": name, "error": error(found[1], found[0])})
    return rows


def bf16_by_parts(counts: Sequence[int] = (1, 4, 16, 64, 256)) -> list[dict[str, Any]]:
    """The error of a bfloat16 weight's gradient by the number of parts, added up in bfloat16 and in float32."""
    torch.manual_seed(0)
    drawn = (torch.randn(64, 64) / 8).bfloat16()
    samples = torch.randn(max(counts), 32, 64).bfloat16()
    labels = torch.randint(64, (max(counts), 32))

    def accumulated(count: int, dtype: torch.dtype, gradients: torch.dtype) -> torch.Tensor:
        weight = nn.Parameter(drawn.to(dtype))
        weight.grad_dtype = gradients
        for inputs, targets in zip(samples[:count], labels[:count], strict=True):
            logits = functional.linear(inputs.to(dtype), weight)
            if dtype == torch.bfloat16:
                logits = logits.float()
            (functional.cross_entropy(logits, targets) / count).backward()
        return weight.grad.double()

    rows = []
    for count in counts:
        wanted = accumulated(count, torch.float64, torch.float64)
        columns = {"added up in bfloat16": torch.bfloat16, "in float32": torch.float32}
        found = {name: error(accumulated(count, torch.bfloat16, dtype), wanted) for name, dtype in columns.items()}
        rows.append({"parts": str(count), **found})
    return rows
