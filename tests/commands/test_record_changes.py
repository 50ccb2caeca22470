"""Comparing records: which verdicts changed between two machines or two dates, and how much of it may be chance."""

from __future__ import annotations

import dataclasses
import math
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from course_utils.commands import cli, record_changes
from course_utils.commands.record_changes import (
    Kind,
    RecordChangesError,
    RecordSet,
    compare_records,
    read_records,
)
from course_utils.records import store
from course_utils.records.kinds.comparison import Comparison
from course_utils.records.kinds.curves import Curve, Curves
from course_utils.records.kinds.environment import Environment
from course_utils.records.kinds.measurement import Measurement
from course_utils.records.kinds.sweep import Sweep, SweepPoint
from course_utils.records.kinds.table import Table
from course_utils.records.store import Experiment, LessonRecord
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


def record(machine: str, at: str = EARLY, lesson: str = "alpha", size: str = "smoke", **results: Any) -> LessonRecord:
    """A record with the results given by name; a tuple holds a result, the hash of its code and of its parameters."""
    experiments = {}
    for name, given in results.items():
        result, code, parameters = given if isinstance(given, tuple) else (given, "code", "parameters")
        data = {key: value for key, value in result.to_record().items() if key != "environment"}
        full = f"{lesson}/{name}"
        experiments[full] = Experiment(full, result.kind, code, parameters, data | {"name": full})
    return LessonRecord(lesson, on(machine, size=size), experiments, at, 12.5)


def side(*records: LessonRecord) -> RecordSet:
    return RecordSet("some", "made up", {each.lesson: each for each in records})


def only_change(a: Any, b: Any) -> record_changes.Change:
    """What becomes of an experiment with one row."""
    (change,) = compare_records(side(record("a", it=a)), side(record("b", it=b))).changes
    return change


# What becomes of a ratio


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        (compared(0.5), compared(1.5), Kind.CHANGED),
        (compared(1.0), compared(1.2), Kind.CHANGED),
        (compared(0.5), compared(0.7), Kind.MOVED),
        (compared(0.5), compared(0.5, seed=1), Kind.SAME),
        # Another verdict, but the intervals overlap.
        (compared(1.009, noise=0.001), compared(1.012, noise=0.004), Kind.WITHIN_NOISE),
        # Intervals far apart, in a run whose A/A control is as far off: verdicts do not rest on less.
        (compared(1.0, control=1.15), compared(1.1), Kind.WITHIN_NOISE),
        (compared(0.5, control=1.5), compared(0.7), Kind.SAME),
        # Apart, and by less than anybody cares about.
        (compared(1.0, noise=0.0001), compared(1.004, noise=0.0001), Kind.SAME),
    ],
)
def test_a_verdict_changed_only_if_the_intervals_are_apart(a, b, kind):
    assert only_change(a, b).kind is kind
    assert only_change(b, a).kind is kind


@pytest.mark.parametrize(
    ("unclear", "clear", "note"),
    [
        (compared(0.8, noise=0.5), compared(0.8), ""),
        # Too few rounds for an interval: nothing can be said to have changed.
        (compared(0.5, rounds=5), compared(2.0), ""),
        # Unclear for its own control, and elsewhere all the same.
        (compared(1.2, control=1.3), compared(0.5), "B: 2.4"),
    ],
)
def test_to_and_from_unclear_is_no_change_of_mind(unclear, clear, note):
    change = only_change(unclear, clear)
    assert (change.kind, bool(change.note)) == (Kind.UNCLEAR, bool(note))
    assert change.note.startswith(note)
    assert only_change(clear, unclear).kind is Kind.UNCLEAR


def test_every_point_of_a_sweep_is_compared_with_its_like():
    def sweep(*ratios: float) -> Sweep:
        points = tuple(SweepPoint(10 * (i + 1), compared(ratio)) for i, ratio in enumerate(ratios))
        return Sweep("n", points, on("any"))

    changes = compare_records(side(record("a", it=sweep(0.5, 0.5, 2.0))), side(record("b", it=sweep(0.5, 2.0))))
    assert [(change.row, change.kind) for change in changes.changes] == [
        ("n 10: tuned, against plain", Kind.SAME),
        ("n 20: tuned, against plain", Kind.CHANGED),
        ("n 30: tuned, against plain", Kind.ONE_SIDE),
    ]
    assert changes.intervals_compared == 2
    assert changes.apart_by_chance == pytest.approx(0.04)


