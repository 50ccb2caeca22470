"""What ranks send each other: a dispatch mode that notes every collective operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Collectives(TorchDispatchMode):
    """Notes calls, dtypes and bytes of the whole tensor that each collective is about, while it is entered.

    Attributes:
        calls: of each call: name, dtype, bytes, and how many of these bytes are weights.
    """

    def __init__(self, weights: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, int, int]] = []
        self._weights = {weight.data_ptr() for weight in weights}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.namespace == "c10d":
            sides = [[leaf for leaf in tree_leaves(side) if isinstance(leaf, torch.Tensor)] for side in args[:2]]
            whole = max(sides, key=lambda tensors: sum(tensor.nbytes for tensor in tensors))
            name = operation.__name__.split(".")[0].strip("_").removesuffix("_base")
            dtype = str(whole[0].dtype).removeprefix("torch.") if whole else ""
            of_weights = sum(tensor.nbytes for tensor in whole if tensor.data_ptr() in self._weights)
            self.calls.append((name, dtype, sum(tensor.nbytes for tensor in whole), of_weights))
        return operation(*args, **(kwargs or {}))

    def of(self, name: str) -> dict[str, Any]:
        """Number, bytes and dtypes of one kind of collective, such as ``allgather``."""
        calls = [call for call in self.calls if call[0] == name]
        dtypes = sorted({dtype for _, dtype, *_ in calls})
        return {"calls": len(calls), "bytes": sum(size for _, _, size, _ in calls), "dtype": " ".join(dtypes)}

    def traffic(self) -> dict[str, dict[str, int]]:
        """Calls, bytes and bytes of weights, by kind of collective."""
        kinds: dict[str, dict[str, int]] = {}
        for name, _, size, of_weights in self.calls:
            kind = kinds.setdefault(name, {"calls": 0, "bytes": 0, "of them weights": 0})
            kind["calls"] += 1
            kind["bytes"] += size
            kind["of them weights"] += of_weights
        return kinds
