"""Give the lessons the numbers that ``course_utils/lessons/order.yml`` says: ``make renumber``.

A lesson is its slug; its number is its place in that list. So notebooks are renamed, and what mentions a number in a
text is rewritten: names of notebooks (``NN_slug``), the words of links to them, titles, anchors, "lesson NN" by
itself, and the line that leads to the next lesson. What stands beside a slug follows from the slug; a number that
stands alone, from the name that its notebook had. ``make refresh`` then makes what is generated from the lessons.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from authoring.lesson_files import LessonFile, LessonFileError, read_lesson
from course_utils import lesson_order
from course_utils.files import write_whole
from course_utils.lesson_notebooks import LessonError, dumped, read_notebook
from course_utils.lesson_order import OrderError

ROOT = Path(__file__).resolve().parents[1]
# What people write, and a list whose keys are files. CHANGELOG.md keeps the numbers of its day.
_TEXTS = (
    *("README.md", "CONTRIBUTING.md", "book/*.md", "book/reference/*.md", "course_utils/lessons/*/*.yml"),
    "tests/seconds.json",
)

_NAME = re.compile(r"(?:(?P<number>\d\d)_)?(?P<slug>[a-z][a-z0-9_]*)")
_MENTION = re.compile(
    r"\[(?P<words>[^\[\]]*)\](?P<way>\([^()\s]*?\b)\d\d_(?P<linked>[a-z][a-z0-9_]*)\.ipynb(?P<anchor>#\d\d-)?"
    r"|\b\d\d_(?P<slug>[a-z][a-z0-9_]*)"
    r"|(?P<lesson>\b[Ll]essons?(?:\s|&nbsp;))(?P<numbers>\d\d(?:(?:,\s|,?\sand\s|\sto\s)\d\d)*)\b"
)
_IN_WORDS = re.compile(r"^\d\d(?=$| · )|(?<=^\*\*)\d\d(?= · )|(?<=[Ll]esson\s)\d\d\b|(?<=[Ll]essons\s)\d\d\b")
_OF_ITSELF = re.compile(r'(?P<before>^# |<a id="|\]\(#)\d\d(?= · |-)', re.MULTILINE)
_NEXT = re.compile(r"(?P<before>^#+ Next lesson\n\n|\bNext: (?=\[\**\d\d · |\*\*\d\d · ))(?P<line>.+)", re.MULTILINE)


class RenumberError(ValueError):
    """The list, the lessons' folders, the notebooks and the texts do not fit each other: the message says how."""


@dataclass
class Changes:
    """Notebooks that get another name, and what files have to hold, both by the path that they have now."""

    renamed: dict[Path, Path] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)

    def lines(self, root: Path) -> Iterator[str]:
        """A line for each file."""
        for path in sorted({*self.renamed, *self.written}):
            to = f" -> {self.renamed[path].name}" if path in self.renamed else ""
            yield f"{path.relative_to(root).as_posix()}{to}"


@dataclass(frozen=True)
class _Numbers:
    """The number of each lesson, as two digits: by its slug, and by the number that its notebook has now."""

    of: Mapping[str, str]
    new: Mapping[str, str]

    def rewritten(self, text: str, where: str) -> str:
        """A text with the right number in each mention of a lesson."""

        def mention(match: re.Match[str]) -> str:
            if (slug := match["linked"]) in self.of:
                number = self.of[slug]
                anchor = f"#{number}-" if match["anchor"] else ""
                return f"[{_IN_WORDS.sub(number, match['words'])}]{match['way']}{number}_{slug}.ipynb{anchor}"
            if (slug := match["slug"]) in self.of:
                return f"{self.of[slug]}_{slug}"
            return match["lesson"] + re.sub(r"\d\d", moved, match["numbers"]) if match["lesson"] else match[0]

        def moved(match: re.Match[str]) -> str:
            if match[0] not in self.new:
                raise RenumberError(
                    f"{where} mentions lesson {match[0]}, and no notebook has this number: mend the text."
                )
            return self.new[match[0]]

        return _MENTION.sub(mention, text)


