"""Bring everything up to date that is committed and follows from records: ``make refresh``.

That is, in this order: the stored outputs of notebooks whose records have changed since (only these are run, see
`stored_outputs`), figures in text, the ledger's page, README's table and picture, and the table of contents.
``--check`` changes nothing and names what is out of date.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from authoring import normal_form, prose
from authoring.pages.claims_page import PAGE, claims_page, judge_all
from authoring.pages.generated import ROOT, BookError, write
from authoring.pages.lesson_list import TOC, Lesson, load_lessons, table_of_contents
from authoring.pages.readme import PICTURE, README, picture, readme
from authoring.pages.stored_outputs import STAMPS, stale_notebooks, stamp
from authoring.sentences import text_files
from course_utils.records import store
from course_utils.records.lessons import LessonError

CELL_TIMEOUT_S = 300


def expected_pages(lessons: Sequence[Lesson]) -> dict[Path, str]:
    """What the committed pages that follow from records have to contain.

    Raises:
        BookError: if the ledger or a record cannot be used.
    """
    judgements = judge_all()
    return {
        PAGE: claims_page(judgements, lessons),
        README: readme(lessons, judgements),
        TOC: table_of_contents(lessons),
    }


def stale(lessons: Sequence[Lesson]) -> list[str]:
    """What is committed and out of date, in words; quick, since no notebook is run.

    Raises:
        BookError: if the ledger or a record cannot be used.
    """
    found = [f"the stored outputs of notebooks/{lesson.stem}.ipynb" for lesson in stale_notebooks(lessons)]
    found += [_shown(path) for path, text in expected_pages(lessons).items() if not _holds(path, text)]
    if not _same_picture(picture()):
        found.append(_shown(PICTURE))
    return found + prose.check(text_files(ROOT))


def refresh(lessons: Sequence[Lesson], say: Callable[[str], None] = print) -> tuple[list[str], list[str]]:
    """Bring everything up to date.

    Args:
        lessons: all lessons.
        say: is told what is done, a line at a time.

    Returns:
        What changed, and which figures in texts could not be filled. A stop in between loses nothing: the same call
        goes on from there.

    Raises:
        BookError: if a notebook fails, or a record cannot be used.
    """
    changed = []
    notebooks = stale_notebooks(lessons)
    with tqdm(total=len(notebooks) + 1, unit="step", file=sys.stderr, disable=None, leave=False) as bar:
        for lesson in notebooks:
            bar.set_description(f"running {lesson.stem}")
            say(f"running {lesson.stem}: its records have changed")
            try:
                if normal_form.write(lesson.notebook, timeout_s=CELL_TIMEOUT_S):
                    changed.append(f"notebooks/{lesson.stem}.ipynb")
            except LessonError as error:
                raise BookError(str(error)) from error
            stamp(lesson)
            bar.update()
        if notebooks:
            changed.append(_shown(STAMPS))
        bar.set_description("pages")
        filled, faults = prose.write(text_files(ROOT))
        changed += [_shown(path) for path in filled]
        changed += [_shown(path) for path, text in expected_pages(lessons).items() if write(path, text)]
        drawn = picture()
        if not _same_picture(drawn):
            write(PICTURE, drawn)
            changed.append(_shown(PICTURE))
        bar.update()
    return list(dict.fromkeys(changed)), faults


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _same_picture(drawn: bytes) -> bool:
    """Whether README's picture shows this: its bytes may differ from one version of zlib to the next."""
    from PIL import Image, ImageChops

    if not PICTURE.is_file():
        return False
    now, committed = (Image.open(source).convert("RGB") for source in (io.BytesIO(drawn), PICTURE))
    return now.size == committed.size and ImageChops.difference(now, committed).getbbox() is None


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: instead of ``sys.argv``.

    Returns:
        The exit status: 1 if something is wrong, or out of date with ``--check``.
    """
    parser = argparse.ArgumentParser(
        prog="python -m authoring.pages.refresh", description="Bring everything up to date that follows from records."
    )
    parser.add_argument("--check", action="store_true", help="only say what is out of date, and exit 1 if anything is")
    options = parser.parse_args(arguments)
    try:
        lessons = load_lessons()
        if options.check:
            if found := stale(lessons):
                print(
                    "\n  ".join(["Out of date; run `make refresh` and commit what changes:", *found]), file=sys.stderr
                )
            else:
                print("Everything follows from the records as they are.")
            return 1 if found else 0
        changed, faults = refresh(lessons, say=tqdm.write)
    except (BookError, store.RecordError) as error:
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
