"""Comparing records: what changed between two machines or two dates beyond noise, and how much may be chance."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

import pytest

from course_utils.commands import CommandError, cli
from course_utils.commands.record_changes import ANOTHER_VERDICT, MOVED, RecordSet, compare_records, read_records
from course_utils.results import store
from course_utils.results.comparison import Comparison
from course_utils.results.measurement import Measurement
from course_utils.results.store import Experiment, LessonRecord
from tests.made_up_records import CPU
from tests.sandbox import Sandbox, sandbox

__all__ = ["sandbox"]


def compared(ratio: float, noise: float = 0.002, rounds: int = 30, seed: int = 0, control: float = 1.0) -> Comparison:
    """Two cases, one of which takes ``ratio`` times as long, with independent noise; so does the A/A control."""
    draw = random.Random(f"{ratio} {seed}")

    def series(seconds: float) -> tuple[float, ...]:
        return tuple(seconds * math.exp(draw.gauss(0, noise)) for _ in range(rounds))

    cases = Measurement("plain", series(1e-3)), Measurement("tuned", series(ratio * 1e-3))
    return Comparison(cases, Measurement("plain again", series(control * 1e-3)), CPU, name="alpha/loops")


def record(
    machine: str, lesson: str = "alpha", size: str = "smoke", code: str = "code", **results: Comparison
) -> LessonRecord:
    """A record with the results given by name."""
    here = dataclasses.replace(CPU, machine=machine, size=size)
    experiments = {}
    for name, result in results.items():
        named = dataclasses.replace(result, name=f"{lesson}/{name}", environment=here)
        experiments[named.name] = Experiment(named.name, result.kind, code, named.to_record())
    return LessonRecord(lesson, here, experiments, "2026-01-01T10:00:00+00:00", 12.5)


def side(*records: LessonRecord) -> RecordSet:
    return RecordSet("some", {each.lesson: each for each in records})


@pytest.mark.parametrize(
    ("a", "b", "change"),
    [
        (compared(0.5), compared(1.5), ANOTHER_VERDICT),
        (compared(0.5), compared(0.7), MOVED),
        (compared(0.5), compared(0.5, seed=1), ""),
        # Another verdict, but the intervals overlap.
        (compared(1.009, noise=0.001), compared(1.012, noise=0.004), ""),
        # Intervals far apart, in a run whose A/A control is as far off: verdicts do not rest on less.
        (compared(1.0, control=1.15), compared(1.1), ""),
        # Apart, and by less than anybody cares about.
        (compared(1.0, noise=0.0001), compared(1.004, noise=0.0001), ""),
        # To and from unclear is no change of mind; the number may have moved all the same.
        (compared(0.8, noise=0.5), compared(0.8), ""),
        (compared(1.2, control=1.3), compared(0.5), MOVED),
    ],
)
def test_a_ratio_changed_only_if_the_intervals_are_apart(a, b, change):
    for one, other in ((a, b), (b, a)):
        (pair,) = compare_records(side(record("a", it=one)), side(record("b", it=other))).pairs
        assert pair.change == change


def test_too_few_rounds_for_an_interval_are_not_compared():
    a, b = record("a", it=compared(0.5, rounds=5)), record("b", it=compared(2.0))
    assert compare_records(side(a), side(b)).pairs == ()


def test_a_reader_learns_what_one_side_lacks_and_what_is_not_alike():
    def remarks(a: LessonRecord, b: LessonRecord) -> tuple[str, ...]:
        return compare_records(side(a), side(b)).remarks

    a, b = record("a", it=compared(0.5), more=compared(0.5)), record("b", it=compared(0.6), new=compared(0.5))
    assert remarks(a, b) == ("Only in A: alpha/more.", "Only in B: alpha/new.")
    a, b = record("a", it=compared(0.5)), record("b", code="other", it=compared(2.0))
    assert remarks(a, b) == ("By other code: alpha/it.",)
    small, large = (dataclasses.replace(compared(0.5), parameters={"n": n}) for n in (1, 2))
    a, b = record("a", it=small), record("b", it=large)
    assert remarks(a, b) == ("With other parameters, and not compared: alpha/it.",)
    # At other sizes parameters differ, of course.
    b = record("b", size="full", it=large)
    assert remarks(a, b) == ("At other problem sizes, so that only ratios are compared: alpha/it.",)
    assert len(compare_records(side(a), side(b)).pairs) == 1


def test_one_run_on_both_sides_is_no_agreement():
    a, again = record("a", it=compared(0.5)), record("a", lesson="beta", it=compared(0.5))
    changes = compare_records(side(a, again), side(record("a", it=compared(0.5, seed=1)), again))
    assert (len(changes.pairs), changes.remarks) == (1, ("The same run on both sides: beta/it.",))
    with pytest.raises(CommandError, match="the very same records"):
        compare_records(side(a), side(a))


@pytest.fixture
def box(sandbox: Sandbox) -> Sandbox:
    """Two machines in the reference records, one of which is the reader's as well."""
    store.save_lesson(record("first-cpu", it=compared(0.5)), sandbox.reference)
    store.save_lesson(record("first-cpu", lesson="beta", it=compared(0.5)), sandbox.reference)
    store.save_lesson(record("second-cpu", it=compared(2.0)), sandbox.reference)
    store.save_lesson(record("second-cpu", it=compared(0.7)), sandbox.results)
    return sandbox


def test_a_machine_its_beginning_and_a_folder_are_found_and_own_records_told_apart(box):
    assert set(read_records("first").records) == {"alpha", "beta"}
    assert read_records(str(box.reference / "first-cpu")).records == read_records("first-cpu").records
    with pytest.raises(CommandError, match="say own:second-cpu or reference:second-cpu"):
        read_records("second-cpu")
    own, reference = read_records("own:second-cpu"), read_records("reference:second-cpu")
    assert [pair.change for pair in compare_records(reference, own).pairs] == [ANOTHER_VERDICT]


def test_the_command_says_what_changed_and_how_much_may_be_chance(box, capsys):
    assert cli.main(["compare", "first-cpu", "reference:second-cpu"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "another verdict\n  alpha/it, tuned, against plain\n    A  2.00 times as fast (" in printed
    assert "    B  2.00 times as long (" in printed
    assert "Only in A: beta/it." in printed
    said = " ".join(printed.split())
    assert "Pairs of 99% intervals that were compared: 1; 1 another verdict, 0 moved beyond noise." in said
    assert "on average at most 0.02 of them" in said
    cli.main(["compare", "first-cpu", "own:second-cpu"])
    assert "moved beyond noise\n  alpha/it, tuned, against plain (B: 1.4" in capsys.readouterr().out


def test_no_two_rows_of_a_committed_result_share_a_label():
    for path in sorted(Path(store.package_root(), "records").glob("*/*.json")):
        lesson = store.load_lesson(path)
        for name in lesson.experiments:
            labels = [fact.label for fact in lesson.result(name).facts()]
            assert len(labels) == len(set(labels)), name
