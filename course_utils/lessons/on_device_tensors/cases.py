"""What PyTorch does with lines that mix devices; the opening's two lines, to be timed on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils import scaled
from course_utils.results.table import Table

LINES = ("gpu + cpu", "gpu * torch.tensor(2.0)", "gpu * torch.ones(1)", 'torch.tensor([2.0], device="cuda")')
LINES += ("gpu[index]", "gpu.gather(0, index)", "gpu[:2] = cpu[:2]", "gpu[index] = cpu[:2]")
# Python's way to these operations asks for a real GPU, so a fake one is asked by the name of the operation itself.
OPERATIONS = {
    "gpu[index]": "torch.ops.aten.index(gpu, [index])",
    "gpu[:2] = cpu[:2]": "torch.ops.aten.copy_(torch.ops.aten.slice(gpu, 0, 0, 2), cpu[:2])",
    "gpu[index] = cpu[:2]": "torch.ops.aten.index_put_(gpu, [index], cpu[:2])",
}


def outcome(line: str) -> str:
    """What a line does with tensors of the CPU and of a GPU: it raises, copies and waits, or is free."""
    if torch.cuda.is_available():
        return "raises" if _raises(line, "device") else "waits" if waits(line) else "free"
    with FakeTensorMode(), Copies() as seen:  # the model of a GPU that ``torch.compile`` reasons with
        return "raises" if _raises(OPERATIONS.get(line, line), "device") else "waits" if seen.copy else "free"


def waits(line: str) -> bool:
    """Whether Python waits for the GPU in a line, as far as the mode knows that makes an error of a wait."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        return _raises(line, "synchroniz")
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Copies(TorchDispatchMode):
    """Notes whether an operation takes data from one device to another: all but a number in arithmetic or a fill."""

    copy = False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        met = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        joins = (torch.Tag.pointwise in op.tags and "where" not in str(op)) or "fill" in str(op)
        free = joins and all(x.dim() == 0 for x in met if x.device.type == "cpu")
        self.copy |= len({x.device.type for x in met}) > 1 and not free
        return result


def _raises(line: str, reason: str) -> bool:
    gpu = torch.ones(4, device="cuda:0")
    names = {"torch": torch, "gpu": gpu, "loss": gpu.sum(), "m": gpu.view(2, 2)}
    names |= {"there": torch.arange(2, device="cuda:0"), "cpu": torch.ones(4), "index": torch.tensor([0, 3])}
    try:
        exec(line, names)
    except RuntimeError as error:
        if reason not in str(error).casefold():
            raise
        return True
    return False


def point(table: Table) -> str:
    """What the table of lines shows."""
    outcomes = [row["outcome"] for row in table]
    waiting, raising, free = (outcomes.count(what) for what in ("waits", "raises", "free"))
    return f"Python waits in {waiting} of {len(table.rows)} lines; {raising} raise an error, {free} is free."


def two_lines(products: int) -> dict[str, Callable[[], torch.Tensor]]:
    """The opening's lines for 4 KiB: on an idle GPU (no product), or behind queued work, a large matrix product."""
    n, width = 1024, scaled(cpu=64, cuda=4096)
    weight = torch.randn(width, width, device="cuda") / width**0.5

    def behind(line: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: ([weight @ weight for _ in range(products)], line())[-1]

    return {
        'torch.zeros(n).to("cuda")': behind(lambda: torch.zeros(n).to("cuda")),
        'torch.zeros(n, device="cuda")': behind(lambda: torch.zeros(n, device="cuda")),
    }
