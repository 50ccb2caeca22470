"""Give the lessons the numbers that ``course_utils/lessons/order.yml`` says: ``make renumber``.

A lesson is its slug; its number is its place in that list. So notebooks are renamed, and what mentions a number in a
text is rewritten: names of notebooks (``NN_slug``), the words of links to them, titles, anchors, "lesson NN" by
itself, and the line that leads to the next lesson. What stands beside a slug follows from the slug; a number that
stands alone, from the name that its notebook had. ``make refresh`` then makes what is generated from the lessons.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from authoring.lesson_files import LessonFile, LessonFileError, read_lesson
from course_utils import lesson_order
from course_utils.files import write_whole
from course_utils.lesson_order import OrderError

ROOT = Path(__file__).resolve().parents[1]
# What people write. CHANGELOG.md keeps the numbers of its day.
_TEXTS = (
    *("README.md", "CONTRIBUTING.md", "book/*.md", "book/reference/*.md", "course_utils/lessons/*/*.yml"),
    "notebooks/*.ipynb",
)
_NAME = re.compile(r"(?:\d\d_)?(?P<slug>[a-z][a-z0-9_]*)")
_MENTION = re.compile(
    r"\[(?P<words>[^\[\]]*)\](?P<way>\([^()\s]*?\b)\d\d_(?P<linked>[a-z][a-z0-9_]*)\.ipynb(?P<anchor>#\d\d-)?"
    r"|\b\d\d_(?P<slug>[a-z][a-z0-9_]*)"
    r"|(?P<lesson>\b[Ll]essons?(?:\s|&nbsp;))(?P<numbers>\d\d(?:(?:,\s|,?\sand\s|\sto\s)\d\d)*)\b"
)
_IN_WORDS = re.compile(r"^\d\d(?=$| · )|(?<=^\*\*)\d\d(?= · )|(?<=[Ll]esson\s)\d\d\b|(?<=[Ll]essons\s)\d\d\b")
# In a notebook's file: its title and its anchors, and the line that leads on.
_OF_ITSELF = re.compile(r'(?P<before>"# |<a id=\\"|\]\(#)\d\d(?= · |-)')
_NEXT = re.compile(r'(?<="Next: )\[[^\]]*\]\(\d\d_(?P<slug>\w+)\.ipynb\)(?:\\.|[^"\\])*?(?=(?:\\n)?")')


class RenumberedFiles(NamedTuple):
    """Notebooks that get another name, and what files have to hold, both by the path that they have now."""

    renamed: dict[Path, Path]
    written: dict[Path, str]


def renumbered(root: Path = ROOT) -> RenumberedFiles:
    folder = root / "course_utils" / "lessons"
    lessons = {slug: read_lesson(folder / slug / "lesson.yml") for slug in lesson_order.slugs(folder / "order.yml")}
    notebooks = _notebooks(root / "notebooks", lessons)
    of = {slug: f"{lesson.number:02d}" for slug, lesson in lessons.items()}
    new = {path.stem[:2]: of[slug] for path, slug in notebooks.items() if path.stem != slug}
    built = [slug for slug in lessons if slug in notebooks.values()]
    following = dict(itertools.pairwise(built))
    found = RenumberedFiles({}, {})
    for path in sorted(path for pattern in _TEXTS for path in root.glob(pattern)):
        before = path.read_text(encoding="utf-8")
        text = _rewritten(before, of, new, path.relative_to(root).as_posix())
        if slug := notebooks.get(path):
            text = _OF_ITSELF.sub(rf"\g<before>{of[slug]}", text)
            text = _NEXT.sub(lambda match: _leads_on(match, lessons.get(following.get(slug))), text)
            if path.stem != lessons[slug].stem:
                found.renamed[path] = path.with_name(f"{lessons[slug].stem}.ipynb")
        if text != before:
            found.written[path] = text
    return found


def _notebooks(folder: Path, lessons: Mapping[str, LessonFile]) -> dict[Path, str]:
    found: dict[Path, str] = {}
    for path in sorted(folder.glob("*.ipynb")):
        match = _NAME.fullmatch(path.stem)
        if match is None or match["slug"] not in lessons or match["slug"] in found.values():
            raise LessonFileError(
                f"{path.name} is no lesson of order.yml, or a second notebook of one: correct its name or the list."
            )
        found[path] = match["slug"]
    return found


def _rewritten(text: str, of: Mapping[str, str], new: Mapping[str, str], where: str) -> str:
    """A text with the right number in each mention: ``of`` a slug, or the ``new`` one for what a notebook has now."""

    def mention(match: re.Match[str]) -> str:
        if (slug := match["linked"]) in of:
            anchor = f"#{of[slug]}-" if match["anchor"] else ""
            return f"[{_IN_WORDS.sub(of[slug], match['words'])}]{match['way']}{of[slug]}_{slug}.ipynb{anchor}"
        if (slug := match["slug"]) in of:
            return f"{of[slug]}_{slug}"
        return match["lesson"] + re.sub(r"\d\d", moved, match["numbers"]) if match["lesson"] else match[0]

    def moved(match: re.Match[str]) -> str:
        if match[0] not in new:
            raise LessonFileError(
                f"{where} mentions lesson {match[0]}, and no notebook has this number: mend the text."
            )
        return new[match[0]]

    return _MENTION.sub(mention, text)


def _leads_on(line: re.Match[str], following: LessonFile | None) -> str:
    """The line that leads to the next lesson: as it is if it does so, or else the lesson's title and its question."""
    if following is None:
        return "This is the last lesson."
    if line["slug"] == following.slug:
        return line[0]
    return json.dumps(f"[{following.name}]({following.stem}.ipynb): {following.question}", ensure_ascii=False)[1:-1]


def apply(found: RenumberedFiles) -> None:
    for path, text in found.written.items():
        write_whole(path, text)
    for old, new in found.renamed.items():
        old.rename(new)


def main(arguments: Sequence[str]) -> int:
    try:
        found = renumbered()
    except (OSError, OrderError, LessonFileError) as error:
        print(f"renumber: {error}", file=sys.stderr)
        return 1
    lines = [path.relative_to(ROOT).as_posix() for path in found.written]
    lines += [f"{old.relative_to(ROOT).as_posix()} -> {new.name}" for old, new in found.renamed.items()]
    if "--check" in arguments:
        if lines:
            advice = "Numbers that lessons/order.yml does not give; run `make renumber`:"
            print("\n  ".join([advice, *lines]), file=sys.stderr)
        return 1 if lines else 0
    apply(found)
    print("\n".join(lines) or "Each lesson has its number.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
