"""What the lesson's tables say, row by row, of what the ranks reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from course_utils.records.kinds.rank_results import RankResults

KINDS = ("weights", "gradients", "optimizer state")
PARTS = ("weights", "gradients", "optimizer", "gathered", "activations")
Rows = list[dict[str, Any]]
_SIZES = {
    "small": {"width": 128, "length": 64, "batches": [2, 8], "timed": ["DDP", "FSDP"]},
    "large": {
        "width": 768,
        "length": 256,
        "batches": [2, 32],
        "timed": ["DDP", "ZeRO-1", "FSDP no reshard", "FSDP", "FSDP root only"],
    },
}


def sizes(name: str) -> dict[str, Any]:
    """Shape and batches: small for ranks on a CPU, large for a GPU each."""
    return _SIZES[name]


def arguments(sizes: Mapping[str, Any]) -> list[str | int]:
    """What ``scripts/fsdp_train.py`` is told."""
    shape = ["--width", sizes["width"], "--length", sizes["length"], "--batch", *sizes["batches"]]
    return [*shape, "--timed", *sizes["timed"], "--budget", 4]


def kept(run: RankResults, bytes_each: Mapping[str, tuple[float, ...]]) -> Rows:
    """By strategy, the bytes of the rank that keeps most, beside what the formula says."""
    rows = []
    for strategy, each in bytes_each.items():
        most = max((of_rank["memory"][strategy] for of_rank in run), key=lambda kinds: sum(kinds.values()))
        total, formula = sum(most[kind] for kind in KINDS), round(run[0]["parameters"] * sum(each))
        row = {"strategy": strategy, **{kind: most[kind] for kind in KINDS}}
        rows.append(row | {"in all": total, "formula": formula, "off by": total / formula - 1})
    return rows


def peaks(run: RankResults, strategies: Mapping[str, Any]) -> Rows:
    """By strategy, what is held when a rank holds most."""
    rows = []
    for strategy in strategies:
        step = max((of_rank["steps"][strategy] for of_rank in run), key=lambda step: step["peak_bytes"])
        row = {"strategy": strategy, "peak": step["peak_bytes"], "during": step["phase"]}
        rows.append(row | {part: step["at peak"][part] for part in PARTS})
    return rows


def traffic(run: RankResults) -> Rows:
    """Each kind of collective in one step."""
    rows = []
    weights = 4 * run[0]["parameters"]
    for strategy, collectives in run[0]["traffic"].items():
        for collective, found in collectives.items():
            row = {
                "strategy: collective": f"{strategy}: {collective}",
                "calls": found["calls"],
                "bytes": found["bytes"],
            }
            row |= {"of the weights": found["bytes"] / weights}
            rows.append(row | {"are weights themselves": found["of them weights"] / found["bytes"]})
    return rows


def fits(run: RankResults, batches: list[int]) -> Rows:
    """Times of a step under FSDP, relative to DDP's, by batch."""
    rows = []
    for batch in batches:
        case = run.comparison(f"step, batch {batch}")["FSDP"]
        bounds = (case.interval.low, case.interval.high) if case.interval.bounded else (None, None)
        row = {"batch on a rank": batch, "FSDP takes": case.ratio, "at least": bounds[0], "at most": bounds[1]}
        rows.append(row | {"verdict": case.verdict.name})
    return rows


def order(details: RankResults) -> Rows:
    """Whether the optimizer reaches the model, built before or after wrapping."""
    rows = []
    for case, found in details[0]["order"].items():
        row = {"case": case, "loss moves": len(set(found["losses"])) > 1}
        row["weights it steps"] = f"{found['weights of the model that it steps']} of {found['weights of the model']}"
        rows.append(row | {"old weights": found["bytes of other weights"], "last loss": found["losses"][-1]})
    return rows


def precision(details: RankResults) -> Rows:
    """What is gathered and added up in which dtype, by policy."""
    rows = []
    for policy, found in details[0]["precision"].items():
        row = {
            "policy": policy,
            "kept in": found["weights at rest"],
            "computes in": found["weights in the forward pass"],
        }
        row |= {"gathered": found["all-gather"]["bytes"], "gradients sent": found["reduce-scatter"]["bytes"]}
        rows.append(row | {"gradients sent in": found["reduce-scatter"]["dtype"]})
    return rows


def clipping(details: RankResults) -> Rows:
    """The norm of the gradients, in three ways, on each rank."""
    rows = []
    alone = details[0]["clipping"]["one process"]
    for way in ("one process", "FSDP", "by hand on this rank's shards"):
        norms = [of_rank["clipping"][way] for of_rank in details]
        rows.append(
            {"norm": way, "rank 0": norms[0], "rank 1": norms[-1], "off by": max(abs(n / alone - 1) for n in norms)}
        )
    return rows


def checkpoint(run: RankResults) -> Rows:
    """A sharded checkpoint: written by two ranks, read by three, and by one process."""
    rows = []
    for what, key in {"saved on 2": "saved", "loaded on 3": "loaded", "loaded on 1": "alone"}.items():
        ranks = [of_rank[key] for of_rank in run if key in of_rank]
        row = {"checkpoint": what, "weights on a rank": ranks[0]["weights_bytes"]}
        row |= {"rows of the embedding": " + ".join(str(of_rank["rows"]) for of_rank in ranks)}
        row |= {"same checksum": ranks[0]["checksum"] == run[0]["saved"]["checksum"]}
        rows.append(row | {"next loss": round(ranks[0]["next_loss"], 4)})
    return rows
