"""Bring everything up to date that is committed and follows from records: ``make refresh``.

That is, in this order: the stored outputs of notebooks whose records have changed since (only these are run, see
`stored_outputs`), the answers to predictions, figures in text, the ledger's page, README's generated parts, the page
*What to use when*, and the table of contents.
``--check`` changes nothing and names what is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from authoring import figures_in_text, normal_form
from authoring.claims import Judgement, judge_all
from authoring.course_texts import text_files
from authoring.lesson_files import LessonFile, load_lessons
from authoring.pages.build import PROBLEMS
from authoring.pages.claims_page import PAGE, claims_page
from authoring.pages.evidence_pages import evidence_pages
from authoring.pages.generated import ROOT, holds, write
from authoring.pages.readme import README, TOC, USE_WHEN, readme, table_of_contents, use_when_page
from authoring.pages.stored_outputs import STAMPS, stale_notebooks, stamp

CELL_TIMEOUT_S = 300


def expected_pages(lessons: Sequence[LessonFile], judgements: Sequence[Judgement]) -> dict[Path, str]:
    """What the committed pages that follow from records have to contain."""
    return {
        PAGE: claims_page(judgements, lessons),
        **evidence_pages(judgements, lessons),
        README: readme(lessons),
        USE_WHEN: use_when_page(lessons),
        TOC: table_of_contents(lessons),
    }


def stale(lessons: Sequence[LessonFile]) -> list[str]:
    """What is committed and out of date, in words; quick, since no notebook is run."""
    out_of_date = [f"the stored outputs of notebooks/{lesson.stem}.ipynb" for lesson in stale_notebooks(lessons)]
    judgements = judge_all(lessons)
    pages = expected_pages(lessons, judgements)
    out_of_date += [_shown(path) for path, text in pages.items() if not holds(path, text)]
    return out_of_date + figures_in_text.check(text_files(ROOT))


def refresh(lessons: Sequence[LessonFile]) -> tuple[list[str], list[str]]:
    changed = []
    for lesson in stale_notebooks(lessons):
        print(f"running {lesson.stem}: its records have changed", flush=True)
        if normal_form.write(lesson.notebook, timeout_s=CELL_TIMEOUT_S):
            changed.append(lesson.notebook)
        stamp(lesson)
        changed.append(STAMPS)
    changed += [each.notebook for each in lessons if each.built and normal_form.write(each.notebook, execute=False)]
    for _ in range(2):  # a lesson's minutes follow from what the first pass has put into it
        filled, faults = figures_in_text.write(text_files(ROOT))
        changed += filled
    judgements = judge_all(lessons)
    pages = expected_pages(lessons, judgements)
    changed += [path for path, text in pages.items() if write(path, text)]
    return list(dict.fromkeys(map(_shown, changed))), faults


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _check(lessons: Sequence[LessonFile]) -> int:
    if out_of_date := stale(lessons):
        print("\n  ".join(["Out of date; run `make refresh` and commit what changes:", *out_of_date]), file=sys.stderr)
        return 1
    print("Everything follows from the records as they are.")
    return 0


def _write(lessons: Sequence[LessonFile]) -> int:
    changed, faults = refresh(lessons)
    print(f"Changed: {', '.join(changed)}." if changed else "Nothing had to change.")
    if faults:
        print("\n  ".join(["Figures in texts that no record fills:", *faults]), file=sys.stderr)
    return 1 if faults else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status: 1 if something is wrong, or out of date with ``--check``."""
    parser = argparse.ArgumentParser(
        prog="python -m authoring.pages.refresh", description="Bring everything up to date that follows from records."
    )
    parser.add_argument("--check", action="store_true", help="only say what is out of date, and exit 1 if anything is")
    options = parser.parse_args(arguments)
    try:
        return _check(load_lessons()) if options.check else _write(load_lessons())
    except PROBLEMS as error:
        print(f"refresh: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. What is written is whole; run `make refresh` again to go on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
