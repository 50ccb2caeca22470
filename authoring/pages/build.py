"""Build the book: generate the pages that come from records, run Jupyter Book, say where to open it.

``make book`` runs this module with the Python of the virtual environment. What is generated and committed (the ledger's
pages, the table of contents, parts of README.md) is only checked here; ``make refresh`` writes it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from authoring import claims, teaching
from authoring.claims import JudgedClaim
from authoring.lesson_files import LessonFile, load_lessons
from authoring.pages.claims_pages import summary
from authoring.pages.generated import BOOK, ROOT, BookError, write
from authoring.pages.readme import README, TOC
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


def build(output: Path, fresh: bool = False) -> Path:
    html = output / "_build" / "html"
    lessons = load_lessons()
    check(lessons, claims.judge_all(lessons))
    try:
        python = pack.python()
    except pack.NoPyodideError as error:
        print(f'The page "Your own program" will read no files, and says so. {error}', file=sys.stderr)
        python = None
    generate(lessons, reads_files=python is not None)
    _forget_another_book(output / "_build", fresh)
    render(output)
    write_slides(find_lessons(), html / teaching.SLIDES, assets="../_static")  # reveal.js and MathJax are shared
    pack.add_to(html, python)
    for source_map in html.rglob("*.map"):
        # Only the authors of the theme debug its scripts, and the maps are 40% of a small book.
        source_map.unlink()
    return html / "index.html"


def _forget_another_book(folder: Path, fresh: bool) -> None:
    """Throw an earlier build away that has what Sphinx would leave: a page that is gone, an old style sheet."""
    parts = [TOC, *sorted((BOOK / "_static").glob("*.[cj]*s"))]
    made_from = hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()
    kept = folder / "made_from"
    if fresh or not kept.is_file() or kept.read_text() != made_from:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        kept.write_text(made_from)


def render(output: Path) -> None:
    """Run Jupyter Book; a warning of its is an error."""
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
        # Sphinx does not repeat a warning about a page that it has cached: the next build must read all pages again.
        shutil.rmtree(output / "_build" / ".doctrees", ignore_errors=True)
        raise BookError("the book has errors or warnings, listed above; mend them and run `make book` again")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m authoring.pages.build", description="Build the book.")
    parser.add_argument("--output", type=Path, default=BOOK, help="folder that gets _build (default: book)")
    parser.add_argument("--fresh", action="store_true", help="throw an earlier build away first")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        page = build(options.output.resolve(), options.fresh)
    except (*PROBLEMS, pack.PageError) as error:
        print(f"book: {error}", file=sys.stderr)
        return 1
    print(f"The book is built in {time.perf_counter() - started:.0f} s. Open it in a browser:\n{page.as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
