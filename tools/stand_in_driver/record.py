"""Record memory snapshots of PyTorch's own allocator without a GPU, for the tests of the simulated one.

The code that runs is ``libc10_cuda.so`` from a CUDA wheel of PyTorch; what stands in for the CUDA runtime and driver
(``stand_in.cpp``) hands out addresses and counts bytes. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from course_utils.lessons.memory_snapshots import cases
from course_utils.memory.allocator import Allocate, EmptyCache, Event, Free, RecordStream

HERE = Path(__file__).resolve().parent
TARGET = HERE.parents[1] / "tests" / "allocator_traces"
MIB = 2**20


@dataclass(frozen=True)
class Case:
    """One snapshot to record: options, limits, and what the random requests look like."""

    name: str
    options: str = ""
    device_mib: int = 2000
    cap_share: float | None = None
    events: int = 160
    live: int = 20
    largest_mib: float = 24
    streams: tuple[int, ...] = (0,)
    other_streams: bool = False  # record_stream, and events that do not complete by themselves


CASES = (
    Case("default"),
    Case("default_small", largest_mib=0.5, events=120),
    Case("expandable_segments", "expandable_segments:True"),
    Case("expandable_segments_cap", "expandable_segments:True", device_mib=300, cap_share=0.35),
    Case("roundup_power2", "roundup_power2_divisions:4"),
    Case("roundup_power2_list", "roundup_power2_divisions:[2:8,16:2,>:1]"),
    Case("max_split_size", "max_split_size_mb:24", device_mib=500, cap_share=0.5, largest_mib=48),
    Case("garbage_collection", "garbage_collection_threshold:0.5", device_mib=400, cap_share=0.7),
    Case("large_segment_size", "large_segment_size_mb:32"),
    # The larger segment also sets how much larger than a request a block may be that is not split.
    Case(
        "large_segment_split", "large_segment_size_mb:40,max_split_size_mb:48", device_mib=3000, largest_mib=160, live=8
    ),
    Case("streams", device_mib=220, streams=(0, 16), other_streams=True),
    Case("cap", device_mib=500, cap_share=0.25),
    # Named so that the two versions part.
    Case("ties_5", live=8, largest_mib=20, events=90, device_mib=400, cap_share=0.25),
    Case("full_device", "expandable_segments:True", device_mib=100),
    Case("memory_snapshots", device_mib=80 * 1024, cap_share=1 / 512),  # the lesson's program, up to its error
)


# Events as the driver program reads them.
COMMANDS = {
    Allocate: "A {0.id} {0.bytes} {0.stream}",
    Free: "F {0.id}",
    RecordStream: "R {0.id} {0.stream}",
    EmptyCache: "E",
}


def requests(case: Case) -> list[Event]:
    """Random events of a case, the same at every call; those of `memory_snapshots` are its program's."""
    if case.name == "memory_snapshots":
        return cases.requests(int((case.cap_share or 1) * case.device_mib * MIB))
    dice = random.Random(case.name)
    events: list[Event] = []
    held: list[int] = []
    for count in range(1, case.events + 1):
        draw = dice.random()
        if held and (len(held) >= case.live or draw < 0.45):
            events.append(Free(held.pop(dice.randrange(len(held)))))
        elif draw < 0.47:
            events.append(EmptyCache())
        elif case.other_streams and held and draw < 0.6:
            events.append(RecordStream(dice.choice(held), 32))
        else:
            held.append(count)
            size = dice.choice((dice.randrange(1, 40) * case.largest_mib / 40, 2 ** dice.uniform(-18, 0)))
            events.append(Allocate(count, max(1, int(size * MIB)), dice.choice(case.streams)))
    return events


def lines(case: Case, events: Sequence[Event]) -> str:
    """The whole input of the driver program."""
    commands = [] if case.cap_share is None else [f"C {case.cap_share}"]
    if case.other_streams:
        commands.append("Y 0")
    for count, event in enumerate(events):
        commands.append(COMMANDS[type(event)].format(event))
        if case.other_streams and count % 20 == 19:
            commands.append(f"Y {count // 20 % 2}")
    return "\n".join(commands) + "\n"


def build(torch: Path, cuda: Path, folder: Path, old: bool) -> Path:
    """Compile the stand-in and the program that drives the allocator."""
    stand_in, program = folder / "libcudart.so.13", folder / "drive"
    common = ["-O1", "-fPIC", "-I", str(cuda / "include")]
    subprocess.run(["gcc", *common, "-c", HERE / "refused.c", "-o", folder / "refused.o"], check=True)
    link = ["-shared", "-Wl,-soname,libcudart.so.13", f"-Wl,--version-script={HERE / 'stand_in.map'}"]
    sources = [HERE / "stand_in.cpp", folder / "refused.o"]
    subprocess.run(["g++", *common, *sources, *link, "-o", stand_in], check=True)
    paths = f"-Wl,-rpath,{folder}:{torch / 'lib'}"
    libraries = ["-L", torch / "lib", "-lc10_cuda", "-lc10", stand_in, paths]
    flags = ["-std=c++20", *common, "-I", torch / "include", *(["-DBEFORE_2_13"] if old else [])]
    subprocess.run(["g++", *flags, HERE / "drive.cpp", *libraries, "-o", program], check=True)
    return program


def record(program: Path, case: Case, version: str) -> dict[str, object]:
    """Run one case, and return the snapshot."""
    environment = {
        **os.environ,
        "PYTORCH_ALLOC_CONF": case.options,
        "STAND_IN_BYTES": str(case.device_mib * MIB),
        "STAND_IN_REUSE": "1",
    }
    ran = subprocess.run(
        [program], input=lines(case, requests(case)), capture_output=True, text=True, check=True, env=environment
    )
    snapshot = json.loads(ran.stdout)
    device_bytes = case.device_mib * MIB
    snapshot["made_with"] = {
        "torch": version,
        "device": "a stand-in for the CUDA driver, no GPU",
        "device_bytes": device_bytes,
        "cap_bytes": None if case.cap_share is None else int(case.cap_share * device_bytes),
    }
    return snapshot


def main() -> None:
    """Record every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("torch", type=Path, help="the folder torch/ of an unpacked CUDA 13 wheel")
    parser.add_argument("cuda", type=Path, help="the folder nvidia/cu13/ of unpacked nvidia-cuda-runtime and -crt")
    parser.add_argument("version", help="the wheel's version, for example 2.13.0")
    parser.add_argument("cases", nargs="*", help="names; by default all")
    arguments = parser.parse_args()
    old = tuple(map(int, arguments.version.split(".")[:2])) < (2, 13)
    with tempfile.TemporaryDirectory() as folder:
        program = build(arguments.torch.resolve(), arguments.cuda.resolve(), Path(folder), old)
        for case in CASES:
            if arguments.cases and case.name not in arguments.cases:
                continue
            target = TARGET / f"{case.name}-{arguments.version}.json"
            snapshot = record(program, case, arguments.version)
            target.write_text(json.dumps(snapshot, separators=(",", ":")) + "\n", encoding="utf-8")
            print(target.name, target.stat().st_size)


if __name__ == "__main__":
    main()
