"""The training steps of the lesson, by recipe: which precision, a scaler or none, weights in 32 bits or in 16."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.materials.models import GPT, MLP, LSTMLanguageModel
from course_utils.materials.text import library_text, text_batches
from course_utils.measure.fresh import fresh
from course_utils.measure.machine import course_size
from course_utils.memory.trace import trace_memory
from course_utils.records.kinds.comparison import Comparison

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "fp32": {},
    "TF32": {"tf32": True},
    "bf16": {"autocast": torch.bfloat16},
    "fp16 + scaler": {"autocast": torch.float16, "scaler": True},
    "fp16, no scaler": {"autocast": torch.float16},
    "bf16 weights": {"weights": torch.bfloat16},
    "bf16 weights, fp32 master": {"weights": torch.bfloat16, "master": True},
}


def fast_recipe(device: torch.device) -> str:
    """The 16 bits that this device has in hardware: a GPU before compute capability 8.0 only emulates bf16."""
    native = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if native else "fp16 + scaler"


def baselines(device: torch.device) -> tuple[str, ...]:
    """What 16 bits can be held against: fp32, and TF32 where the device has it."""
    return ("fp32", "TF32") if device.type == "cuda" and torch.cuda.is_tf32_supported() else ("fp32",)


def set_precision(recipe: str) -> None:
    """Allow TF32 in products, or not: a switch that a comparison keeps apart for each case."""
    torch.set_float32_matmul_precision("high" if "tf32" in RECIPES[recipe] else "highest")


def trainer(
    recipe: str, make_model: Callable[[], nn.Module], device: torch.device, share: float = 1.0
) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    """Build a model, its AdamW, and its training step in a recipe.

    Args:
        recipe: a key of :data:`RECIPES`.
        make_model: called after seeding, so that all recipes begin with the same weights.
        device: where to train.
        share: what part of a larger step this batch stands for. The loss is multiplied by it, and AdamW's eps, too:
            without rounding, the steps would be the same for every share.
    """
    set_precision(recipe)
    how = RECIPES[recipe]
    torch.manual_seed(0)
    model = make_model().to(device)
    # Copies that the optimizer updates in fp32; after each step the weights are rounded from them.
    master = [weight.detach().clone() for weight in model.parameters()] if "master" in how else []
    model.to(how.get("weights", torch.float32))
    # The default on CUDA, set so that a CPU does the same.
    optimizer = torch.optim.AdamW(master or model.parameters(), lr=1e-3, eps=1e-8 * share, foreach=True)
    scaler = torch.amp.GradScaler(device.type, enabled="scaler" in how)  # one that is not enabled does nothing
    dtype = how.get("autocast")

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            # In fp32, as autocast does it by itself: a loss in 16 bits would move in jumps.
            loss = F.cross_entropy(model(inputs).flatten(0, -2).float(), targets.flatten())
        scaler.scale(loss * share).backward()
        for copy, weight in zip(master, model.parameters(), strict=False):  # no copies: nothing to do
            copy.grad = weight.grad.float()
        scaler.step(optimizer)
        scaler.update()
        for copy, weight in zip(master, model.parameters(), strict=False):
            weight.data.copy_(copy)
        model.zero_grad()
        return loss.detach()

    return model, optimizer, step


def gpt(width: int, layers: int, length: int, vocabulary: int = 256) -> Callable[[], GPT]:
    """A recipe's model: a small GPT, of bytes unless said otherwise, with heads of 32."""
    return lambda: GPT(vocabulary=vocabulary, context=length, width=width, layers=layers, heads=width // 32)


def trained(
    recipe: str,
    tokens: int,
    width: int,
    layers: int,
    batch: int,
    length: int,
    steps: int,
    *,
    device: torch.device,
    vocabulary: int = 256,
) -> tuple[nn.Module, list[float]]:
    """A GPT after its training, and its losses as means of ten steps.

    ``tokens`` is how many the loss is averaged over: each batch stands for its share of them. In the course's own
    tests a training takes ten steps, whatever ``steps`` says.
    """
    model, _, step = trainer(recipe, gpt(width, layers, length, vocabulary), device, batch * length / tokens)
    steps = 10 if course_size() == "test" else steps
    batches = text_batches(library_text(2**20), batch, length, steps, device=device)
    return model, torch.stack([step(*each) for each in batches]).view(-1, 10).mean(1).tolist()


def outcome(runs: Mapping[str, tuple[nn.Module, Sequence[float]]]) -> list[dict[str, Any]]:
    """How far each run ends above the first, by the mean of twenty steps, and which norms' weights are still 1."""
    rows = []
    _, first = next(iter(runs.values()))
    for name, (model, losses) in runs.items():
        gap = (sum(losses[-2:]) - sum(first[-2:])) / len(losses[-2:])
        norms = torch.cat([weight for label, weight in model.named_parameters() if label.endswith("norm.weight")])
        still = (norms == 1).float().mean()
        rows.append({"recipe": name, "gap": gap, "still 1": still})
    return rows


def step_of(recipe: str, make_model: Callable[[], nn.Module], batch: Any, device: torch.device) -> Callable[[], Any]:
    """A whole training step on one batch, as a function without arguments."""
    *_, step = trainer(recipe, make_model, device)
    return lambda: step(*batch)


def gpt_step(
    recipe: str, width: int, layers: int, batch: int, length: int, *, device: torch.device
) -> Callable[[], Any]:
    """A GPT's training step on random pieces of text; in the course's own tests on at most four of them."""
    batch = min(batch, 4) if course_size() == "test" else batch
    pieces = next(text_batches(library_text(2**20), batch, length, steps=1, device=device))
    return step_of(recipe, gpt(width, layers, length), pieces, device)


def small_workloads(device: torch.device, entries: int, width: int) -> dict[str, tuple[Callable[[], nn.Module], Any]]:
    """Models that large products do not bound, each with a batch: an MLP, a GRU, a table of so many entries."""

    def some(below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, device=device)

    return {
        "small MLP": (lambda: MLP((64, 128, 10)), (torch.randn(32, 64, device=device), some(10, 32))),
        "small GRU": (lambda: LSTMLanguageModel(width=64, cell="gru"), (some(256, 8, 32), some(256, 8, 32))),
        "embedding table": (
            lambda: nn.Sequential(nn.EmbeddingBag(entries, width), nn.Linear(width, 10)),
            (some(entries, 256, 20), some(10, 256)),
        ),
    }


def step_flops(width: int, layers: int, batch: int, length: int) -> int:
    """Operations of a GPT step's products: two for each token and weight forward, four backward; causal attention."""
    products = layers * (12 * width + length) * width + 256 * width  # by token: blocks, attention, output layer
    return 6 * batch * length * products


def product(recipe: str, n: int, *, device: torch.device) -> Callable[[], torch.Tensor]:
    """One product of two square matrices that have the recipe's dtype already."""
    set_precision(recipe)
    torch.manual_seed(0)
    a, b = torch.randn(2, n, n, device=device).to(RECIPES[recipe].get("autocast", torch.float32))
    return lambda: a @ b


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results agree as far as 16 bits allow."""
    return bool((other.float() - one.float()).norm() <= 0.02 * one.float().norm())


def ratios(comparison: Comparison, baselines: Sequence[str], fast: str) -> dict[str, float]:
    """How many times as fast a case is from each baseline: one and the same run, divided by several."""
    return {f"from {each}": comparison[each].median_s / comparison[fast].median_s for each in baselines}


def memory_parts(recipe: str, batches: Sequence[int], *sizes: int) -> list[dict[str, Any]]:
    """Trace a GPT's training step at several batch sizes: bytes by part, the peak of all together, and its phase.

    ``sizes`` are width, layers and length. Of the casts that autograd keeps, those of the weights are the part that
    does not grow with the batch: three times the bytes of batch 2, less twice those of batch 3.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def second_step(batch: int) -> Callable[[], Any]:
        step = gpt_step(recipe, *sizes[:2], batch, sizes[2], device=device)
        step()  # AdamW makes its state in the first one
        return step

    traces = {
        batch: trace_memory(fresh(second_step, batch), recipe, device=device, verify=False, overhead=False)
        for batch in (2, 3, *batches)
    }
    kinds = {batch: {kind: max(line) for kind, line in trace.by_kind().items()} for batch, trace in traces.items()}
    cast = {
        batch: sum(
            block.size_bytes for block in traces[batch].blocks if (block.kind, block.op) == ("activations", "_to_copy")
        )
        for batch in (2, 3)
    }
    casts = 3 * cast[2] - 2 * cast[3]
    rows = []
    for batch in batches:
        trace, most = traces[batch], kinds[batch]
        at_peak = [phase.name for phase in trace.phases if phase.first <= trace.peak_moment <= phase.last]
        kept = {"activations": most["activations"] - casts, "casts": casts}
        kept |= {"weights": most["weights"], "gradients": most["gradients"], "optimizer": most["optimizer state"]}
        when = at_peak[0] if at_peak else ""
        rows.append({"recipe": f"{recipe}, batch {batch}", "peak": trace.peak_bytes, "peak in": when, **kept})
    return rows


def gradients(
    model: nn.Module, batch: Any, dtype: torch.dtype | None, factor: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of a loss times a factor: of all weights, and of the model's output, where the way back begins."""
    inputs, targets = batch
    model.zero_grad()
    with torch.autocast(inputs.device.type, dtype=dtype, enabled=dtype is not None):
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
    logits.retain_grad()
    (factor * loss).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]), logits.grad


def lost(model: nn.Module, batch: Any, tokens: int) -> dict[str, torch.Tensor]:
    """What 16 bits lose of the gradients of a batch that stands for its share of a step of so many tokens.

    Returns:
        The share of the output's gradients that fp16 alone makes zero, and for each number format the error of all
        weights' gradients, relative to those in fp32.
    """
    if course_size() == "test":
        batch = [each[:2] for each in batch]
    share = batch[0].numel() / tokens
    weights, output = gradients(model, batch, None, share)
    result = {}
    for name, dtype, scale in (
        ("fp16", torch.float16, 1),
        ("bf16", torch.bfloat16, 1),
        ("fp16, scaled", torch.float16, 2**16),
    ):
        mine, first = gradients(model, batch, dtype, share * scale)
        if name == "fp16":
            result["zeros, fp16"] = ((first == 0) & (output != 0)).sum() / (output != 0).sum()
        result[f"error, {name}"] = (mine / scale - weights).norm() / weights.norm()
    return result
