"""Turns raw files that others published into the samples of published rows: ``published_samples SOURCE FOLDER``.

The raw files stay where they are. What the course keeps is the numbers, and the SHA-256 of the files that they come
from. Intervals are worked out from them by :mod:`authoring.published`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from course_utils.records.store import package_root


def mlperf(folder: Path) -> None:
    """What each run of MLPerf's reference took to its target, by batch size: samples, or epochs for ResNet.

    The files are ``rcps_*.json`` of mlcommons/logging, at the commits that the rows name.
    """
    for model in ("llama31_8b", "bert", "resnet"):
        file = folder / f"rcps_{model}.json"
        points = json.loads(file.read_text(encoding="utf-8")).values()
        samples = {str(point["BS"]): point["Epochs to converge"] for point in points}
        _write(f"batch_size/published/mlperf_{model}.json", [file], samples)


def _write(target: str, files: Sequence[Path], samples: Mapping[str, Sequence[float]]) -> None:
    sums = [{"path": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()} for file in files]
    path = package_root() / "lessons" / target
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"files": sums, "samples": samples}, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{path.name}: {', '.join(f'{name} {len(values)}' for name, values in samples.items())}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the samples of one source."""
    sources = {function.__name__: function for function in (mlperf,)}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", choices=sources)
    parser.add_argument("folder", type=Path, help="where the raw files are")
    given = parser.parse_args(arguments)
    sources[given.source](given.folder)


if __name__ == "__main__":
    main()
