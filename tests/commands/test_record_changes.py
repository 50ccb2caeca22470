"""Comparing records: what changed between two machines or two dates beyond noise, and how much may be chance."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import pytest

from course_utils.commands import cli
from course_utils.commands.record_changes import (
    ANOTHER_VERDICT,
    MOVED,
    RecordChangesError,
    RecordSet,
    changes_text,
    compare_records,
    read_records,
)
from course_utils.results import store
from course_utils.results.comparison import Comparison
from course_utils.results.environment import Environment
from course_utils.results.measurement import Measurement
from course_utils.results.store import Experiment, LessonRecord
from course_utils.results.sweep import Sweep, SweepPoint
from course_utils.results.table import Table
from tests.made_up_records import CPU
from tests.sandbox import Sandbox, sandbox

__all__ = ["sandbox"]

EARLY, LATE = "2026-01-01T10:00:00+00:00", "2026-02-01T10:00:00+00:00"


def on(machine: str, **more: Any) -> Environment:
    return dataclasses.replace(CPU, machine=machine, **more)


def compared(ratio: float, noise: float = 0.002, rounds: int = 30, seed: int = 0, control: float = 1.0) -> Comparison:
    """Two cases, one of which takes ``ratio`` times as long, with independent noise; so does the A/A control."""
    draw = random.Random(f"{ratio} {seed}")

    def series(seconds: float) -> tuple[float, ...]:
        return tuple(seconds * math.exp(draw.gauss(0, noise)) for _ in range(rounds))

    cases = Measurement("plain", series(1e-3)), Measurement("tuned", series(ratio * 1e-3))
    return Comparison(cases, Measurement("plain again", series(control * 1e-3)), on("any"), name="alpha/loops")


def record(
    machine: str, at: str = EARLY, lesson: str = "alpha", size: str = "smoke", code: str = "code", **results: Any
) -> LessonRecord:
    """A record with the results given by name."""
    here = on(machine, size=size)
    experiments = {
        f"{lesson}/{name}": Experiment(
            f"{lesson}/{name}",
            result.kind,
            code,
            dataclasses.replace(result, name=f"{lesson}/{name}", environment=here).to_record(),
        )
        for name, result in results.items()
    }
    return LessonRecord(lesson, here, experiments, at, 12.5)


def side(*records: LessonRecord) -> RecordSet:
    return RecordSet("some", "made up", {each.lesson: each for each in records})


def said(text: str) -> str:
    return " ".join(text.split())


# What becomes of a ratio


@pytest.mark.parametrize(
    ("a", "b", "change"),
    [
        (compared(0.5), compared(1.5), ANOTHER_VERDICT),
        (compared(1.0), compared(1.2), ANOTHER_VERDICT),
        (compared(0.5), compared(0.7), MOVED),
        (compared(0.5), compared(0.5, seed=1), ""),
        # Another verdict, but the intervals overlap.
        (compared(1.009, noise=0.001), compared(1.012, noise=0.004), ""),
        # Intervals far apart, in a run whose A/A control is as far off: verdicts do not rest on less.
        (compared(1.0, control=1.15), compared(1.1), ""),
        (compared(0.5, control=1.5), compared(0.7), ""),
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


def test_too_few_rounds_for_an_interval_and_what_has_none_are_not_compared():
    table = Table(("case", "value"), (("row", 1000),), on("any"), {"value": "bytes"})
    a = record("a", it=compared(0.5, rounds=5), size_of=table)
    b = record("b", it=compared(2.0), size_of=dataclasses.replace(table, rows=(("row", 9000),)))
    changes = compare_records(side(a), side(b))
    assert changes.pairs == ()
    assert "There is nothing to compare." in changes_text(changes)


def test_every_point_of_a_sweep_is_compared_with_its_like():
    def sweep(*ratios: float) -> Sweep:
        points = tuple(SweepPoint(10 * (i + 1), compared(ratio)) for i, ratio in enumerate(ratios))
        return Sweep("n", points, on("any"))

    changes = compare_records(side(record("a", it=sweep(0.5, 0.5, 2.0))), side(record("b", it=sweep(0.5, 2.0))))
    assert [(pair.a.label, pair.change) for pair in changes.pairs] == [
        ("n 10: tuned, against plain", ""),
        ("n 20: tuned, against plain", ANOTHER_VERDICT),
    ]


# What a reader must know of the rest


def remarks(a: LessonRecord, b: LessonRecord) -> tuple[str, ...]:
    return compare_records(side(a), side(b)).remarks


def test_what_one_side_lacks_is_said():
    extra = record("a", lesson="beta", it=compared(0.5))
    a, b = record("a", it=compared(0.5), more=compared(0.5)), record("b", it=compared(0.5), new=compared(0.5))
    assert compare_records(side(a, extra), side(b)).remarks == (
        "Only in A: beta and alpha/more.",
        "Only in B: alpha/new.",
    )


def test_other_code_is_compared_and_said_and_other_parameters_are_not_compared():
    a, b = record("a", it=compared(0.5)), record("b", code="other", it=compared(2.0))
    (pair,) = compare_records(side(a), side(b)).pairs
    assert (pair.change, remarks(a, b)) == (ANOTHER_VERDICT, ("By other code: alpha/it.",))
    small, large = (dataclasses.replace(compared(0.5), parameters={"n": n}) for n in (1, 2))
    a, b = record("a", it=small), record("b", it=large)
    assert remarks(a, b) == ("With other parameters, and not compared: alpha/it.",)
    assert compare_records(side(a), side(b)).pairs == ()
    # At other sizes parameters differ, of course.
    b = record("b", size="full", it=large)
    assert remarks(a, b) == ("At other problem sizes, so that only ratios are compared: alpha.",)
    assert len(compare_records(side(a), side(b)).pairs) == 1


def test_one_run_on_both_sides_is_no_agreement():
    a, again = record("a", it=compared(0.5)), record("a", lesson="beta", it=compared(0.5))
    changes = compare_records(side(a, again), side(record("a", LATE, it=compared(0.5, seed=1)), again))
    assert (len(changes.pairs), changes.remarks) == (1, ("The same run on both sides: beta.",))
    with pytest.raises(RecordChangesError, match="the very same records"):
        compare_records(side(a), side(a))


# Finding records


@pytest.fixture
def box(sandbox: Sandbox) -> Sandbox:
    """Two machines in the reference records, one of which is the reader's as well."""
    store.save_lesson(record("first-cpu", it=compared(0.5)), sandbox.reference)
    store.save_lesson(record("first-cpu", lesson="beta", it=compared(0.5)), sandbox.reference)
    store.save_lesson(record("second-cpu", LATE, it=compared(2.0)), sandbox.reference)
    store.save_lesson(record("second-cpu", LATE, it=compared(0.7)), sandbox.results)
    return sandbox


