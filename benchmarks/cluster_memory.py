"""Measure what real ranks hold in memory, and keep it beside what `simulate_cluster` says: the method's own error.

    python benchmarks/cluster_memory.py                # 2, 3 and 4 ranks on gloo, some minutes on 2 cores

The ranks run ``tests/rank_programs/step_memory.py`` under torchrun. Peaks are those of PyTorch's own trackers
(``MemTracker``, ``FSDPMemTracker``), parts those of the course's ``RankMemory``, on real tensors; of three steps the
one with the lowest peak counts. The result goes to ``course_utils/benchmark_records/cluster_memory/<machine>.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "rank_programs" / "step_memory.py"
SMALL = {"width": 128, "layers": 4, "heads": 4, "vocabulary": 256, "context": 128, "batch": 4, "length": 128}
LARGER = {"width": 256, "layers": 4, "heads": 4, "vocabulary": 4096, "context": 128, "batch": 2, "length": 128}
SETTINGS = (
    {**SMALL, "precision": "fp32", "checkpointing": False, "optimizer": "foreach", "gradient_as_bucket_view": True},
    {**LARGER, "precision": "fp32", "checkpointing": False, "optimizer": "loop", "gradient_as_bucket_view": True},
    {**LARGER, "precision": "bf16", "checkpointing": True, "optimizer": "foreach", "gradient_as_bucket_view": False},
)


def measured(points: list[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """The points with what real ranks hold, for :func:`course_utils.cluster.check_cluster`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "points.json"
        file.write_text(json.dumps(points))
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(PROGRAM), str(file)]
        subprocess.run([sys.executable, "-m", *command], check=True, timeout=1800, cwd=ROOT)
        found = json.loads(Path(f"{file}.out").read_text())
    result = []
    for point, of_ranks in zip(points, found, strict=True):
        fullest = max(of_ranks, key=lambda rank: rank["rank_memory"]["peak"])["rank_memory"]
        sizes = {f"{part}_bytes": size for part, size in fullest.items() if part != "peak"}
        peak = max(rank["torch"]["peak"] for rank in of_ranks)
        result.append({**point, "ranks": ranks, **sizes, "peak_bytes": peak})
    return result


def main() -> None:
    """Measure, simulate, and write the record."""
    sys.path.insert(0, str(ROOT))
    from course_utils.cluster import STRATEGIES, check_cluster
    from course_utils.store import package_root, write_json

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    ranks = parser.parse_args().ranks
    points = [{**setting, "strategy": strategy} for strategy in STRATEGIES for setting in SETTINGS]
    check = check_cluster([point for count in ranks for point in measured(points, count)])
    print(check)
    path = package_root() / "benchmark_records" / "cluster_memory" / f"{check.environment.machine}.json"
    write_json(path, check.to_record())
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
