"""Raw files of others become one ratio for each model or problem."""

import hashlib
import json
from pathlib import Path

import pytest

from authoring import published_samples

HEADER = "model,train_samples_per_sec,train_batch_size,train_img_size"


@pytest.fixture
def lessons(monkeypatch, tmp_path) -> Path:
    for lesson in ("mixed_precision", "torch_compile"):
        (tmp_path / "lessons" / lesson).mkdir(parents=True)
    monkeypatch.setattr(published_samples, "package_root", lambda: tmp_path)
    return tmp_path / "lessons"


def test_models_are_joined_by_name_and_size_and_what_is_ambiguous_is_left_out(lessons, tmp_path):
    default = [
        "a,100,8,224",
        "a,50,8,384",
        "other batch,100,8,224",
        "twice,100,8,224",
        "twice,90,8,224",
        "alone,1,8,224",
    ]
    channels_last = ["a,125,8,224", "a,40,8,384", "other batch,100,16,224", "twice,100,8,224"]
    for layout, rows in (("nchw", default), ("nhwc", channels_last)):
        file = tmp_path / f"benchmark-train-amp-{layout}-pt112-cu113-rtx3090.csv"
        file.write_text("\n".join([HEADER, *rows]))
    for name in ("pt291-cu128-4090", "pt291-cu130-5090"):
        for ending, rate in (("", 100), ("-dynamo", 123.456)):
            text = f"{HEADER.replace('train', 'infer')}\na,{rate},8,224"
            (tmp_path / f"benchmark-infer-amp-nchw-{name}{ending}.csv").write_text(text)
    published_samples.main(["timm", str(tmp_path)])
    content = json.loads((lessons / "mixed_precision/published/timm_rtx3090_channels_last.json").read_text())
    assert content["samples"] == {"channels-last over default": [1.25, 0.8]}
    raw = (tmp_path / content["files"][1]["path"]).read_bytes()
    assert content["files"][1]["sha256"] == hashlib.sha256(raw).hexdigest()
    content = json.loads((lessons / "torch_compile/published/timm_rtx4090.json").read_text())
    assert content["samples"] == {"compiled over eager": [1.235]}


def test_a_problem_that_failed_compiled_has_no_ratio(lessons, tmp_path):
    for mode, seconds in (("", 6.0), ("default", 4.0), ("reduce-overhead", 2.0), ("max-autotune", 3.0)):
        name = f"torch_compile_inductor_{mode}" if mode else "torch"
        problems = {"1": {"mean": seconds}, "2": None if mode == "reduce-overhead" else {"mean": seconds}}
        file = tmp_path / f"H100_together__baseline_time_{name}.json"
        file.write_text(json.dumps({"level1": problems, "level3": problems}))
    published_samples.main(["kernelbench", str(tmp_path)])
    samples = json.loads((lessons / "torch_compile/published/kernelbench_h100.json").read_text())["samples"]
    assert samples["default over eager, level3"] == [1.5, 1.5]
    assert samples["reduce-overhead over eager, level1"] == [3.0]
    assert samples["reduce-overhead over default, level1"] == [2.0]
