"""Build the book: generate the pages that come from records, run Jupyter Book, say where to open it.

``make book`` runs this module with the Python of the virtual environment. What is generated and committed (the ledger's
page, the table of contents, parts of README.md) is only checked here; ``make refresh`` writes it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from book.generated import BOOK, ROOT, BookError, write
from book.landing import headline, svg
from book.lesson_list import Lesson, check_toc, lessons_table, load_lessons
from book.status_page import status_page
from course_utils import store
from course_utils.lessons import LessonError

GENERATED = BOOK / "_generated"


def generate(lessons: Sequence[Lesson]) -> None:
    """Write the generated pages: the status page and what the landing page includes.

    Raises:
        BookError: if a record cannot be used.
    """
    try:
        status = status_page(lessons)
        example, figure = headline(lessons)
    except store.RecordError as error:
        raise BookError(f"a record cannot be shown: {error}") from error
    except LessonError as error:
        raise BookError(str(error)) from error
    write(BOOK / "status.md", status)
    write(GENERATED / "lessons.md", lessons_table(lessons, {}, "../notebooks"))
    write(GENERATED / "headline.md", example)
    if figure is not None:
        write(GENERATED / "headline.svg", svg(figure))


def build(output: Path, fresh: bool = False) -> Path:
    """Build the book.

    Args:
        output: folder that gets ``_build``.
        fresh: whether to throw an earlier build away first.

    Returns:
        The page to open.

    Raises:
        BookError: if anything is missing, or if Jupyter Book warns.
    """
    lessons = load_lessons()
    check_toc(lessons)
    generate(lessons)
    built = output / "_build"
    html = built / "html"
    known = {lesson.stem for lesson in lessons if lesson.built}
    gone = any(page.stem not in known for page in (html / "notebooks").glob("*.html"))
    assets = [path for suffix in ("css", "js") for path in (BOOK / "_static").glob(f"*.{suffix}")]
    copies = [(path, html / "_static" / path.name) for path in assets]
    changed = html.exists() and any(not copy.exists() or copy.read_bytes() != path.read_bytes() for path, copy in copies)
    if fresh or gone or changed:
        # Sphinx leaves the page of a notebook that is gone, where search would still find it, and the old style sheet.
        shutil.rmtree(built, ignore_errors=True)
    jupyter_book = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()"]
    command = [*jupyter_book, "build", ".", "--config", "book/_config.yml", "--toc", "book/_toc.yml"]
    command += ["--path-output", str(output), "-W", "--keep-going", "--quiet"]
    # Python's warnings about the tools' own code are not about this book; Sphinx's warnings are not affected.
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    # Warnings go to stderr and are seen at once; what Jupyter Book says besides matters only when it fails.
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
        # Sphinx does not repeat a warning about a page that it has cached: the next build must read all pages again.
        shutil.rmtree(built / ".doctrees", ignore_errors=True)
        raise BookError("the book has errors or warnings, listed above; mend them and run `make book` again")
    for source_map in html.rglob("*.map"):
        # Only the authors of the theme debug its scripts, and the maps are 40% of a small book.
        source_map.unlink()
    return html / "index.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: instead of ``sys.argv``.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m book.build", description="Build the book from the notebooks and the records."
    )
    parser.add_argument("--output", type=Path, default=BOOK, help="folder that gets _build (default: book)")
    parser.add_argument("--fresh", action="store_true", help="throw an earlier build away first")
    options = parser.parse_args(arguments)
    try:
        started = time.perf_counter()
        page = build(options.output.resolve(), options.fresh)
    except BookError as error:
        print(f"book: {error}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in page.parent.rglob("*") if path.is_file())
    seconds = time.perf_counter() - started
    print(f"The book is built: {size / 2**20:.1f} MiB in {seconds:.0f} s. Open it in a browser:\n{page.as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
