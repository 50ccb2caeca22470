"""Published rows: what a row must say, what it may decide, and what happens when its numbers say something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from authoring import expressions
from authoring.claims import faults, judge
from authoring.expressions import in_words
from authoring.lesson_answers import answer_text, published_rows, rows_text
from authoring.lesson_files import LessonFile, LessonFileError, read_lesson
from tests import made_up_records

SOURCE = {"repository": "somebody/measured", "path": "results/copy.md", "commit": "0123abc"}
ROW = {
    "id": "somebody_gpu",
    "compared": "copies, pinned and pageable",
    "hardware": "Some GPU",
    "date": "2026-01",
    "uncontrolled": "batch differs",
    "source": SOURCE,
    "seen": "2026-11-23",
    "numbers": [
        {"name": "pinned_ms", "value": 2},
        {"name": "pageable_ms", "value": 6},
        {"name": "peak_gib", "value": 1.5, "label": "peak"},
        {"name": "gain", "value": 3.1, "low": 2.9, "high": 3.4, "unit": "ratio", "label": "median of 9"},
        {"value": "pageable_ms / pinned_ms", "unit": "ratio", "label": "pageable over pinned"},
    ],
}
CLAIM = {
    "id": "X1",
    "claim": "It is faster.",
    "speaks_of": "CUDA",
    "verdict": "published",
    "sentence": "It is.",
    "published": [{"row": "somebody_gpu", "confirmed": "pinned_ms < pageable_ms"}],
}


@pytest.fixture
def lesson(tmp_path: Path):
    """Writes a lesson with rows and claims, and reads it."""

    def read(rows: list[dict[str, Any]], *entries: dict[str, Any], **more: Any) -> LessonFile:
        (tmp_path / "order.yml").write_text("In practice:\n  - trial\n", encoding="utf-8")
        path = tmp_path / "trial" / "lesson.yml"
        path.parent.mkdir(exist_ok=True)
        content = {"title": "A trial", "question": "Is it?", "published": rows, "claims": list(entries), **more}
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return read_lesson(path)

    return read


def test_a_number_has_the_unit_of_its_names_ending_and_is_read_by_name_or_label(lesson):
    rows = published_rows([lesson([ROW])])
    for expression, value, words in (
        ('published["somebody_gpu"]["pinned_ms"]', 0.002, "2.00 ms"),
        ('published["somebody_gpu"]["peak"]', 1.5 * 2**30, "1.50 GiB"),
        ('published["somebody_gpu"]["pageable over pinned"]', 3, "3.00"),
        ('published["somebody_gpu"]["gain"]', 3.1, "3.10 (2.90 to 3.40)"),
        ('published["somebody_gpu"]["pageable_ms"] - published["somebody_gpu"]["pinned_ms"]', 0.004, "0.004"),
    ):
        found = expressions.evaluate(expression, published=rows).value
        assert (found, in_words(found)) == (pytest.approx(value), words)


def test_a_name_ends_with_the_unit_in_which_its_source_prints_the_number(lesson):
    shown = {"s": "2.00 s", "ms": "2.00 ms", "us": "2.00 µs", "min": "120 s", "x": "2.00", "percent": "2%"}
    shown |= {"kib": "2.00 KiB", "mib": "2.00 MiB", "gib": "2.00 GiB", "gbs": "2.00 GB/s", "tflops": "2.00 TFLOP/s"}
    shown |= {"kb": "1.95 KiB", "mb": "1.91 MiB", "gb": "1.86 GiB"}
    numbers = [{"name": f"it_{ending}", "value": 2, "label": ending} for ending in shown]
    assert dict(lesson([ROW | {"numbers": numbers}]).published[0].shown) == shown


def test_rows_answer_where_no_record_of_ours_does(lesson):
    (claim,) = lesson([ROW], CLAIM).claims
    judged = judge(claim)
    assert (judged.verdict, faults([judged]), judged.disagreeing) == ("published", [], ())
    numbers = [{"name": "pinned_ms", "value": 6}, {"name": "pageable_ms", "value": 2}]
    against = ROW | {"id": "other", "numbers": numbers}
    says = {"row": "other", "refuted": "pinned_ms > pageable_ms"}
    (claim,) = lesson([against], CLAIM | {"published": [says], "verdict": "published otherwise"}).claims
    assert (judge(claim).verdict, claim.word, claim.is_by_others) == ("published otherwise", "No", True)
    both = CLAIM | {"published": [*CLAIM["published"], says], "verdict": "depends (published)"}
    (claim,) = lesson([ROW, against], both).claims
    assert (judge(claim).verdict, faults([judge(claim)])) == ("depends (published)", [])


def test_our_own_record_decides_and_a_disagreement_is_shown(lesson, no_records):
    recorded = made_up_records.table("caching_allocator/gap", [{"setting": "default", "retries": 3}])
    made_up_records.write(no_records, made_up_records.GPU, [recorded])
    holds = 'recorded("caching_allocator/gap", "some-gpu")["default"]["retries"] == 0'
    (claim,) = lesson([ROW], CLAIM | {"holds": holds, "verdict": "refuted"}).claims
    judged = judge(claim)
    assert (judged.verdict, faults([judged])) == ("refuted", [])
    assert [says.row.id for says in judged.disagreeing] == ["somebody_gpu"]


def test_numbers_that_do_not_bear_out_what_a_row_is_said_to_say_are_a_fault(lesson):
    condition = "gain.low > 3"
    wrong = CLAIM | {"published": [{"row": "somebody_gpu", "confirmed": condition}]}
    (fault,) = faults([judge(lesson([ROW], wrong).claims[0])])
    assert f"row 'somebody_gpu' says 'confirmed', but its numbers do not bear out {condition!r}" in fault


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hardware": " "}, "hardware is empty"),
        ({"date": "spring"}, "date 'spring'"),
        ({"source": {**SOURCE, "commit": "main"}}, "the commit at which the file was read"),
        ({"source": {**SOURCE, "repository": "measured"}}, "owner/name"),
        ({"source": {"address": "some.org/copies", "title": "Copies"}}, "begins with https"),
        ({"source": {"address": "https://some.org/copies"}}, "an address has a title"),
        ({"numbers": [{"name": "a", "value": None}]}, "None is no number"),
        ({"numbers": [{"value": 1}]}, "neither a name nor a label"),
    ],
)
def test_a_row_that_lacks_what_a_reader_needs_is_named(change, message, lesson):
    with pytest.raises(LessonFileError, match=f"published somebody_gpu: .*{message}"):
        lesson([ROW | change])


def test_a_row_shows_its_numbers_with_all_that_is_not_stated(lesson):
    text = rows_text(lesson([ROW]).published)
    assert ": peak **1.50 GiB**; median of 9 **3.10 (2.90 to 3.40)**; pageable over pinned **3.00**.<br>" in text
    assert "Some GPU · versions not stated · 2026-01 · number of runs not stated" in text
    assert "Not controlled: batch differs." in text
    link = "[somebody/measured, copy.md](https://github.com/somebody/measured/blob/0123abc/results/copy.md) at 0123abc"
    assert f"{link}, read on 2026-11-23." in text
    (claim,) = lesson([ROW], CLAIM).claims
    assert "It says *Holds*, because `pinned_ms < pageable_ms`." in rows_text([claim.published[0].row], claim.published)


def test_an_answer_carries_its_number_with_a_link_to_where_it_comes_from(lesson):
    number = 'quantity(published["somebody_gpu"]["pageable_ms"] / published["somebody_gpu"]["pinned_ms"], "ratio")'
    trial = lesson([ROW], answer={"says": "It takes {number} as long.", "number": number})
    text = answer_text(trial, [trial], "..")
    assert text.sentence == f"It takes [**3.00**]({trial.published[0].source.link}) as long."
    assert (text.whose, text.letter) == ("Published by somebody/measured: Some GPU, 2026-01.", "P")
