"""`profiler`: its table and lanes, its sources of batches and its pictures."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.profiler import profile, record_function, schedule
from torch.utils.data import DataLoader, TensorDataset

from course_utils.lessons.profiler import cases, pictures
from course_utils.measure.tabulate import tabulate

IMAGES, LABELS = cases.digits()
LOADER = DataLoader(TensorDataset(IMAGES[:640], LABELS[:640]), batch_size=64, shuffle=True)


def slices():
    for index in torch.randperm(640).split(64):
        yield IMAGES[index], LABELS[index]


def profiled(batches) -> profile:
    model, optimizer = cases.network("cpu")
    with profile(schedule=schedule(wait=1, warmup=1, active=5, repeat=1)) as trace:
        for x, y in batches:
            with record_function("forward"):
                loss = cross_entropy(model(x), y)
            with record_function("backward"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            trace.step()
    return trace


@pytest.fixture(scope="module")
def traces() -> tuple[profile, profile]:
    return profiled(LOADER), profiled(slices())


def test_the_lines_of_a_step_are_its_whole_and_the_longest_comes_first(traces):
    *lines, rest = cases.by_line(traces[0])
    assert {row["line"] for row in lines} == set(cases._LINES.values()) - {"a step"}
    assert [row["a step"] for row in lines] == sorted((row["a step"] for row in lines), reverse=True)
    assert rest["line"] == "the rest"  # beside other programs, medians of five steps may add up to more than the whole
    assert sum(row["of it"] for row in (*lines, rest)) == pytest.approx(1)
    assert pictures.slowest(tabulate([*lines, rest], units={"a step": "s", "of it": "percent"}))


def test_the_lanes_show_64_images_fetched_one_by_one_and_at_once(traces):
    spans = cases.lanes(*traces)
    by_loop = {loop: [span for span in spans if span["loop"] == loop] for loop in ("DataLoader", "slices")}
    texts = {loop: [span["text"] for span in spans] for loop, spans in by_loop.items()}
    assert "128 × select" in texts["DataLoader"]
    assert "2 × index" in texts["slices"]
    assert "for x, y in loader" not in texts["slices"]
    assert all(0 <= span["begins"] < span["ends"] for span in spans)
    table = tabulate(spans)
    assert len(pictures.before_and_after(table).spans) == len(spans)


def test_all_sources_of_batches_see_each_image_once_and_learn_alike():
    losses, seen = [], []
    for name, case in cases.epochs("cpu", LOADER, slices).items():
        torch.manual_seed(0)
        losses.append(case.build()())
        seen.append(torch.cat([y for _, y in case.args[0]()]).bincount().tolist())
        assert name in ("DataLoader", "whole batches", "slices")
    assert losses[0] == losses[1], "the same random numbers give the same batches"
    cases.same_loss(losses[0], losses[2])
    assert seen[0] == seen[1] == seen[2]
    with pytest.raises(AssertionError):
        cases.same_loss(losses[0], 1.2 * losses[0])


def test_each_gap_of_the_published_trace_lies_under_nccl_and_the_exercise_is_as_its_answers_say():
    def spans(timeline, lane, what):
        return [span for span in timeline.panels[""][lane] if span.what.startswith(what)]

    h100, made_up = pictures.another_stream(), pictures.four_gaps()
    for gap in (gaps := spans(h100, "stream 7", "gap")):
        nccl = [min(n.end_s, gap.end_s) - max(n.start_s, gap.start_s) for n in spans(h100, "stream 23", "NCCL")]
        assert sum(max(0, each) for each in nccl) > 0.9 * (gap.end_s - gap.start_s)
        assert any(0 < gap.end_s - n.end_s < 5e-6 for n in spans(h100, "stream 23", "NCCL"))
    assert len(gaps) == 4
    pairs = zip(spans(made_up, "stream 7", "gap"), spans(made_up, "Python", "launch"), strict=True)
    late = [gap.start_s < launch.start_s and gap.end_s - launch.end_s < 2e-5 for gap, launch in pairs]
    assert late == [True, True, False, True], "only the third kernel was launched before its gap"
