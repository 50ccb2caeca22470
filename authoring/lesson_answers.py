"""What a lesson answers, and what others published about its question, as Markdown.

README, the book, the lessons, the slides and the demos all take these texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from authoring import expressions
from authoring.expressions import EvidenceError
from authoring.lesson_files import LessonFile
from authoring.published import PublishedRow, RowSays
from authoring.rendering import rendered
from authoring.verdict_words import readers_word
from course_utils.results import store

# What did the work behind a number, as README's legend has it; "P" is for what others published.
LETTERS = {"gpu": "H", "cpu": "C", "arithmetic": "S", "simulation": "S"}


class AnswerText(NamedTuple):
    sentence: str  # with its number, a link to where the number comes from
    whose: str  # who measured it, on what and when: a sentence
    letter: str  # the same, as one of `LETTERS`


def published_rows(lessons: Sequence[LessonFile]) -> dict[str, PublishedRow]:
    """All published rows by their ids, for expressions: ``published["row"]["number"]``."""
    return {row.id: row for lesson in lessons for row in lesson.published}


def answer_text(lesson: LessonFile, lessons: Sequence[LessonFile], root: str) -> AnswerText:
    """A lesson's answer; ``root`` is the way from the text to the root of the repository, such as ``.``."""
    answer, rows = lesson.answer, published_rows(lessons)
    if answer is None:
        raise EvidenceError(f"{lesson.slug}/lesson.yml has no answer, which README begins with: write one.")
    try:
        value, rests_on = expressions.evaluate(answer.number, published=rows)
        words = expressions.in_words(value)
        if rests_on:
            slug = next(iter(rests_on))[0].partition("/")[0]
            result = expressions.newest_result(rests_on.values())
            link = f"{root}/course_utils/records/{result.environment.machine}/{slug}.json"
            whose, letter = f"Measured by us: {result.caption}.", LETTERS[result.worked_by]
            if not result.is_measured:
                whose = f"{result.who.capitalize()} by us, with torch {result.environment.torch}."
        else:
            row = next(row for row in rows.values() if f'"{row.id}"' in answer.number)
            link, whose = row.source.link, f"Published by {row.source.who}: {row.device}, {row.date}."
            letter = "P"
        return AnswerText(answer.says.format(number=f"[**{words}**]({link})"), whose, letter)
    except (EvidenceError, KeyError, StopIteration, store.RecordError) as error:
        problem = f"{lesson.slug}/lesson.yml, answer: {error or 'its number names no experiment and no published row'}"
        raise EvidenceError(problem) from error


def rows_text(rows: Sequence[PublishedRow], says: Sequence[RowSays] = ()) -> str:
    """What others published, row by row; ``says`` adds what rows mean for a claim, and why."""
    meant = {each.row.id: each for each in says}
    return rendered("pages/published_rows.md", rows=rows, says=meant, word=readers_word).strip()
