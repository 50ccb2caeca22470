"""The record behind the rule that long calls are timed without an untimed call before."""

from __future__ import annotations

from benchmarks import preceding_calls
from course_utils.measure import rounds


def test_untimed_calls_are_dropped_where_they_do_not_matter_and_only_there():
    calls = [call for path in preceding_calls.RECORDS.glob("*.json") for call in preceding_calls.load(path)]
    long = [call for call in calls if call.length_s >= rounds.LONG_CALL_S]
    short = [call for call in calls if call.length_s < rounds.LONG_CALL_S / 5]
    assert len(long) >= 4 <= len(short)
    assert all(call.interval.inside(0.98, 1.02) for call in long)
    # A short call would pay for what the case before it left behind.
    assert all(call.interval.low > 1 for call in short)


def test_the_first_call_is_the_one_without_another_before():
    called = []

    class Flushes(preceding_calls.Device):
        def flush_cache(self):
            called.append("flush")

    calls = preceding_calls.first_calls("any", called.append, 1e-9, 3, Flushes())
    assert (len(calls.first_s), len(calls.next_s)) == (3, 3)
    after = [entry for entry in called if entry != 50]
    flushes = [place for place, entry in enumerate(after) if entry == "flush"]
    between = [end - start - 1 for start, end in zip(flushes, [*flushes[1:], len(after)], strict=True)]
    assert sorted(between) == [1, 1, 1, 2, 2, 2]
