"""Takes raw samples out of files that others published: what the published rows of lessons work their intervals out from.

The files are not part of this project; fetch them by the repository, path and commit that the row names::

    python -m authoring.published_samples mlperf FOLDER
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from course_utils.records.store import package_root

Samples = Mapping[str, Sequence[float]]


def mlperf(folder: Path) -> dict[str, dict[str, Any]]:
    """The samples, or epochs, that every run of MLPerf's reference took to its target, by batch size.

    The files are those of mlcommons/logging, mlperf_logging/rcp_checker, by their name in ``folder``.
    """
    name = "mlperf_logging/rcp_checker/training_{}/rcps_{}.json"
    sources = {
        "mlperf_llama31_8b": name.format("6.0.0", "llama31_8b"),
        "mlperf_bert": name.format("3.1.0", "bert"),
        "mlperf_resnet": name.format("4.0.0", "resnet"),
    }
    found = {}
    for target, path in sources.items():
        file = folder / Path(path).name
        points = json.loads(file.read_text(encoding="utf-8")).values()
        samples = {str(point["BS"]): point["Epochs to converge"] for point in points}
        found[f"batch_size/published/{target}.json"] = _taken({path: file}, samples)
    return found


def _taken(files: Mapping[str, Path], samples: Samples) -> dict[str, Any]:
    """What is written: where the samples come from, to the byte, and the samples."""
    digests = {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in files.items()}
    return {"files": [{"path": path, "sha256": digest} for path, digest in digests.items()], "samples": samples}


_SOURCES = {"mlperf": mlperf}


def main(source: str, folder: str) -> None:
    """Write the samples of a source, by its name, from the files in a folder, beside the lessons that show them."""
    for target, content in _SOURCES[source](Path(folder)).items():
        path = package_root() / "lessons" / target
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(path.relative_to(package_root()))


if __name__ == "__main__":
    main(*sys.argv[1:])
