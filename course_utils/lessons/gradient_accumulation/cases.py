"""What the lesson accumulates: the usual loop's gradient and losses, and the peak and time of a step in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from course_utils.materials.models import GPT
from course_utils.materials.step_memory import peak_bytes
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.machine import course_size, scaled

Part = tuple[torch.Tensor, torch.Tensor]  # int64 tokens and targets; -100 stands for a target that does not count
Loops = Mapping[str, Callable[[torch.Tensor, int, int], torch.Tensor]]  # of a part's summed loss, its tokens, and all
COUNTED = (512, 64, 16, 8)  # tokens that count in each part of 8 texts of 64 bytes
STEPS, BATCHES = ((0, 1, 2), 2) if course_size() == "test" else ((0, 75, 150), 8)
# Models whose steps are measured: what GPT takes, how many texts of how many tokens, and whether under bf16 autocast.
SMALL = {"context": scaled(cpu=64, cuda=512), "width": scaled(cpu=96, cuda=384), "layers": scaled(cpu=2, cuda=6)}
GPT2 = {"vocabulary": 50304, "context": 1024, "width": 768, "layers": 12, "heads": 12}
if course_size() == "test":
    SMALL, GPT2 = {"context": 16, "width": 48, "layers": 1}, {"context": 16, "width": 48, "layers": 1}
TEXTS, PARTS = 32, (1, 2, 4) if course_size() == "test" else (1, 2, 4, 8, 16, 32)
UNITS = dict.fromkeys(("peak", "gradients meanwhile", "weights and AdamW"), "bytes")


def parts_of_text(seed: int, mild: bool = False) -> list[Part]:
    """Four parts of 8 texts, of which the last tokens count: as many as COUNTED has, or 1 to 64 of each text."""
    parts, random = [], torch.Generator().manual_seed(seed)
    for counted, (tokens, targets) in zip(COUNTED, text_batches(library_text(2**18), 8, 64, 4, seed), strict=True):
        count = torch.randint(1, 65, (8, 1), generator=random) if mild else counted // 8
        parts.append((tokens, targets.masked_fill(torch.arange(64) < 64 - count, -100)))
    return parts


def loss_sum(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten(), reduction="sum")


def small_gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(context=64, width=64, layers=1, heads=2)


def _accumulate(loop: Callable[..., torch.Tensor], model: nn.Module, parts: Sequence[Part]) -> torch.Tensor:
    model.zero_grad()
    own = [int((targets != -100).sum()) for _, targets in parts]
    for tokens, part in zip(own, parts, strict=True):
        loop(loss_sum(model, *part), tokens, sum(own)).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def by_step(loops: Loops) -> list[dict[str, Any]]:
    """Rows for a table: each loop's loss on other texts as it trains, and how far the second one's gradient is off.

    Gradients are those of the first loop's model: medians over batches, relative to the first loop's gradient.
    """
    models, ((first, right), (_, other)), rows = {name: small_gpt() for name in loops}, loops.items(), []
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-3) for name, model in models.items()}
    held_out = list(text_batches(library_text(2**18), 32, 64, BATCHES, seed=-1))
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            rows.append({"steps": str(step)})
            kinds = ([parts_of_text(10**6 + batch, mild) for batch in range(BATCHES)] for mild in (False, True))
            each = ([[_accumulate(it, models[first], b) for b in kind] for it in (right, other)] for kind in kinds)
            (wanted, found), (mild, found_mild) = (map(torch.stack, pair) for pair in each)
            pairs = {"gradient off by": (found, wanted), "another right batch": (wanted.roll(1, 0), wanted)}
            for name, (it, base) in (pairs | {"mild": (found_mild, mild)}).items():
                off, norm = ((vectors.norm(dim=1) / base.norm(dim=1)) for vectors in (it - base, it))
                rows[-1] |= {name: off.quantile(0.5).item(), f"{name}, norm": (norm - 1).abs().quantile(0.5).item()}
            with torch.no_grad():
                for name, model in models.items():
                    losses = [loss_sum(model, *texts).item() / texts[0].numel() for texts in held_out]
                    rows[-1][f"loss, {name}"] = fmean(losses)
        for name, model in models.items():
            _accumulate(loops[name], model, parts_of_text(step))
            optimizers[name].step()
    return rows


def step(parts: int, device: str, config: Mapping[str, int] = SMALL, steps: int = 1) -> Callable[[], int]:
    """A step of AdamW on 32 texts in so many parts, or so many steps on a share of them each; it returns its tokens."""
    torch.manual_seed(0)
    with torch.device(device):
        model = GPT(**config)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = torch.randint(config.get("vocabulary", 256), (2, TEXTS, config["context"]), device=device)
    pairs = list(zip(tokens.chunk(parts), targets.chunk(parts), strict=True))

    def run() -> int:
        for number, part in enumerate(pairs, start=1):
            with torch.autocast(device, torch.bfloat16, enabled=config is GPT2):
                loss = loss_sum(model, *part) / (tokens.numel() // steps)
            loss.backward()
            if number % (parts // steps) == 0:
                optimizer.step()
                optimizer.zero_grad()
        return tokens.numel()

    run()  # makes the optimizer's state
    return run


def peaks(counts: Sequence[int], device: str, config: Mapping[str, int] = SMALL) -> list[dict[str, Any]]:
    """Rows for a table: what the peak of a step in parts consists of; last, that of a step for each part."""
    rows = []
    with torch.device("meta"):
        weights = sum(weight.nbytes for weight in GPT(**config).parameters())
    for parts, steps in [*((count, 1) for count in counts), (counts[-1], counts[-1])]:
        peak = 3 * weights + (peak_bytes(step(parts, device, config, steps)) or 0)
        waits = 0 if parts == steps else weights
        label = "at once" if parts == 1 else f"{parts} parts" if steps == 1 else f"{parts} steps"
        rows.append({"32 texts": label, "peak": peak, "gradients meanwhile": waits, "weights and AdamW": 3 * weights})
    return rows
