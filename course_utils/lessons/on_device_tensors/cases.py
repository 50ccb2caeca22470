"""What PyTorch does with lines that mix devices."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils.records.kinds.table import Table

LINES = ("gpu + cpu", "gpu * torch.tensor(2.0)", "gpu * torch.ones(1)", 'torch.tensor([2.0], device="cuda")')
LINES += ("gpu[index]", "gpu.gather(0, index)", "gpu[:2] = cpu[:2]", "gpu[index] = cpu[:2]")
# Python's way to these operations asks for a real GPU, so a fake one is asked by the name of the operation itself.
_TO = "torch.ops.aten._to_copy({}, device='cuda:0')"
OPERATIONS = {
    "gpu[index]": "torch.ops.aten.index(gpu, [index])",
    "gpu[:2] = cpu[:2]": "torch.ops.aten.copy_(torch.ops.aten.slice(gpu, 0, 0, 2), cpu[:2])",
    "gpu[index] = cpu[:2]": "torch.ops.aten.index_put_(gpu, [index], cpu[:2])",
    '(rows < lengths).to("cuda")': _TO.format("rows < lengths"),
    'places < lengths.to("cuda")': "places < " + _TO.format("lengths"),
    'places < lengths.pin_memory().to("cuda")': "places < " + _TO.format("lengths.pin_memory()"),
}
# Four ways to a mask, of lengths that the loader returns in main memory.
MASKS = ('(rows < lengths).to("cuda")', 'places < lengths.to("cuda")')
MASKS += ('places < lengths.pin_memory().to("cuda")', "places < send(lengths)")


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

    def __init__(self) -> None:
        super().__init__()
        self.pinned: list[torch.Tensor] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_pin_memory" in str(op):  # the model of a GPU cannot pin
            self.pinned.append(args[0].clone())
            return self.pinned[-1]
        result = op(*args, **(kwargs or {}))
        met = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
        joins = (torch.Tag.pointwise in op.tags and "where" not in str(op)) or "fill" in str(op)
        free = joins and all(x.dim() == 0 for x in met if x.device.type == "cpu")
        free |= bool((kwargs or {}).get("non_blocking")) and any(args[0] is each for each in self.pinned)
        self.copy |= len({x.device.type for x in met}) > 1 and not free
        return result


def _raises(line: str, reason: str) -> bool:
    gpu = torch.ones(4, device="cuda:0")
    names = {"torch": torch, "gpu": gpu, "loss": gpu.sum(), "m": gpu.view(2, 2), "send": send}
    names |= {"there": torch.arange(2, device="cuda:0"), "cpu": torch.ones(4), "index": torch.tensor([0, 3])}
    names |= {"rows": torch.arange(6), "lengths": torch.tensor([[2], [6]]), "places": torch.arange(6, device="cuda:0")}
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


def masks_point(table: Table) -> str:
    """What the table of masks shows."""
    waiting = [row["line"] for row in table if row["outcome"] == "waits"]
    return f"Python waits in {len(waiting)} of {len(table.rows)} ways, wherever the mask is made."


def send(tensor: torch.Tensor) -> torch.Tensor:
    """A copy for which Python does not wait."""
    return torch.ops.aten._to_copy(tensor.pin_memory(), device=torch.device("cuda:0"), non_blocking=True)