def test_a_machine_and_a_folder_are_found(box):
    assert set(read_records("first-cpu").records) == {"alpha", "beta"}
    folder = box.reference / "first-cpu"
    assert read_records(str(folder)).records == read_records("first-cpu").records
    # The beginning of a name is enough where no other machine's has it.
    assert read_records("first").records == read_records("first-cpu").records


def test_own_records_and_reference_records_of_one_name_are_told_apart(box):
    with pytest.raises(RecordChangesError, match="say own:second-cpu or reference:second-cpu"):
        read_records("second-cpu")
    own, reference = read_records("own:second-cpu"), read_records("reference:second-cpu")
    assert (own.where, reference.where) == ("your own records", "the reference records")
    assert [pair.change for pair in compare_records(reference, own).pairs] == [ANOTHER_VERDICT]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("first-cup", r"did you mean 'first-cpu'\?\)\. Recorded machines: first-cpu, second-cpu"),
        (
            "own:first-cpu",
            "there is no machine 'first-cpu'. Recorded machines: second-cpu. Nor is .*'own:first-cpu'",
        ),
        ("notebooks", "there are no records in notebooks"),
    ],
)
def test_a_wrong_name_is_met_with_what_there_is(box, monkeypatch, name, message):
    monkeypatch.chdir(box.root)
    with pytest.raises(RecordChangesError, match=message):
        read_records(name)


def test_the_beginning_of_two_names_is_no_machine(box):
    store.save_lesson(record("first-gpu", it=compared(0.5)), box.reference)
    with pytest.raises(RecordChangesError, match="'first' may be first-cpu or first-gpu: write more of the name"):
        read_records("first")


def test_a_record_that_cannot_be_read_is_named_and_the_others_are_compared(box):
    (box.reference / "first-cpu" / "beta.json").write_text('{"schema_version": 99}')
    records = read_records("first-cpu")
    assert set(records.records) == {"alpha"}
    (problem,) = records.problems
    assert "schema version 99" in problem
    (box.reference / "first-cpu" / "alpha.json").unlink()
    with pytest.raises(RecordChangesError, match="schema version 99"):
        read_records("first-cpu")


# The command


def test_the_command_says_what_changed_and_how_much_may_be_chance(box, capsys):
    assert cli.main(["compare", "first-cpu", "reference:second-cpu"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "another verdict\n  alpha/it, tuned, against plain\n    A  2.00 times as fast (" in printed
    assert "    B  2.00 times as long (" in printed
    assert "Only in A: beta." in printed
    assert said(printed).endswith("1 pair of 99% intervals compared: 1 another verdict, 0 moved beyond noise.")
    assert "on average at most 0.02 of the pairs" in said(printed)
    cli.main(["compare", "first-cpu", "own:second-cpu"])
    assert "moved beyond noise\n  alpha/it, tuned, against plain (B: 1.4" in capsys.readouterr().out


# Rows


def test_no_two_rows_of_a_committed_result_share_a_label():
    for path in sorted(Path(store.package_root(), "records").glob("*/*.json")):
        lesson = store.load_lesson(path)
        for name in lesson.experiments:
            labels = [fact.label for fact in lesson.result(name).facts()]
            assert len(labels) == len(set(labels)), name
