"""Build the book: generate the pages that come from records, run Jupyter Book, say where to open it.

``make book`` runs this module with the Python of the virtual environment. What is generated and committed (the ledger's
page, the table of contents, parts of README.md) is only checked here; ``make refresh`` writes it.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from authoring import claims, figures_in_text
from authoring.claims import Judgement
from authoring.course_texts import text_files
from authoring.evidence import EvidenceError
from authoring.lesson_files import LessonFile, LessonFileError, load_lessons
from authoring.pages import instructors
from authoring.pages.claims_page import PAGE, claims_page, summary
from authoring.pages.evidence_pages import evidence_pages
from authoring.pages.generated import BOOK, ROOT, BookError, holds, write
from authoring.pages.readme import TOC, for_the_book, table_of_contents
from authoring.pages.stored_outputs import stale_notebooks
from authoring.rendering import rendered
from course_utils.lesson_notebooks import LessonError, experiments, find_lessons, needs
from course_utils.results import store
from own_program import file_reader
from own_program.page import pack

GENERATED = BOOK / "_generated"
PROBLEMS = (BookError, EvidenceError, LessonError, LessonFileError, pack.PageError, store.RecordError)


def check(lessons: Sequence[LessonFile], judgements: Sequence[Judgement]) -> None:
    """Raise where the book would show what the records do not bear out."""
    paths = store.reference_root().glob("*/*.json")
    recorded = {name for path in paths for name in store.load_lesson(path).experiments}
    for lesson in find_lessons():
        # What needs a special machine may wait for one; the rest anybody can record.
        if gone := [name for name in experiments(lesson) if name not in recorded and name not in needs(lesson)]:
            raise BookError(
                f"no machine has a record of {', '.join(gone)}, which {lesson.path.name} shows: restore it from git, "
                f'or run `make record ARGS="{lesson.name} --reference"`'
            )
    if faults := claims.faults(judgements):
        raise BookError("\n  ".join(["the ledger and the records part; correct each lesson.yml:", *faults]))
    if faults := figures_in_text.check(text_files(ROOT)):
        raise BookError("\n  ".join(["figures in texts and the records part; run `make refresh`:", *faults]))
    out_of_date = [f"notebooks/{lesson.stem}.ipynb" for lesson in stale_notebooks(lessons)]
    pages = {PAGE: claims_page(judgements, lessons), **evidence_pages(judgements, lessons)}
    out_of_date += [path.relative_to(ROOT).as_posix() for path, text in pages.items() if not holds(path, text)]
    if out_of_date:
        raise BookError(f"{', '.join(out_of_date)}: made from other records than there are now. Run `make refresh`")


def generate(judgements: Sequence[Judgement], reads_files: bool) -> None:
    """Write the generated pages that are not committed, and what other pages include."""
    write(GENERATED / "readme.md", for_the_book())
    write(GENERATED / "claims.md", summary(judgements))
    for name, text in {**instructors.generated(), **own_program_parts(reads_files)}.items():
        write(GENERATED / name, text)


def own_program_parts(can_run: bool) -> dict[str, str]:
    """The parts that ``book/own_program.md`` includes, by file name."""
    return {
        "own_program_reader.md": rendered("pages/own_program.md", can_run=can_run, script=pack.SCRIPT.as_posix()),
        "own_program_example.html": file_reader.html(file_reader.example(), "../notebooks/{}.html"),
    }


def build(output: Path, fresh: bool = False) -> Path:
    """Build the book below ``output/_build``, and return the page to open."""
    html = output / "_build" / "html"
    lessons = load_lessons()
    if TOC.read_text(encoding="utf-8") != table_of_contents(lessons):
        raise BookError("book/_toc.yml is out of date: run `make refresh` and commit it")
    judgements = claims.judge_all(lessons)
    check(lessons, judgements)
    try:
        python = pack.python()
    except pack.NoPyodideError as error:
        print(f'The page "Your own program" will read no files, and says so. {error}', file=sys.stderr)
        python = None
    generate(judgements, reads_files=python is not None)
    if fresh or _is_outdated(html, lessons):
        shutil.rmtree(output / "_build", ignore_errors=True)
    render(output)
    instructors.add_slides(html)
    pack.add_to(html, python)
    for source_map in html.rglob("*.map"):
        # Only the authors of the theme debug its scripts, and the maps are 40% of a small book.
        source_map.unlink()
    return html / "index.html"


def _is_outdated(html: Path, lessons: Sequence[LessonFile]) -> bool:
    """Whether an earlier build has what Sphinx would leave: the page of a notebook that is gone, an old style sheet."""
    built = {lesson.stem for lesson in lessons if lesson.built}
    if any(page.stem not in built for page in (html / "notebooks").glob("*.html")):
        return True
    written = {path.stem for path in (BOOK / "reference").glob("*.md")}
    if any(page.stem not in written for page in (html / "book" / "reference").glob("*.html")):
        return True
    assets = [path.name for path in (BOOK / "_static").iterdir() if path.suffix in (".css", ".js")]
    return html.exists() and any(filecmp.cmpfiles(BOOK / "_static", html / "_static", assets, shallow=False)[1:])


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
    parser = argparse.ArgumentParser(
        prog="python -m authoring.pages.build", description="Build the book from the notebooks and the records."
    )
    parser.add_argument("--output", type=Path, default=BOOK, help="folder that gets _build (default: book)")
    parser.add_argument("--fresh", action="store_true", help="throw an earlier build away first")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        page = build(options.output.resolve(), options.fresh)
    except PROBLEMS as error:
        print(f"book: {error}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in page.parent.rglob("*") if path.is_file())
    seconds = time.perf_counter() - started
    print(f"The book is built: {size / 2**20:.1f} MiB in {seconds:.0f} s. Open it in a browser:\n{page.as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
