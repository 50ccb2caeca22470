"""Measure what real ranks hold in memory, and keep it beside what `simulate_cluster` says: the method's own error.

    python benchmarks/cluster_memory.py                # 2, 3 and 4 ranks on gloo, some minutes on 2 cores
    python benchmarks/cluster_memory.py --plans        # simulates only: the plans of `stored_plans`, some minutes

The ranks run ``tests/rank_programs/step_memory.py`` under torchrun. Peaks are those of PyTorch's own trackers
(``MemTracker``, ``FSDPMemTracker``), parts those of the course's ``RankMemory``, on real tensors; of three steps the
one with the lowest peak counts. The result goes to ``course_utils/ranks/plans/cluster_memory/<machine>.json``,
those of ``--plans`` to ``course_utils/ranks/plans/cluster_plans/``.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from course_utils.ranks.cluster import STRATEGIES, check_cluster, simulate_cluster
from course_utils.ranks.launch import run_ranks
from course_utils.records.kinds.cluster_plan import GPTShape
from course_utils.records.store import package_root, write_json

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "rank_programs" / "step_memory.py"
SMALL = {"width": 128, "layers": 4, "heads": 4, "vocabulary": 256, "context": 128, "batch": 4, "length": 128}
LARGER = {"width": 256, "layers": 4, "heads": 4, "vocabulary": 4096, "context": 128, "batch": 2, "length": 128}
SETTINGS = (
    {**SMALL, "precision": "fp32", "checkpointing": False, "optimizer": "foreach", "gradient_as_bucket_view": True},
    {**LARGER, "precision": "fp32", "checkpointing": False, "optimizer": "loop", "gradient_as_bucket_view": True},
    {**LARGER, "precision": "bf16", "checkpointing": True, "optimizer": "foreach", "gradient_as_bucket_view": False},
)
# GPTs of 6.6 and 1.3 billion parameters; what is shown first is the first.
PLANNED = (
    GPTShape(width=4096, layers=32, heads=32, vocabulary=32000, context=2048),
    GPTShape(width=2048, layers=24, heads=16, vocabulary=50257, context=2048),
)
# Llamas of 1.5 (Llama 3.2 1B, with a head of its own), 8.0 and 70.6 billion parameters (Llama 3.1).
PLANNED_LLAMAS = (
    GPTShape(width=2048, layers=16, heads=32, vocabulary=128256, context=2048, kv_heads=8, hidden=8192),
    GPTShape(width=4096, layers=32, heads=32, vocabulary=128256, context=2048, kv_heads=8, hidden=14336),
    GPTShape(width=8192, layers=80, heads=64, vocabulary=128256, context=2048, kv_heads=8, hidden=28672),
)
PLANNED_RANKS = (8, 64, 1024)
# ZeRO-1 is simulated block by block, which takes long for the larger ones.
LLAMA_STRATEGIES = ("ddp", "fsdp_no_reshard", "fsdp", "hsdp")
# torchtitan#165: a Llama 7B on 8 H100s, 8 sequences of 2,048 tokens on each.
PUBLISHED = GPTShape(width=4096, layers=32, heads=32, vocabulary=32000, context=2048, hidden=11008)


def measured(points: list[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """The points with what real ranks hold, for :func:`course_utils.ranks.cluster.check_cluster`."""
    args = [json.dumps(points)]
    run = run_ranks(PROGRAM, ranks=ranks, args=args, backend="gloo", threads_per_rank=1, timeout_s=1800)
    result = []
    for number, point in enumerate(points):
        of_ranks = [values["measured"][number] for values in run]
        fullest = max((rank["rank_memory"] for rank in of_ranks), key=lambda sizes: sizes["peak"])
        sizes = {f"{part}_bytes": size for part, size in fullest.items() if part != "peak"}
        peak = max(rank["torch"]["peak"] for rank in of_ranks)
        result.append({**point, "ranks": ranks, **sizes, "peak_bytes": peak})
    return result


def plans() -> dict[str, dict[str, Any]]:
    """The plans of `stored_plans`, by kind, as records. What all of a kind have in common is in it once."""
    kinds: dict[str, list[Any]] = {"gpt": [], "llama": [], "published": []}
    for checkpointing in (False, True):
        common = {"checkpointing": checkpointing}
        kinds["published"].append(simulate_cluster(PUBLISHED, ranks=8, strategies="fsdp", batch=8, **common))
    for kind, shapes, options in (
        ("gpt", PLANNED, {}),
        ("llama", PLANNED_LLAMAS, {"strategies": LLAMA_STRATEGIES}),
    ):
        for model, checkpointing in itertools.product(shapes, (False, True)):
            plan = simulate_cluster(model, ranks=PLANNED_RANKS, checkpointing=checkpointing, **options)
            print(plan, flush=True)
            kinds[kind].append(plan)
    records = {kind: [plan.to_record() for plan in of_kind] for kind, of_kind in kinds.items()}
    return {
        kind: {
            "environment": of_kind[0]["environment"],
            "plans": [{key: plan[key] for key in ("parameters", "points")} for plan in of_kind],
        }
        for kind, of_kind in records.items()
    }


def main() -> None:
    """Measure, simulate, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--plans", action="store_true", help="compute the plans ahead, and measure nothing")
    arguments = parser.parse_args()
    ranks, records = arguments.ranks, package_root() / "ranks" / "plans"
    if arguments.plans:
        for kind, record in plans().items():
            path = records / "cluster_plans" / f"{kind}.json"
            write_json(path, record)
            print(path.relative_to(ROOT))
        return
    points = [{**setting, "strategy": strategy, "group": 2} for strategy in STRATEGIES for setting in SETTINGS]
    points += [{**setting, "strategy": "fsdp", "kv_heads": 2, "hidden": 352} for setting in SETTINGS]
    whole = {count: [p for p in points if p["strategy"] != "hsdp" or count % p["group"] == 0] for count in ranks}
    check = check_cluster([point for count in ranks for point in measured(whole[count], count)])
    print(check)
    path = records / "cluster_memory" / f"{check.environment.machine}.json"
    write_json(path, check.to_record())
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
