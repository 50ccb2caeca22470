"""The machine and the software that a result was measured with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from course_utils.records.result import Result, built, compact


@dataclass(frozen=True, repr=False)
class Environment(Result):
    """The machine and the software that a result was measured with. No host name, user or path.

    Attributes:
        machine: short name used for folders, for example ``amd-epyc-2-cores`` or ``nvidia-h200``.
        device_kind: ``cpu``, ``cuda`` or ``mps``: what the lessons measure on.
        device_name: the accelerator's name; the CPU's where there is none.
        cpu_model: the CPU's name.
        cpu_cores: cores that this process may use.
        cpu_flags: instruction sets that matter for the lessons (``avx2``, ``avx512_bf16``, ``amx_bf16``...).
        memory_bytes: main memory.
        gpu_count: accelerators that are visible.
        gpu_memory_bytes: memory of the first accelerator, if any.
        compute_capability: of the first CUDA device, for example ``9.0``.
        driver: version of the NVIDIA driver.
        cuda: CUDA (or ``rocm 6.x``) version that torch was built for.
        power_limit_w: the accelerator's power limit in watts.
        sm_clock_mhz: the accelerator's clock when the environment was read, in MHz.
        os: operating system and processor architecture.
        python: version.
        torch: version, with the build's suffix.
        torch_threads: threads that one CPU operation may use.
        size: ``smoke`` or ``full``: which problem sizes the lessons use.
        date: day of the measurement, ISO 8601.
        commit: commit of the course, if known.
    """

    kind: ClassVar[str] = "environment"

    machine: str
    device_kind: str
    device_name: str
    cpu_model: str
    cpu_cores: int
    memory_bytes: int
    os: str
    python: str
    torch: str
    size: str
    date: str
    cpu_flags: tuple[str, ...] = ()
    gpu_count: int = 0
    gpu_memory_bytes: int | None = None
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    torch_threads: int = 1
    commit: str | None = None

    @property
    def caption(self) -> str:
        """One line for under a figure: machine, software, date."""
        cores = f", {self.cpu_cores} cores" if self.device_kind == "cpu" else ""
        return f"{self.device_name}{cores} · torch {self.torch} · {self.date}"

    def to_record(self) -> dict[str, Any]:
        """The environment as plain JSON types."""
        return compact(dataclasses.asdict(self))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The environment from :meth:`to_record`'s dictionary. Unknown keys are ignored."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        values["cpu_flags"] = tuple(values.get("cpu_flags", ()))
        result = built(cls, values)
        if result.device_kind not in ("cpu", "cuda", "mps"):
            raise ValueError(f"there is no device {result.device_kind!r}")
        return result
