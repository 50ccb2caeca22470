"""Plain expressions: what they read, how they are written, and what is said of one that cannot be worked out."""

from __future__ import annotations

import pytest

from authoring import expressions
from authoring.expressions import EvidenceError, NotRecordedError
from tests import made_up_records

COPY = 'recorded("pinned_memory/copy", machine="some-gpu")'


@pytest.fixture
def root(tmp_path):
    sweep = made_up_records.sweep("pinned_memory/copy", [4, 1024], lambda kib: {"pageable": kib * 2.0, "pinned": kib})
    peak = {"setting": "default", "given back": 3 * 2**29}
    table = made_up_records.table("caching_allocator/gap", [peak], {"given back": "bytes"})
    return made_up_records.write(tmp_path, made_up_records.GPU, [sweep, table])


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (f'ms({COPY}[4]["pageable"].median_s / 1e6)', "0.00800 ms"),
        (f'times({COPY}[1024]["pinned"].speedup)', "2.00 times"),
        (f'percent({COPY}[4]["pinned"].median_s / {COPY}[4]["pageable"].median_s / 4)', "12%"),
        ('gib(recorded("caching_allocator/gap", "some")["default"]["given back"])', "1.50 GiB"),
        (f"len({COPY}.points)", "2"),
    ],
)
def test_a_figure_is_written_as_it_says(expression, words, root):
    assert expressions.written(expressions.evaluate(expression, root).value, expression) == words


@pytest.mark.parametrize(
    ("expression", "error", "message"),
    [
        ('recorded("pinned_memory/copy")[4]', EvidenceError, 'names no machine.*write recorded.*"machine"'),
        (f"{COPY}[4", EvidenceError, "cannot be read as Python"),
        (f'{COPY}[5]["pinned"]', EvidenceError, r"cannot be worked out: .*5.*Correct it"),
        (f'ms({COPY}[4]["pind"].median_s)', EvidenceError, "pind"),
        (f'seconds({COPY}[4]["pinned"].median_s)', EvidenceError, "'seconds' is not defined"),
        (
            f'{COPY}[4]["pinned"].median_s',
            EvidenceError,
            r"gives \d.*write it with one of us\(...\), ms\(...\), percent",
        ),
        ('recorded("pinned_memory/copy", "nowhere")', EvidenceError, "no machine 'nowhere'"),
        ('recorded("pinned_memory/copi", "some-gpu")', EvidenceError, "no experiment 'pinned_memory/copi'"),
        ('recorded("pinned_memory/arrived_batch", "some-gpu")', NotRecordedError, "Run `course record pinned_memory"),
    ],
)
def test_one_that_cannot_be_worked_out_says_what_to_do(expression, error, message, root):
    with pytest.raises(error, match=message):
        expressions.written(expressions.evaluate(expression, root).value, expression)


def test_a_condition_names_what_it_rests_on_and_the_numbers_that_it_reads(root):
    condition = f'{COPY}[4]["pinned"].median_s < 5 and all(point.value for point in {COPY}.points)'
    value, rests_on = expressions.evaluate(condition, root)
    assert (value, list(rests_on)) == (True, [("pinned_memory/copy", "some-gpu")])
    (number,) = expressions.numbers_of(condition, root)
    assert number == ("pinned_memory/copy[4]['pinned'].median_s", "some-gpu", "4.00 s")
    in_a_table = 'recorded("caching_allocator/gap", "some-gpu")["default"]["given back"]'
    ((_, _, words),) = expressions.numbers_of(f"{in_a_table} > 0", root)
    assert words == "1.50 GiB"
