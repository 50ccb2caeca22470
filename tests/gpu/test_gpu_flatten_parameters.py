"""`flatten_parameters` on a real GPU: cuDNN's own check against the lesson's."""

from __future__ import annotations

import pytest
import torch

from course_utils.lessons.flatten_parameters.stand_in import examine
from tests.flatten_operations import OPERATIONS

if torch.version.hip is not None:
    pytest.skip("cuDNN's layout; AMD's library has another", allow_module_level=True)


def test_each_row_of_the_table() -> None:
    operations = dict(OPERATIONS)
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        del operations[".bfloat16()"]
    for name, change in operations.items():
        on_gpu, on_cpu = examine(change, "cuda"), examine(change, "cpu")
        warned = on_gpu.pop("cuDNN warns")
        assert on_gpu == on_cpu, name  # the stand-in keeps the rules
        if name != ".bfloat16()":  # goes to cuDNN from version 9.13 only
            assert warned == on_gpu["scattered in forward 2"], name
