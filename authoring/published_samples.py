"""Turns raw files that others published into the samples of published rows: ``published_samples SOURCE FOLDER``.

The raw files stay where they are. What the course keeps is the numbers, or one ratio for each model or problem, and the
SHA-256 of the files that they come from. Intervals are worked out from them by :mod:`authoring.published`.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from course_utils.records.store import package_root

_TIMM_RUNS = {
    "torch_compile/published/timm_rtx4090.json": ("infer-amp-nchw-pt291-cu128-4090", "-dynamo"),
    "torch_compile/published/timm_rtx5090.json": ("infer-amp-nchw-pt291-cu130-5090", "-dynamo"),
}


def mlperf(folder: Path) -> None:
    """What each run of MLPerf's reference took to its target, by batch size: samples, or epochs for ResNet.

    The files are ``rcps_*.json`` of mlcommons/logging, at the commits that the rows name.
    """
    for model in ("llama31_8b", "bert", "resnet"):
        file = folder / f"rcps_{model}.json"
        points = json.loads(file.read_text(encoding="utf-8")).values()
        samples = {str(point["BS"]): point["Epochs to converge"] for point in points}
        _write(f"batch_size/published/mlperf_{model}.json", [file], samples)


def kernelbench(folder: Path) -> None:
    """How many times as fast each problem is, compiled; times are the means of its 100 trials."""
    runs = {"eager": "torch"}
    runs |= {mode: f"torch_compile_inductor_{mode}" for mode in ("default", "reduce-overhead", "max-autotune")}
    files = {run: folder / f"H100_together__baseline_time_{name}.json" for run, name in runs.items()}
    times = {run: json.loads(file.read_text(encoding="utf-8")) for run, file in files.items()}
    samples = {}
    pairs = [("eager", mode) for mode in runs if mode != "eager"]
    pairs += [("default", "reduce-overhead")]
    for base, case in pairs:
        for level in ("level1", "level3"):
            samples[f"{case} over {base}, {level}"] = _faster(times[base][level], times[case][level])
    _write("torch_compile/published/kernelbench_h100.json", list(files.values()), samples)


def _faster(base: Mapping[str, dict], case: Mapping[str, dict]) -> list[float]:
    """Ratios of problems that ran in both ways; one that failed has no entry or an empty one."""
    ran = [name for name in sorted(base) if base[name] and case.get(name)]
    return [_short(base[name]["mean"] / case[name]["mean"]) for name in ran]


def timm(folder: Path) -> None:
    """How many times as fast each model is: compiled in inference, in channels-last in training.

    Models are joined by name and size. Names that occur twice there are left out, and so are models whose two runs
    used different batches.
    """
    for target, (run, ending) in _TIMM_RUNS.items():
        files = [folder / f"benchmark-{run}{end}.csv" for end in ("", ending)]
        _write(target, files, {"compiled over eager": _rates(*files, "infer")})
    files = [folder / f"benchmark-train-amp-{layout}-pt112-cu113-rtx3090.csv" for layout in ("nchw", "nhwc")]
    target = "mixed_precision/published/timm_rtx3090_channels_last.json"
    _write(target, files, {"channels-last over default": _rates(*files, "train")})


def _rates(base: Path, case: Path, kind: str) -> list[float]:
    rows = [_by_model(file, kind) for file in (base, case)]
    both = [key for key in rows[0] if key in rows[1]]  # a model, its size and its batch: alike on both sides
    return [_short(rows[1][key] / rows[0][key]) for key in both]


def _by_model(file: Path, kind: str) -> dict[tuple[str, str, str], float]:
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    often = Counter((row["model"], row[f"{kind}_img_size"]) for row in rows)
    return {
        (row["model"], row[f"{kind}_img_size"], row[f"{kind}_batch_size"]): float(row[f"{kind}_samples_per_sec"])
        for row in rows
        if often[row["model"], row[f"{kind}_img_size"]] == 1
    }


def _short(ratio: float) -> float:
    """With four digits, which is more than a repeated run would agree on."""
    return float(f"{ratio:.4g}")


def _write(target: str, files: Sequence[Path], samples: Mapping[str, Sequence[float]]) -> None:
    sums = [{"path": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()} for file in files]
    path = package_root() / "lessons" / target
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"files": sums, "samples": samples}, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{path.name}: {', '.join(f'{name} {len(values)}' for name, values in samples.items())}")


def main(arguments: Sequence[str] | None = None) -> None:
    sources = {function.__name__: function for function in (mlperf, kernelbench, timm)}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", choices=sources)
    parser.add_argument("folder", type=Path, help="where the raw files are")
    given = parser.parse_args(arguments)
    sources[given.source](given.folder)


if __name__ == "__main__":
    main()