# Values without an interval


def table(value: Any, unit: str | None = None) -> Table:
    return Table(("case", "value"), (("row", value),), on("any"), {"value": unit} if unit else {})


@pytest.mark.parametrize(
    ("a", "b", "unit", "kind", "note"),
    [
        (2**20, 2**20, "bytes", Kind.SAME, ""),
        (1000, 1100, "bytes", Kind.DIFFERS, "by 9.1%"),
        (1e-7, 1.6e-7, "relative", Kind.SAME, ""),
        (1e-7, 1e-5, "relative", Kind.DIFFERS, "by 99%"),
        ("math", "flash", None, Kind.DIFFERS, "other words"),
    ],
)
def test_cells_of_tables_are_compared_by_value(a, b, unit, kind, note):
    change = only_change(table(a, unit), table(b, unit))
    assert (change.row, change.kind, change.note) == ("row: value", kind, note)


@pytest.mark.parametrize(
    ("b", "note"),
    [
        (Curve("loss", (1, 2, 3), (3.0, 2.0, 1.01)), ""),
        (Curve("loss", (1, 2, 3), (3.0, 1.0, 1.0)), "by 50% at 2"),
        (Curve("loss", (1, 2, 3), (3.0, 2.0, None)), "read off elsewhere, or finite elsewhere"),
    ],
)
def test_curves_say_where_they_part(b, note):
    a = Curves((Curve("loss", (1, 2, 3), (3.0, 2.0, 1.0)),), "step", "loss", on("any"))
    change = only_change(a, dataclasses.replace(a, curves=(b,)))
    assert (change.kind, change.note) == (Kind.DIFFERS if note else Kind.SAME, note)


# What cannot be compared


@pytest.mark.parametrize(
    ("hashes", "reason"),
    [
        (("other", "parameters"), "the experiment's code changed"),
        (("other", "other"), "the experiment's parameters changed"),
    ],
)
def test_changed_experiments_are_not_compared(hashes, reason):
    a = record("a", it=compared(0.5), more=compared(0.5))
    b = record("b", it=(compared(2.0), *hashes))
    changes = compare_records(side(a), side(b))
    assert [(change.experiment, change.kind, change.note) for change in changes.changes] == [
        ("alpha/it", Kind.NOT_COMPARABLE, reason),
        ("alpha/more", Kind.ONE_SIDE, "only in A"),
    ]
    assert changes.intervals_compared == 0


def test_other_sizes_are_said_and_only_ratios_are_compared():
    a = record("a", it=compared(0.5), size_of=table(1000, "bytes"))
    b = record("b", it=compared(2.0), size_of=table(9000, "bytes"), size="full")
    changes = compare_records(side(a), side(b))
    assert [change.kind for change in changes.changes] == [Kind.CHANGED, Kind.NOT_COMPARABLE]
    (notice,) = changes.notices
    assert "A ran smoke sizes on cpu, B full sizes on cpu" in notice


def test_one_run_on_both_sides_is_no_agreement():
    a, again = record("a", it=compared(0.5)), record("a", lesson="beta", it=compared(0.5))
    changes = compare_records(side(a, again), side(record("a", LATE, it=compared(0.5, seed=1)), again))
    assert changes.same_runs == ("beta",)
    assert changes.intervals_compared == 1
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


def test_a_machine_a_folder_and_a_file_are_found(box):
    assert set(read_records("first-cpu").records) == {"alpha", "beta"}
    folder = box.reference / "first-cpu"
    assert read_records(str(folder)).records == read_records("first-cpu").records
    assert set(read_records(str(folder / "beta.json")).records) == {"beta"}
    # The beginning of a name is enough where no other machine's has it.
    assert read_records("first").records == read_records("first-cpu").records
    # The folder of a single machine will do.
    assert set(read_records(str(box.results)).records) == {"alpha"}


