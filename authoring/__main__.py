"""What instructors run: ``python -m authoring demo LESSON``, and ``slides [LESSON ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from authoring import demo, slides, teaching
from authoring.expressions import EvidenceError
from course_utils.files import write_whole
from course_utils.lesson_notebooks import LessonError, find_lesson, find_lessons, notebooks_root


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m authoring", description="Teach with the lessons.")
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    about = "open a lesson's five-minute path in JupyterLab, in large type; other options go to JupyterLab"
    verb = verbs.add_parser("demo", help=about, description=about)
    verb.add_argument("lesson", metavar="LESSON", help="number, name or file of a lesson")
    verb.add_argument("--new", action="store_true", help="make the copy anew, also if you have edited it")
    verb.set_defaults(run=_demo)

    about = "write the slides of lessons to slides/, as pages that need no network"
    verb = verbs.add_parser("slides", help=about, description=about)
    verb.add_argument("lessons", nargs="*", metavar="LESSON", help="default: all")
    verb.set_defaults(run=_slides)

    options, others = parser.parse_known_args(arguments)
    if others and options.run is not _demo:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    try:
        return options.run(options, others)
    except (LessonError, EvidenceError) as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{error.filename} cannot be written: {error.strerror}.", file=sys.stderr)
    return 1


def _demo(options: argparse.Namespace, for_jupyterlab: Sequence[str]) -> int:
    lesson = find_lesson(options.lesson)
    folder = notebooks_root().absolute().parent / "workspace" / "demo"
    path = folder / lesson.path.name
    if path.is_file() and not options.new and demo.is_edited(path):
        print(f"Kept as you edited it: {path.name}. {demo.ANEW.format(lesson.number)}")
    else:
        demo.write_demo(lesson, folder)
    notes = path.with_suffix(".notes.md")
    write_whole(notes, teaching.presenter_notes(lesson))
    print(f"Your notes, for another screen than the room's: {notes}")
    return demo.open_demo(path, [argument for argument in for_jupyterlab if argument != "--"])


def _slides(options: argparse.Namespace, _: Sequence[str]) -> int:
    lessons = [find_lesson(name) for name in options.lessons] or find_lessons()
    pages = slides.write_slides(lessons, notebooks_root().resolve().parent / "slides")
    print("\n".join(map(str, pages)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
