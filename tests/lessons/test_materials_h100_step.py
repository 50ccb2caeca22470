"""The lanes of published training steps, as they are stored and drawn."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from authoring.lesson_files import load_lessons
from course_utils.materials.h100_step import PATH, Step, h100_steps
from course_utils.show.canvas import WIDTH_IN
from tests.figure_checks import problems_of_texts

STEPS = h100_steps()
EVERY = {f"{step.number} {when}": step for when in ("before", "after") for step in getattr(STEPS, when)}


@pytest.mark.parametrize("content", ["{", "[]", '{"before": [], "after": []}', '{"before": [{"number": 1}]}'])
def test_a_damaged_store_is_refused(content: str, tmp_path: Path):
    path = tmp_path / "steps.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"steps\.json does not hold the lanes of steps"):
        h100_steps(path)


@pytest.mark.parametrize("step", EVERY.values(), ids=EVERY)
def test_stored_totals_and_lanes_agree(step: Step):
    rounding = 0.3e-6
    assert step.overlapped_s + step.exposed_s == pytest.approx(step.nccl_s, abs=rounding)
    assert step.compute_s + step.exposed_s == pytest.approx(step.busy_s, abs=rounding)
    assert step.busy_s <= step.span_s
    assert 0 < step.backward_ends_s < step.span_s
    for lane in (step.compute, step.hidden, step.exposed):
        assert all(start < end for start, end in lane)
        assert all(end < start for (_, end), (start, _) in pairwise(lane))
    # Closed gaps between small kernels make the lane of what is hidden longer than its total, and the other shorter.
    hidden_s, exposed_s = (math.fsum(end - start for start, end in lane) for lane in (step.hidden, step.exposed))
    assert step.overlapped_s < hidden_s < 1.25 * step.overlapped_s
    assert exposed_s < step.exposed_s
    assert hidden_s + exposed_s == pytest.approx(step.nccl_s, rel=0.02)


def test_the_stored_steps_are_of_both_kinds_and_show_what_was_changed():
    assert {step.number % 2 for step in STEPS.before} == {0, 1}
    assert [step.number for step in STEPS.before] == [step.number for step in STEPS.after]
    hidden = STEPS.changes_s("overlapped_s")
    odd, even = ([change for number, change in hidden.items() if number % 2 == kind] for kind in (1, 0))
    assert min(odd) > 10 * max(map(abs, even))
    # In odd steps communication begins before the backward pass ends, and it never did before.
    assert all(step.hidden[0][0] < step.backward_ends_s for step in STEPS.after if step.number % 2)
    assert all(min(s.hidden[0][0], s.exposed[0][0]) > s.backward_ends_s for s in STEPS.before)


def test_the_published_row_has_the_numbers_of_the_lanes():
    (row,) = (row for lesson in load_lessons() for row in lesson.published if row.id == "nanogpt_hooks_h100")
    after = EVERY["11 after"]
    expected = {"early_ms": after.backward_ends_s - after.hidden[0][0]}
    for number, place in ((11, ""), (13, "_13")):
        for when in ("before", "after"):
            step = EVERY[f"{number} {when}"]
            expected[f"hidden_{when}{place}_ms"] = step.overlapped_s
            expected[f"exposed_{when}{place}_ms"] = step.exposed_s
    assert {name: value / 1e3 for name, value in row.values.items()} == pytest.approx(expected, abs=1e-7)
    assert (row.source.commit, row.date) == (STEPS.source["commit"], STEPS.source["measured"])


def test_what_runs_saved_has_an_interval_around_it():
    mean, low, high = STEPS.saved_in_runs_s()
    assert low < mean < high
    total_s = sum(STEPS.runs["before_s"]) / 4 - sum(STEPS.runs["after_s"]) / 10
    assert mean * STEPS.runs["steps"] == pytest.approx(total_s)


def test_the_numbers_of_the_text_are_those_of_the_data(tmp_path: Path):
    stored = json.loads(PATH.read_text(encoding="utf-8"))
    stored["after"][1]["totals_us"]["overlapped"] += 1000
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(stored), encoding="utf-8")
    changed = h100_steps(path)
    assert "(+0.44 and +0.43 ms)" in STEPS.reading.replace("\n", " ")
    assert "(+1.44 and +0.43 ms)" in changed.reading.replace("\n", " ")
    assert "0.94 ms more" in changed.plot().texts[0].get_text().replace("\n", " ")
    assert "3.48 ms hidden" in changed.plot().alt


def test_the_figure_is_readable_described_and_shows_itself():
    figure = STEPS.plot()
    assert problems_of_texts(figure) == []
    assert figure.get_size_inches()[0] == WIDTH_IN
    names = [label.get_text().replace("\n", " ") for label in figure.axes[0].get_yticklabels()]
    assert names == ["computes or copies", "NCCL, hidden", "NCCL, exposed"]  # not by colour alone
    for step in (*STEPS.before, *STEPS.after):
        assert (f"{1e3 * step.exposed_s:.2f} ms exposed" in figure.alt) == (step.number % 2 == 1)
    data, metadata = STEPS._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == data["text/plain"].removeprefix("Figure: ")
    assert f"step 13 after{1e3 * STEPS.after[-1].span_s:>14.2f}" in repr(STEPS)
