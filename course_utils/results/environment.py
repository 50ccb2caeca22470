"""The machine and the software that a result was measured with."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from course_utils.results.serialization import Serialized
from course_utils.show.cards import Card, Shown, Toned
from course_utils.show.formats import format_bytes
from course_utils.show.tables import Sheet, named_values

_RUNS_LIVE = {
    "cuda": "everything that one GPU can run",
    "mps": "what this Mac's GPU can run",
    "cpu": "what a CPU can show",
}
_RECORDED = {
    "cuda": "what needs more comes from recorded runs",
    "mps": "what needs CUDA comes from recorded runs",
    "cpu": "what needs a GPU comes from recorded runs",
}


@dataclass(frozen=True, repr=False)
class Environment(Serialized, Shown):
    """The machine and the software that a result was measured with. No host name, user or path."""

    machine: str  # what its folder is called: see `folder_name`; older records have shorter names
    device_kind: str  # ``cpu``, ``cuda`` or ``mps``: what the lessons measure on
    device_name: str  # the accelerator's name; the CPU's where there is none
    cpu_model: str
    cpu_cores: int  # cores that this process may use
    memory_bytes: int
    os: str
    python: str
    torch: str
    size: str  # ``smoke`` or ``full``: which problem sizes the lessons use
    date: str  # day of the measurement, ISO 8601
    # instruction sets that matter for the lessons (``avx2``, ``avx512_bf16``, ``amx_bf16``...)
    cpu_flags: tuple[str, ...] = ()
    cpu_family: str = ""  # the vendor's numbers of family and model: a hypervisor may hide the model's name
    gpu_count: int = 0
    gpu_memory_bytes: int | None = None  # memory of the first accelerator, if any
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None  # CUDA (or ``rocm 6.x``) version that torch was built for
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None  # the accelerator's clock when the environment was read
    torch_threads: int = 1  # threads that one CPU operation may use
    commit: str | None = None  # commit of the course, if known

    @property
    def title(self) -> str:
        """What people call the machine, for example ``AMD EPYC, 2 cores, 24 GiB`` or ``NVIDIA H200, 140 GiB``."""
        if self.device_kind == "cuda":
            memory = f", {self.gpu_memory_bytes / 2**30:.0f} GiB" if self.gpu_memory_bytes else ""
            return f"{self._several}{self.device_name}{memory}"
        return f"{self.device_name}, {self._cores}, {_memory_as_sold_gib(self.memory_bytes):g} GiB"

    @property
    def _several(self) -> str:
        return f"{self.gpu_count} × " if self.device_kind == "cuda" and self.gpu_count > 1 else ""

    @property
    def _cores(self) -> str:
        return f"{self.cpu_cores} core{'s' * (self.cpu_cores != 1)}"

    @property
    def host(self) -> Environment:
        """The machine as its CPU, for what was measured on the CPU beside an accelerator."""
        return dataclasses.replace(self, device_kind="cpu", device_name=self.cpu_model)

    @property
    def short_name(self) -> str:
        """The processor as people call it for short: ``H200``, or ``AMD EPYC, 2 cores``."""
        if self.device_kind == "cpu":
            return f"{self.device_name}, {self._cores}"
        return f"{self._several}{self.device_name.removeprefix('NVIDIA ').removeprefix('AMD ')}"

    @property
    def day(self) -> str:
        """The day as people write it: ``27 Nov 2026``."""
        day = datetime.date.fromisoformat(self.date)
        return f"{day.day} {day:%b %Y}"

    @property
    def recorded(self) -> str:
        """What a card of a recorded run begins with."""
        return f"Recorded: {self.short_name}, {self.day}"

    @property
    def folder_name(self) -> str:
        """A name for the folder of its records: its title, and four digits that stand for what else sets it apart.

        That is the hardware, the system and the GPU's power limit. What people update (torch, Python, the driver) or
        choose for one run (threads, sizes) is not in it: a machine keeps its name, and each record tells the rest.
        """
        apart = (
            self.title,
            (self.cpu_model, self.cpu_family, *sorted(self.cpu_flags)),
            (self.cpu_cores, _memory_as_sold_gib(self.memory_bytes)),
            (self.device_kind, self.compute_capability, self.power_limit_w and round(self.power_limit_w)),
            self.os,
        )
        digits = hashlib.sha256(repr(apart).encode()).hexdigest()[:4]
        slug = re.sub(r"[^a-z0-9]+", "-", self.title.replace(" GiB", "gib").lower()).strip("-")
        return f"{slug}-{digits}"

    @property
    def caption(self) -> str:
        """One line for under a figure: machine, software, date."""
        return f"{self.title} · torch {self.torch} · {self.date}"

    def card(self) -> Card:
        """What runs live here, on which machine and software."""
        return Card(
            ["On this machine runs live ", Toned(_RUNS_LIVE[self.device_kind]), f"; {_RECORDED[self.device_kind]}."],
            provenance=f"{self.title} · torch {self.torch}, Python {self.python} · {self.size} sizes · {self.date}",
            numbers=self._numbers(),
        )

    def _numbers(self) -> Sheet:
        gpu = [self.device_name]
        gpu += [format_bytes(self.gpu_memory_bytes)] if self.gpu_memory_bytes else []
        gpu += [f"compute capability {self.compute_capability}"] if self.compute_capability else []
        gpu += [f"{self.gpu_count} visible"] if self.gpu_count > 1 else []
        clocks = [f"limit {self.power_limit_w:g} W"] if self.power_limit_w else []
        clocks += [f"{self.sm_clock_mhz} MHz when read"] if self.sm_clock_mhz else []
        software = [f"torch {self.torch}", f"Python {self.python}"]
        software += [f"CUDA {self.cuda}"] if self.cuda else []
        software += [f"driver {self.driver}"] if self.driver else []
        named = [
            ("GPU", ", ".join(gpu) if self.device_kind != "cpu" else "none"),
            ("GPU power and clock", ", ".join(clocks)),
            ("CPU", f"{self.cpu_model}, {self.cpu_cores} core{'s' if self.cpu_cores > 1 else ''}"),
            ("CPU features", ", ".join(self.cpu_flags)),
            ("memory", format_bytes(self.memory_bytes)),
            ("software", ", ".join(software)),
            ("system", self.os),
            ("threads for one operation", str(self.torch_threads)),
            ("problem sizes", self.size),
            ("name in records", self.machine),
            ("date", self.date),
            ("commit", self.commit),
        ]
        return Sheet((named_values(f"This machine: {self.title}", named),))


def titles(environments: Iterable[Environment]) -> dict[str, str]:
    """What people call several machines, by the names of their folders, which are added where two share a title."""
    called = {each.machine: each.title for each in environments}
    shared = {title for title in called.values() if list(called.values()).count(title) > 1}
    return {machine: f"{title} ({machine})" if title in shared else title for machine, title in called.items()}


def _memory_as_sold_gib(size_bytes: int) -> float:
    """Memory, rounded up to what machines are sold with.

    A system sees some percent less, and a few MB more or less after the next start.
    """
    gib = size_bytes / 2**30
    step = 2.0 ** (math.floor(math.log2(gib)) - 3)
    return step * math.ceil(gib / step)
