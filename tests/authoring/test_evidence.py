"""Records as texts read them: what is not there or damaged is said, and values stand in the course's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from authoring import evidence
from authoring.expressions import EvidenceError, NotRecordedError, in_words, quantity
from course_utils.results.store import recorded
from tests.made_up_records import edit_record, recorder_of

COMPILER = recorder_of("torch_compile")
BREAKS = "torch_compile/graph_breaks"


def test_a_record_that_is_deleted_or_damaged_is_told_apart_and_changed_code_is_noticed(records: Path):
    path = records / COMPILER / "torch_compile.json"
    edit_record(path, lambda experiments: experiments[BREAKS].update(code_hash="other"))
    assert evidence.recorded([BREAKS], COMPILER, records)[BREAKS].is_of_other_code
    path.write_text("{", encoding="utf-8")
    with pytest.raises(EvidenceError, match=r"torch_compile.json cannot be read") as error:
        evidence.recorded([BREAKS], COMPILER, records)
    assert not isinstance(error.value, NotRecordedError)
    path.unlink()
    with pytest.raises(NotRecordedError, match=rf"{BREAKS}: not recorded on .*record torch_compile"):
        evidence.recorded([BREAKS], COMPILER, records)


def test_in_words_has_the_words_of_the_house():
    cases = [case for point in recorded("torch_compile/workloads").points for case in point.comparison]
    shown = {
        "FASTER": "times as fast (",
        "SLOWER": "times as long (",
        "SAME": "the same (within ",
        "UNCLEAR": "too close to call",
    }
    for case in cases:
        assert ("the baseline" if case.is_baseline else shown[case.verdict]) in in_words(case)
    assert "FASTER" in {case.verdict for case in cases if not case.is_baseline}
    assert in_words([1, 2, 3]) == "1, 2 and 3"
    assert (in_words([]), in_words(False), in_words(None), in_words(0.25, "percent")) == ("none", "no", "–", "25%")
    assert in_words(quantity(0.25, "percent")) == "25%"
    with pytest.raises(EvidenceError, match="no unit 'stones'"):
        quantity(1, "stones")
    with pytest.raises(EvidenceError, match="a whole Comparison"):
        in_words(recorded("torch_compile/mlp"))


def test_what_a_cpu_did_beside_a_gpu_is_not_said_to_be_the_gpus():
    """`pinned_memory` times a read on the CPU and copies on the GPU; one record holds both."""
    read, copy = (f"pinned_memory/{name}" for name in ("arrived_batch", "copy"))
    for names, name in [((read,), "Intel"), ((copy,), "NVIDIA"), ((read, copy), "NVIDIA")]:
        found = evidence.recorded(names, "nvidia-h200").values()
        assert evidence.newest_result(found).caption.startswith(name)
