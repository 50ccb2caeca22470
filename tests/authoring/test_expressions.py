"""Plain expressions: what they read, how they are written, and what is said of one that cannot be worked out."""

from __future__ import annotations

import dataclasses

import pytest

from authoring import expressions
from authoring.expressions import EvidenceError, NotRecordedError, evaluate, recorded_experiment
from tests import made_up_records
from tests.made_up_records import edit_record

COPY = 'recorded("pinned_memory/copy", machine="some-gpu")'
GIVEN_BACK = 'recorded("caching_allocator/gap", "some-gpu")["default"]["given back"]'


@pytest.fixture
def root(no_records):
    sweep = made_up_records.sweep("pinned_memory/copy", [4, 1024], lambda kib: {"pageable": kib * 2.0, "pinned": kib})
    peak = {"setting": "default", "given back": 3 * 2**29}
    table = made_up_records.table("caching_allocator/gap", [peak], {"given back": "bytes"})
    return made_up_records.write(no_records, made_up_records.GPU, [sweep, table])


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (f'ms({COPY}[4]["pageable"].median_s / 1e6)', "0.00800 ms"),
        (f'times({COPY}[1024]["pinned"].speedup)', "2.00 times"),
        (f'percent({COPY}[4]["pinned"].median_s / {COPY}[4]["pageable"].median_s / 4)', "12%"),
        (f"gib({GIVEN_BACK})", "1.50 GiB"),
        (f"mib({GIVEN_BACK})", "1536 MiB"),
    ],
)
def test_a_figure_is_written_as_it_says(expression, words, root):
    assert expressions.written(evaluate(expression).value, expression) == words


@pytest.mark.parametrize(
    ("expression", "error", "message"),
    [
        ('recorded("pinned_memory/copy")[4]', EvidenceError, "missing 1 required positional argument: 'machine'"),
        (f'{COPY}[5]["pinned"]', EvidenceError, r"cannot be worked out: .*5.*Correct it"),
        (f'{COPY}[4]["pinned"].median_s', EvidenceError, r"gives \d.*write it with one of us\(...\), ms\(...\)"),
        ('recorded("pinned_memory/copy", "nowhere")', EvidenceError, "no machine 'nowhere'"),
        ('recorded("pinned_memory/copi", "some-gpu")', EvidenceError, "has no experiment 'pinned_memory/copi'"),
        ('recorded("pinned_memory/arrived_batch", "some-gpu")', NotRecordedError, "Run `course record pinned_memory"),
    ],
)
def test_one_that_cannot_be_worked_out_says_what_to_do(expression, error, message, root):
    with pytest.raises(error, match=message):
        expressions.written(evaluate(expression).value, expression)


def test_a_condition_names_what_it_rests_on_and_the_numbers_that_it_reads(root):
    condition = f'{COPY}[4]["pinned"].median_s < 5 and all(point.value for point in {COPY}.points)'
    value, rests_on = evaluate(condition)
    assert (value, list(rests_on)) == (True, [("pinned_memory/copy", "some-gpu")])
    assert {*expressions.experiments_in(f"{condition} and {GIVEN_BACK}")} == {
        "pinned_memory/copy",
        "caching_allocator/gap",
    }
    (number,) = expressions.numbers_of(condition)
    assert number == ("pinned_memory/copy[4]['pinned'].median_s", "some-gpu", "4.00 s")
    ((_, _, words),) = expressions.numbers_of(f"{GIVEN_BACK} > 0")
    assert words == "1.50 GiB"


def test_a_number_is_said_to_come_from_the_newest_record(root):
    names = ("pinned_memory/copy", "caching_allocator/gap")
    older, newer = (recorded_experiment(name, "some-gpu") for name in names)
    newer = newer._replace(record=dataclasses.replace(newer.record, recorded_at="2027-01-01"))
    assert expressions.newest_result([older, newer]) is newer.result


def test_a_damaged_record_and_changed_code_are_told_apart_from_a_missing_one(root):
    path = root / "some-gpu" / "caching_allocator.json"
    assert not recorded_experiment("caching_allocator/gap", "some-gpu").is_of_other_code
    edit_record(path, lambda experiments: experiments["caching_allocator/gap"].update(code_hash="other"))
    assert recorded_experiment("caching_allocator/gap", "some-gpu").is_of_other_code
    path.write_text("{", encoding="utf-8")
    with pytest.raises(EvidenceError, match=r"caching_allocator.json cannot be read") as error:
        recorded_experiment("caching_allocator/gap", "some-gpu")
    assert not isinstance(error.value, NotRecordedError)
