"""Whether a step's backward pass reaches into earlier calls: its graph is followed in calls that nobody times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from own_program.diagnosis.bench import Bench
from own_program.diagnosis.phases import wrapped

_MOST_NODES = 300_000


class Graph:
    """What the backward passes of a call go through: nodes, some of them of earlier calls."""

    nodes = earlier = 0


def graphs_of(bench: Bench, calls: int) -> list[Graph]:
    """Follow the graphs of so many calls, one after the other; none where that cannot be done."""
    bench.arrange()
    try:
        return [_followed(bench.work.call) for _ in range(calls)]
    except Exception:  # what cannot be seen is not said
        return []
    finally:
        bench.arrange()


def _followed(call: Callable[[], Any]) -> Graph:
    graph, since = Graph(), torch.ones((), requires_grad=True).exp().grad_fn._sequence_nr()

    def walk(backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nodes = _nodes(tree_leaves((args[:1], kwargs.get("tensors"))))
        graph.nodes += len(nodes)
        graph.earlier += sum(node._sequence_nr() < since for node in nodes)
        return backward(*args, **kwargs)

    with wrapped(torch.autograd, "backward", walk):
        call()
    return graph


def _nodes(roots: Iterable[Any]) -> set[Any]:
    queue = [root.grad_fn for root in roots if isinstance(root, torch.Tensor)]
    nodes: set[Any] = set()
    while queue and len(nodes) < _MOST_NODES:
        node = queue.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            queue += [following for following, _ in node.next_functions]
    return nodes
