"""Plain expressions: what they read, how they are written, and what is said of one that cannot be worked out."""

from __future__ import annotations

import pytest

from authoring import expressions
from authoring.expressions import EvidenceError, NotRecordedError, Quantity, evaluate, in_words, recorded_experiment
from course_utils.results.store import recorded
from tests import made_up_records
from tests.made_up_records import edit_record

COPY = 'recorded("pinned_memory/copy", machine="some-gpu")'
GIVEN_BACK = 'recorded("caching_allocator/gap", "some-gpu")["default"]["given back"]'


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
        (f'us({COPY}[4]["pageable"].median_s / 1e6)', "8.00 µs"),
        (f'times({COPY}[1024]["pinned"].speedup)', "2.00 times"),
        (f'percent({COPY}[4]["pinned"].median_s / {COPY}[4]["pageable"].median_s / 4)', "12%"),
        (f"gib({GIVEN_BACK})", "1.50 GiB"),
        (f"mib({GIVEN_BACK})", "1536 MiB"),
        (f"len({COPY}.points)", "2"),
    ],
)
def test_a_figure_is_written_as_it_says(expression, words, root):
    assert expressions.written(evaluate(expression, root).value, expression) == words


@pytest.mark.parametrize(
    ("expression", "error", "message"),
    [
        ('recorded("pinned_memory/copy")[4]', EvidenceError, 'names no machine.*write recorded.*"machine"'),
        (f"{COPY}[4", EvidenceError, "cannot be read as Python"),
        (f'{COPY}[5]["pinned"]', EvidenceError, r"cannot be worked out: .*5.*Correct it"),
        (f'seconds({COPY}[4]["pinned"].median_s)', EvidenceError, "'seconds' is not defined"),
        (f'{COPY}[4]["pinned"].median_s', EvidenceError, r"gives \d.*write it with one of us\(...\), ms\(...\)"),
        ("quantity(1, 'stones')", EvidenceError, "no unit 'stones'"),
        ('recorded("pinned_memory/copy", "nowhere")', EvidenceError, "no machine 'nowhere'"),
        ('recorded("pinned_memory/copi", "some-gpu")', EvidenceError, "no experiment 'pinned_memory/copi'"),
        ('recorded("pinned_memory/arrived_batch", "some-gpu")', NotRecordedError, "Run `course record pinned_memory"),
    ],
)
def test_one_that_cannot_be_worked_out_says_what_to_do(expression, error, message, root):
    with pytest.raises(error, match=message):
        expressions.written(evaluate(expression, root).value, expression)


def test_a_condition_names_what_it_rests_on_and_the_numbers_that_it_reads(root):
    condition = f'{COPY}[4]["pinned"].median_s < 5 and all(point.value for point in {COPY}.points)'
    value, rests_on = evaluate(condition, root)
    assert (value, list(rests_on)) == (True, [("pinned_memory/copy", "some-gpu")])
    assert {*expressions.experiments_in(f"{condition} and {GIVEN_BACK}")} == {
        "pinned_memory/copy",
        "caching_allocator/gap",
    }
    assert expressions.machines_in(f"{condition} and {GIVEN_BACK}") == {"'some-gpu'"}
    (number,) = expressions.numbers_of(condition, root)
    assert number == ("pinned_memory/copy[4]['pinned'].median_s", "some-gpu", "4.00 s")
    ((_, _, words),) = expressions.numbers_of(f"{GIVEN_BACK} > 0", root)
    assert words == "1.50 GiB"


def test_another_machine_can_take_the_place_of_the_named_one(root):
    made_up_records.write(
        root, made_up_records.CPU, [made_up_records.table("caching_allocator/gap", [{"a": 1, "b": 2}])]
    )
    elsewhere = 'recorded("caching_allocator/gap", "nowhere").rows[0][1]'
    value, rests_on = evaluate(elsewhere, root, on="some-cpu")
    assert (value, [*rests_on]) == (2, [("caching_allocator/gap", "some-cpu")])


def test_a_damaged_record_and_changed_code_are_told_apart_from_a_missing_one(root):
    path = root / "some-gpu" / "caching_allocator.json"
    assert not recorded_experiment("caching_allocator/gap", "some-gpu", root).is_of_other_code
    edit_record(path, lambda experiments: experiments["caching_allocator/gap"].update(code_hash="other"))
    assert recorded_experiment("caching_allocator/gap", "some-gpu", root).is_of_other_code
    path.write_text("{", encoding="utf-8")
    with pytest.raises(EvidenceError, match=r"caching_allocator.json cannot be read") as error:
        recorded_experiment("caching_allocator/gap", "some-gpu", root)
    assert not isinstance(error.value, NotRecordedError)


def test_in_words_has_the_words_of_the_house():
    cases = [case for point in recorded("torch_compile/workloads").points for case in point.comparison]
    shown = {"FASTER": "times as fast (", "SLOWER": "times as long (", "SAME": "the same (within "}
    shown["UNCLEAR"] = "too close to call"
    for case in cases:
        assert ("the baseline" if case.is_baseline else shown[case.verdict]) in in_words(case)
    assert (in_words(False), in_words(None), in_words(0.25, "percent")) == ("no", "–", "25%")
    assert (in_words(Quantity(0.25, "percent")), in_words(Quantity(2, "ratio", 1, 4))) == (
        "25%",
        "2.00 (1.000 to 4.00)",
    )
    with pytest.raises(EvidenceError, match="a whole Comparison"):
        in_words(recorded("torch_compile/mlp"))


def test_what_a_cpu_did_beside_a_gpu_is_not_said_to_be_the_gpus():
    """`pinned_memory` times a read on the CPU and copies on the GPU; one record holds both."""
    read, copy = (recorded_experiment(f"pinned_memory/{name}", "nvidia-h200") for name in ("arrived_batch", "copy"))
    for found, name in [((read,), "Intel"), ((copy,), "NVIDIA"), ((read, copy), "NVIDIA")]:
        assert expressions.newest_result(found).caption.startswith(name)
