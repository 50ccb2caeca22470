"""Which notebooks store outputs that were made from other records than there are now.

A ``stable`` cell shows records, and its output is stored. Running every notebook to see whether one is out of date
takes minutes. So ``stored_outputs.json`` keeps, for each notebook, a hash of the records that its stored outputs were
made from: of all that are recorded of the lessons whose experiments it shows, on every machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from authoring.lesson_files import LessonFile
from authoring.pages.generated import BOOK, write
from course_utils import lesson_order
from course_utils.results import store
from course_utils.results.notebook_files import read_notebook

STAMPS = BOOK / "stored_outputs.json"


def stale_notebooks(lessons: Sequence[LessonFile]) -> list[LessonFile]:
    """The built lessons whose stored outputs were made from other records, in order."""
    stamps = _stamps()
    return [lesson for lesson in lessons if lesson.built and stamps.get(lesson.slug) != _records_hash(lesson)]


def stamp(lesson: LessonFile) -> None:
    """Note that a lesson's stored outputs were made from the records that there are now."""
    stamps = _stamps() | {lesson.slug: _records_hash(lesson)}
    kept = {slug: stamp for slug, stamp in stamps.items() if slug in lesson_order.slugs()}
    write(STAMPS, json.dumps(kept, indent=1, sort_keys=True) + "\n")


def _records_hash(lesson: LessonFile) -> str:
    cells = read_notebook(lesson.notebook)["cells"]
    source = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
    shown = {lesson.slug, *re.findall(r"""recorded\(\s*f?["']([a-z0-9_]+)/""", source)}
    records = []
    root = store.reference_root()
    for path in sorted(path for slug in shown for path in root.glob(f"*/{slug}.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        # Which code made a result is not shown, nor in which form its file is.
        results = {name: each["data"] for name, each in record["experiments"].items()}
        shown_of_it = record | {"experiments": results, "schema_version": None}
        records.append([f"{path.parent.name}/{path.name}", shown_of_it])
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()[:16]


def _stamps() -> dict[str, str]:
    return json.loads(STAMPS.read_text(encoding="utf-8")) if STAMPS.is_file() else {}
