"""Figures in texts: filled from records, and checked against them.

``<!--= WHAT -->...<!--/-->`` holds one: WHAT is an expression (:mod:`authoring.expressions`), ``claim T8`` for a
verdict, ``time pinned_memory`` for a lesson's minutes, or ``published pinned_memory`` for what others published.
``make refresh`` fills in what stands between the comments, and a build of the book says what is out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from authoring import expressions
from authoring.claims import load_claims
from authoring.expressions import EvidenceError, in_words
from authoring.lesson_answers import published_rows, rows_text
from authoring.lesson_files import load_lessons
from authoring.markdown_texts import ANCHOR, one_line, passages, sentence_at
from course_utils.lesson_notebooks import Lesson, LessonError, dumped, find_lesson, read_notebook
from course_utils.results import store
from course_utils.show.suggestions import typed

WORDS_A_MINUTE = 150  # slower than a novel: code is read, too, and cells are run one by one

MARKER = re.compile(r"<!--=(?P<what>.*?)-->(?P<text>.*?)<!--/-->", re.S)
_COMMENT_OF_A_MARKER = re.compile(r"<!--=|<!--/-->")
_Fault = tuple[int, str]  # where a marker begins, and what is wrong with it
_BLOCK = re.compile(r"published (?P<slug>\w+)(?P<rows>(?: \w+)*)")
_UNFOLDED_ROWS = 3
_EXERCISE = re.compile(r"^#+ Exercise (?:\d+ )?· .+ · (?P<minutes>\d+) min\s*$", re.M)


# What a marker stands for


def reading_minutes(texts: Iterable[str]) -> float:
    """How long it takes to read Markdown and code, without what is folded, comments and the addresses of links."""
    unseen = re.compile(rf"<details>.*?</details>|<!--.*?-->|\]\([^)]*\)|{ANCHOR}", re.S)
    shown = (unseen.sub(" ", text) for text in texts)
    return sum(len(re.findall(r"\S*\w\S*", text)) for text in shown) / WORDS_A_MINUTE


def running_minutes(lesson: Lesson) -> float:
    runs = store.records_of(lesson.slug, store.reference_root())
    if not runs:
        advice = f"Run {typed(f'record {lesson.slug} --reference')}."
        raise EvidenceError(f"no machine has recorded {lesson.slug}. {advice}")
    return max(run.seconds for run in runs) / 60


def lesson_minutes(lesson: Lesson) -> float:
    """How long a lesson takes: reading it, the minutes that its exercises name, and running it."""
    cells = read_notebook(lesson.path)["cells"]
    texts = [cell["source"] for cell in cells if "hide-cell" not in cell["metadata"].get("tags", [])]
    exercises = sum(int(match["minutes"]) for text in texts for match in _EXERCISE.finditer(text))
    return reading_minutes(texts) + exercises + running_minutes(lesson)


def shown_minutes(minutes: float) -> int:
    return max(5, 5 * round(minutes / 5))


def figure(what: str) -> str:
    """The words that ``EXPRESSION``, ``claim T8``, ``time SLUG`` and ``published SLUG`` stand for."""
    if match := re.fullmatch(r"claim (\w+)", what):
        claims = {claim.id: claim for claim in load_claims()}
        if match[1] not in claims:
            raise EvidenceError(f"the ledger has no claim {match[1]!r}; it has: {', '.join(claims)}.")
        return claims[match[1]].word + ", by others" * claims[match[1]].is_by_others
    if match := re.fullmatch(r"time (\w+)", what):
        return f"{shown_minutes(lesson_minutes(find_lesson(match[1])))} minutes"
    if match := _BLOCK.fullmatch(what):
        return f"\n\n{_rows(match['slug'], match['rows'].split())}\n\n"
    value, rests_on = expressions.evaluate(what, published=published_rows(load_lessons()))
    if rests_on:
        return expressions.written(value, what)
    if "published[" not in what:
        raise EvidenceError(f"{what!r} reads no experiment: such a number needs no marker.")
    return in_words(value)


def _rows(slug: str, rows: Sequence[str]) -> str:
    known = {row.id: row for lesson in load_lessons() for row in lesson.published if lesson.slug == slug}
    if unknown := [row for row in rows if row not in known]:
        raise EvidenceError(f"{slug}/lesson.yml has no published row {unknown[0]!r}; it has: {', '.join(known)}.")
    entries = rows_text([known[row] for row in rows or known])
    if len(rows or known) <= _UNFOLDED_ROWS:
        return entries
    return f"<details><summary>What others measured, entry by entry</summary>\n\n{entries}\n\n</details>"


# Filling texts


def fill(text: str) -> tuple[str, list[_Fault]]:
    """A text with its figures as the records have them today; and where markers cannot be filled, and why."""
    faults: list[_Fault] = []

    def filled(marker: re.Match[str]) -> str:
        words = marker["text"]
        try:
            words = figure(one_line(marker["what"]))
        except (EvidenceError, LessonError) as error:
            faults.append((marker.start(), str(error)))
        return f"<!--={marker['what']}-->{words}<!--/-->"

    return MARKER.sub(filled, text), faults


def _misplaced(text: str) -> list[_Fault]:
    markers = [*MARKER.finditer(text)]
    whole = {place for marker in markers for place in (marker.start(), marker.end("text"))}
    halves = [match.start() for match in _COMMENT_OF_A_MARKER.finditer(text) if match.start() not in whole]
    faults = [(start, "half a marker. It is written <!--= what -->figure<!--/-->.") for start in halves]
    for marker in markers:
        line = text[text.rfind("\n", 0, marker.start()) + 1 : marker.start()]
        if not re.sub(r"^\s*(?:(?:[-*+>]|\d+[.)])\s+)*", "", line) and not _BLOCK.fullmatch(one_line(marker["what"])):
            # Markdown takes a line that begins with a comment for HTML, and shows the rest of it as it stands.
            faults.append((marker.start(), "a marker at the beginning of a line. Put a word before it."))
    return faults


def _faults(text: str) -> list[_Fault]:
    filled, faults = fill(text)
    faults = [*_misplaced(text), *faults]
    for before, after in zip(MARKER.finditer(text), MARKER.finditer(filled), strict=True):
        if before["text"] != after["text"]:
            differs = f"it says {before['text']!r}, and the records give {after['text']!r}"
            faults.append((before.start(), f"{differs}. Run `make refresh`, and read the sentence again."))
    return faults


def check(files: Iterable[Path]) -> list[str]:
    """One message for each figure in the files that is not the recorded one, with its sentence."""
    return [
        f'{passage.where}: "{sentence_at(passage.text, start)}": {problem}'
        for path in files
        for passage in passages(path)
        for start, problem in _faults(passage.text)
    ]


def write(files: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Fills in the figures, and returns the files that changed and what `check` still says of them."""
    changed = []
    for path in files:
        before = path.read_bytes()
        if b"<!--=" not in before:
            continue
        if path.suffix == ".ipynb":
            notebook = read_notebook(path)
            for cell in notebook["cells"]:
                if cell["cell_type"] == "markdown":
                    cell["source"] = fill(cell["source"])[0]
            after = dumped(notebook).encode()
        else:
            after = fill(before.decode())[0].encode()
        if after != before:
            path.write_bytes(after)
            changed.append(path)
    return changed, check(files)
