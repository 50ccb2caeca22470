"""What ranks send each other: a dispatch mode that counts every collective operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Collectives(TorchDispatchMode):
    """Counts calls, and bytes of the whole tensor that each collective is about, while it is entered.

    Attributes:
        traffic: by kind of collective, such as ``allgather``: ``calls``, ``bytes``, and ``of them weights``.
    """

    def __init__(self, weights: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.traffic: dict[str, dict[str, int]] = {}
        self._weights = {weight.data_ptr() for weight in weights}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.namespace == "c10d":
            sides = [[leaf for leaf in tree_leaves(side) if isinstance(leaf, torch.Tensor)] for side in args[:2]]
            whole = max(sides, key=lambda tensors: sum(tensor.nbytes for tensor in tensors))
            name = operation.__name__.split(".")[0].strip("_").removesuffix("_base")
            kind = self.traffic.setdefault(name, {"calls": 0, "bytes": 0, "of them weights": 0})
            kind["calls"] += 1
            kind["bytes"] += sum(tensor.nbytes for tensor in whole)
            kind["of them weights"] += sum(tensor.nbytes for tensor in whole if tensor.data_ptr() in self._weights)
        return operation(*args, **(kwargs or {}))