def test_own_records_and_reference_records_of_one_name_are_told_apart(box):
    with pytest.raises(RecordChangesError, match="say own:second-cpu or reference:second-cpu"):
        read_records("second-cpu")
    own, reference = read_records("own:second-cpu"), read_records("reference:second-cpu")
    assert (own.where, reference.where) == ("your own records", "the reference records")
    (change,) = compare_records(reference, own).changes
    assert change.kind is Kind.CHANGED


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("first-cup", r"did you mean 'first-cpu'\?\)\. Recorded machines: first-cpu, second-cpu"),
        (
            "own:first-cpu",
            "there is no machine 'first-cpu'. Recorded machines: second-cpu. Nor is .*'own:first-cpu'",
        ),
        ("reference", "reference holds records of several machines: name the folder of one"),
        ("notebooks", "there are no records in notebooks"),
    ],
)
def test_a_wrong_name_is_met_with_what_there_is(box, monkeypatch, name, message):
    monkeypatch.chdir(box.root)
    with pytest.raises(RecordChangesError, match=message):
        read_records(name)


def test_the_beginning_of_two_names_and_a_lesson_are_no_machine(box):
    store.save_lesson(record("first-gpu", it=compared(0.5)), box.reference)
    with pytest.raises(RecordChangesError, match="'first' may be first-cpu or first-gpu: write more of the name"):
        read_records("first")
    box.notebook("04_pinned_memory", "")
    with pytest.raises(RecordChangesError, match="04_pinned_memory is a lesson: name two machines"):
        read_records("4")


def test_a_record_that_cannot_be_read_is_named_and_the_others_are_compared(box):
    (box.reference / "first-cpu" / "beta.json").write_text('{"schema_version": 99}')
    records = read_records("first-cpu")
    assert set(records.records) == {"alpha"}
    (problem,) = records.problems
    assert "schema version 99" in problem
    (box.reference / "first-cpu" / "alpha.json").unlink()
    with pytest.raises(RecordChangesError, match="schema version 99"):
        read_records("first-cpu")


def test_an_older_commit_is_compared_with_what_lies_there_now(tmp_path, monkeypatch):
    package = tmp_path / "course_utils"
    records = package / "records"
    monkeypatch.setattr(store, "package_root", lambda: package)
    monkeypatch.setenv("COURSE_REFERENCE_ROOT", str(records))
    monkeypatch.setenv("COURSE_RESULTS", str(tmp_path / "results"))

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    store.save_lesson(record("a-cpu", it=compared(0.5)), records)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    store.save_lesson(record("a-cpu", LATE, it=compared(2.0)), records)
    before, now = read_records("HEAD:a-cpu"), read_records("a-cpu")
    assert (before.records["alpha"].recorded_at, now.records["alpha"].recorded_at) == (EARLY, LATE)
    assert [change.kind for change in compare_records(before, now).changes] == [Kind.CHANGED]
    with pytest.raises(RecordChangesError, match=r"in commit HEAD there is no machine 'a-gpu'.*machines: a-cpu"):
        read_records("HEAD:a-gpu")
    with pytest.raises(RecordChangesError, match=r"git cannot read that commit .*REV:MACHINE takes a commit"):
        read_records("HEAD~7:a-cpu")


# The command


def test_the_command_says_what_changed_and_how_much_may_be_chance(box, capsys):
    assert cli.main(["compare", "first-cpu", "reference:second-cpu"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "changed, beyond noise: another verdict" in printed
    assert "A  2.00 times as fast (" in printed
    assert "B  2.00 times as long (" in printed
    assert "Only in A: beta." in printed
    assert "1 pair of 99% intervals compared" in printed
    assert "on average at most 0.02 of them" in " ".join(printed.split())


def test_what_is_the_same_is_shown_when_asked_for(box, capsys):
    store.save_lesson(record("third-cpu", it=compared(0.5, seed=1)), box.reference)
    cli.main(["compare", "first-cpu", "third-cpu"])
    short = capsys.readouterr().out
    assert "tuned, against plain" not in short
    assert "--all shows the rest as well." in short
    cli.main(["compare", "first-cpu", "third-cpu", "--all"])
    assert "the same: the verdict stands, or the values are alike\n  alpha/it\n    tuned, against plain\n" in (
        capsys.readouterr().out
    )


# Rows


def test_no_two_rows_of_a_committed_result_share_a_label():
    for path in sorted(Path(store.package_root(), "records").glob("*/*.json")):
        lesson = store.load_lesson(path)
        for name in lesson.experiments:
            labels = [fact.label for fact in lesson.result(name).facts()]
            assert len(labels) == len(set(labels)), name
