"""Build the book: generate the pages that come from records, run Jupyter Book, say where to open it.

``make book`` runs this module with the Python of the virtual environment. What is generated and committed (the ledger's
pages, the table of contents, parts of README.md) is only checked here; ``make refresh`` writes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from authoring import claims, teaching
from authoring.claims import JudgedClaim
from authoring.lesson_files import LessonFile, load_lessons
from authoring.pages.claims_pages import summary
from authoring.pages.generated import BOOK, ROOT, BookError, write
from authoring.pages.readme import README
from authoring.pages.refresh import PROBLEMS, stale
from authoring.rendering import rendered
from authoring.slides import write_slides
from course_utils.lesson_notebooks import find_lessons
from own_program import file_reader
from own_program.page import pack

GENERATED = BOOK / "_generated"


def check(lessons: Sequence[LessonFile], judged: Sequence[JudgedClaim]) -> None:
    if faults := claims.faults(judged):
        raise BookError("\n  ".join(["the ledger and the records part; correct each lesson.yml:", *faults]))
    if out_of_date := stale(lessons, judged):
        raise BookError("\n  ".join(["out of date; run `make refresh` and commit what changes:", *out_of_date]))


def generate(lessons: Sequence[LessonFile], reads_files: bool) -> None:
    """Write the generated pages that are not committed, and what other pages include."""
    parts = {
        "readme.md": README.read_text(encoding="utf-8").replace("](./", "](../"),  # from a folder further down
        "claims.md": summary(claims.load_claims(lessons)),
        **teaching.parts_of_the_guide(),
        **own_program_parts(reads_files),
    }
    for name, text in parts.items():
        write(GENERATED / name, text)


def own_program_parts(can_run: bool) -> dict[str, str]:
    """The parts that ``book/own_program.md`` includes, by file name."""
    return {
        "own_program_reader.md": rendered("pages/own_program.md", can_run=can_run, script=pack.SCRIPT.as_posix()),
        "own_program_example.html": file_reader.html(file_reader.example(), "../notebooks/{}.html"),
    }


def build() -> Path:
    """Build the book anew: Sphinx would leave a page that is gone, and say a warning about a page only once."""
    lessons = load_lessons()
    check(lessons, claims.judge_all(lessons))
    try:
        python = pack.python()
    except pack.NoPyodideError as error:
        print(f'The page "Your own program" will read no files, and says so. {error}', file=sys.stderr)
        python = None
    generate(lessons, reads_files=python is not None)
    shutil.rmtree(BOOK / "_build", ignore_errors=True)
    render(BOOK)
    html = BOOK / "_build" / "html"
    write_slides(find_lessons(), html / teaching.SLIDES, assets="../_static")  # reveal.js and MathJax are shared
    pack.add_to(html, python)
    for source_map in html.rglob("*.map"):
        # Only the authors of the theme debug its scripts, and the maps are 40% of a small book.
        source_map.unlink()
    return html / "index.html"


def render(output: Path) -> None:
    """Run Jupyter Book, which makes ``_build`` in a folder; a warning of its is an error."""
    jupyter_book = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command = [*jupyter_book, "build", ".", "--config", "book/_config.yml", "--toc", "book/_toc.yml"]
    command += ["--path-output", str(output), "-W", "--keep-going", "--quiet"]
    # The book's own extension of Sphinx is `authoring.pages.outputs`, which no installed package holds.
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]))
    # Python's warnings about the tools' own code are not about this book; Sphinx's warnings are not affected.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    # Warnings go to stderr and are seen at once; what Jupyter Book says besides matters only when it fails.
    sphinx = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if sphinx.returncode != 0:
        print(sphinx.stdout, file=sys.stderr)
        raise BookError("the book has errors or warnings, listed above; mend them and run `make book` again")


def main() -> int:
    try:
        page = build()
    except (*PROBLEMS, pack.PageError) as error:
        print(f"book: {error}", file=sys.stderr)
        return 1
    print(f"The book is built. Open it in a browser:\n{page.as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