def changes(root: Path = ROOT) -> Changes:
    """What has to change so that every number follows from the list.

    Raises:
        RenumberError: if a lesson has no folder or two notebooks, a notebook is no lesson of the list, or a text
            mentions a number that no notebook has.
        OSError, OrderError, LessonFileError, LessonError: if the list, a lesson.yml or a notebook cannot be read.
    """
    lessons = _lessons(root / "course_utils" / "lessons")
    notebooks = _notebooks(root / "notebooks", {lesson.slug for lesson in lessons})
    of = {lesson.slug: f"{lesson.number:02d}" for lesson in lessons}
    numbers = _Numbers(of, {path.stem[:2]: of[slug] for slug, path in notebooks.items() if path.stem != slug})
    found = Changes()
    for lesson, following in zip(lessons, [*lessons[1:], None], strict=True):
        if path := notebooks.get(lesson.slug):
            if path.stem != lesson.stem:
                found.renamed[path] = path.with_name(f"{lesson.stem}.ipynb")
            notebook = read_notebook(path)
            before = dumped(notebook)
            _rewrite_cells(notebook, numbers, path.name)
            _rewrite_own(notebook, of[lesson.slug], following, notebooks)
            if (after := dumped(notebook)) != before:
                found.written[path] = after
    for path in sorted(path for pattern in _TEXTS for path in root.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        if (after := numbers.rewritten(text, path.relative_to(root).as_posix())) != text:
            found.written[path] = after
    return found


def _lessons(folder: Path) -> list[LessonFile]:
    listed = lesson_order.slugs(folder / "order.yml")
    if unlisted := sorted({path.parent.name for path in folder.glob("*/lesson.yml")} - {*listed}):
        raise RenumberError(f"{folder.name}/{unlisted[0]} is not in order.yml: put it where it belongs.")
    return [read_lesson(folder / slug / "lesson.yml") for slug in listed]


def _notebooks(folder: Path, slugs: set[str]) -> dict[str, Path]:
    """The notebook of each lesson that has one; it is called NN_slug.ipynb, or slug.ipynb where it is new."""
    found: dict[str, Path] = {}
    of_number: dict[str, Path] = {}
    for path in sorted(folder.glob("*.ipynb")):
        match = _NAME.fullmatch(path.stem)
        if match is None or match["slug"] not in slugs:
            raise RenumberError(
                f"{path.name} is no lesson of order.yml: add its name without the number, or correct it."
            )
        if (other := found.setdefault(match["slug"], path)) != path:
            raise RenumberError(f"{other.name} and {path.name} are the same lesson: delete one of them.")
        if match["number"] and (other := of_number.setdefault(match["number"], path)) != path:
            raise RenumberError(
                f"{other.name} and {path.name} have the same number: call the new one by its name alone, as in "
                f"{match['slug']}.ipynb."
            )
    return found


def _rewrite_cells(notebook: dict[str, Any], numbers: _Numbers, where: str) -> None:
    for cell in notebook["cells"]:
        cell["source"] = numbers.rewritten(cell["source"], where)
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            data |= {kind: numbers.rewritten(data[kind], where) for kind in ("text/html", "text/plain") if kind in data}


def _rewrite_own(
    notebook: dict[str, Any], number: str, following: LessonFile | None, notebooks: Mapping[str, Path]
) -> None:
    """The lesson's own number, in its title and its anchors, and the line that leads to the next lesson."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            source = _OF_ITSELF.sub(rf"\g<before>{number}", cell["source"])
            cell["source"] = _NEXT.sub(
                lambda match: match["before"] + _leads(match["line"], following, notebooks), source
            )


def _leads(line: str, following: LessonFile | None, notebooks: Mapping[str, Path]) -> str:
    """The line that leads to the next lesson: as it is if it does so, or else the lesson's title and its question."""
    if following is None:
        return "This is the last lesson." if re.search(r"\d\d · ", line) else line
    if following.slug in notebooks:
        leads, lead = f"_{following.slug}.ipynb)" in line, f"[**{following.name}**]({following.stem}.ipynb)"
    else:
        line = re.sub(rf"\d\d · (?={re.escape(following.title)})", following.name[:5], line)
        leads, lead = following.name in line, f"**{following.name}** *(planned)*"
    return line if leads else f"{lead}: {following.question}"


# Doing it


def apply(found: Changes) -> None:
    """Write the texts and rename the notebooks, through git where it knows them."""
    for path, text in found.written.items():
        write_whole(path, text)
    for old, new in found.renamed.items():
        moved = subprocess.run(["git", "mv", old.name, new.name], cwd=old.parent, capture_output=True, check=False)
        if moved.returncode:
            old.rename(new)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status: 1 if something has to be mended, or changed with ``--check``."""
    parser = argparse.ArgumentParser(
        prog="python -m authoring.renumber", description="Give the lessons the numbers that lessons/order.yml says."
    )
    parser.add_argument("--check", action="store_true", help="only say what would change, and exit 1 if anything would")
    options = parser.parse_args(arguments)
    try:
        found = changes()
    except (OSError, RenumberError, OrderError, LessonFileError, LessonError) as error:
        print(f"renumber: {error}", file=sys.stderr)
        return 1
    lines = [*found.lines(ROOT)]
    if options.check:
        if lines:
            print(
                "\n  ".join(["Numbers that lessons/order.yml does not give; run `make renumber`:", *lines]),
                file=sys.stderr,
            )
        return 1 if lines else 0
    apply(found)
    print("\n".join(lines) or "Each lesson has its number.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
