"""Bring everything up to date that is committed and follows from records: ``make refresh``.

That is, in this order: the stored outputs of notebooks whose records have changed since (only these are run, see
`stale_notebooks`), the answers to predictions, figures in text, the ledger's pages, README's generated parts, the page
*What to use when*, and the table of contents.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from authoring import claims, figures_in_text, notebook_form
from authoring.claims import JudgedClaim
from authoring.expressions import EvidenceError
from authoring.lesson_files import LessonFile, LessonFileError, load_lessons
from authoring.markdown_texts import text_files
from authoring.pages.claims_pages import PAGE, claims_page, evidence_pages
from authoring.pages.generated import BOOK, ROOT, BookError, holds, write
from authoring.pages.readme import README, TOC, USE_WHEN, readme, table_of_contents, use_when_page
from course_utils import lesson_order
from course_utils.lesson_notebooks import LessonError, read_notebook
from course_utils.results import store

STAMPS = BOOK / "stored_outputs.json"
PROBLEMS = (BookError, EvidenceError, LessonError, LessonFileError, store.RecordError)


def expected_pages(lessons: Sequence[LessonFile], judged: Sequence[JudgedClaim]) -> dict[Path, str]:
    return {
        PAGE: claims_page(lessons),
        **evidence_pages(judged, lessons),
        README: readme(lessons),
        USE_WHEN: use_when_page(lessons),
        TOC: table_of_contents(lessons),
    }


def stale(lessons: Sequence[LessonFile], judged: Sequence[JudgedClaim]) -> list[str]:
    """What is committed and out of date, in words; quick, since no notebook is run."""
    out_of_date = [f"the stored outputs of notebooks/{lesson.stem}.ipynb" for lesson in stale_notebooks(lessons)]
    pages = expected_pages(lessons, judged)
    out_of_date += [_shown(path) for path, text in pages.items() if not holds(path, text)]
    return out_of_date + figures_in_text.check(text_files())


def refresh(lessons: Sequence[LessonFile]) -> tuple[list[str], list[str]]:
    """Which files have changed, and the figures that no record fills."""
    changed = []
    for lesson in stale_notebooks(lessons):
        print(f"running {lesson.stem}: its records have changed", flush=True)
        if notebook_form.write(lesson.notebook):
            changed.append(lesson.notebook)
        stamp(lesson)
        changed.append(STAMPS)
    changed += [each.notebook for each in lessons if each.built and notebook_form.write(each.notebook, execute=False)]
    for _ in range(2):  # a lesson's minutes follow from what the first pass has put into it
        filled, faults = figures_in_text.write(text_files())
        changed += filled
    pages = expected_pages(lessons, claims.judge_all(lessons))
    changed += [path for path, text in pages.items() if write(path, text)]
    return list(dict.fromkeys(map(_shown, changed))), faults


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# A ``stable`` cell shows records, and its output is stored. Running every notebook to see whether one is out of date
# takes minutes. So ``stored_outputs.json`` keeps, for each notebook, a hash of the records that its stored outputs were
# made from: of all that are recorded of the lessons whose experiments it shows, on every machine, and of whether their
# code has changed since. Another drawing or picture is not seen: ``authoring.notebook_form --execute`` stores it.


def stale_notebooks(lessons: Sequence[LessonFile]) -> list[LessonFile]:
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
        record, read = json.loads(path.read_text(encoding="utf-8")), store.load_lesson(path)
        # A card says whether the code has changed since; which code it was is not shown, nor the form of the file.
        results = {
            name: [each["data"], store.code_has_changed(read, name)] for name, each in record["experiments"].items()
        }
        shown_of_it = record | {"experiments": results, "schema_version": None}
        records.append([f"{path.parent.name}/{path.name}", shown_of_it])
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()[:16]


def _stamps() -> dict[str, str]:
    return json.loads(STAMPS.read_text(encoding="utf-8")) if STAMPS.is_file() else {}


def main() -> int:
    try:
        changed, faults = refresh(load_lessons())
    except PROBLEMS as error:
        print(f"refresh: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. What is written is whole; run `make refresh` again to go on.", file=sys.stderr)
        return 130
    print(f"Changed: {', '.join(changed)}." if changed else "Nothing had to change.")
    if faults:
        print("\n  ".join(["Figures in texts that no record fills:", *faults]), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
