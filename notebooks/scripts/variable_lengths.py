"""Train on batches of variable length, and print as one line of JSON what the caching allocator did meanwhile.

Lesson 11 starts this program once for each setting: PyTorch reads PYTORCH_ALLOC_CONF once in a process. All are started
together with --wait, and then trained one after the other.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from torch.nn import functional as F

from course_utils.materials.lines import IGNORED, line_batches, pad_lines, padded_length
from course_utils.materials.memory_requests import ORDERS
from course_utils.materials.models import GPT

parser = argparse.ArgumentParser()
parser.add_argument("--order", choices=ORDERS, default="as they come")
parser.add_argument("--steps", type=int, default=96)
parser.add_argument("--lines", type=int, default=64, help="lines in a batch")
parser.add_argument("--width", type=int, default=512)
parser.add_argument("--bucket", type=int, default=32, help="multiple of lengths with --order buckets")
parser.add_argument("--cap-bytes", type=int, default=0, help="the most that PyTorch may take from the GPU; 0: no cap")
parser.add_argument("--probe", action="store_true", help="only the first batch and the longest, to find the demand")
parser.add_argument("--wait", action="store_true", help="print a line, and wait for the cap on standard input")
parser.add_argument("--snapshot", default="", help="a file for the allocator's history")
parser.add_argument("--device", default="cuda", help="cpu for a dry run, without any numbers about memory")


def forward_backward(model: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> None:
    """One pass over a batch; padding does not count."""
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()


def train(asked: argparse.Namespace, report: dict) -> None:
    """All steps; ``report`` is filled while they run, so that it says how far they came if memory runs out."""
    device = torch.device(asked.device)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else torch.cpu.synchronize
    batches = line_batches(asked.steps, asked.lines)
    torch.manual_seed(0)
    model = GPT(vocabulary=2048, context=128, width=asked.width, layers=2, heads=asked.width // 32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    longest = max(batches, key=padded_length)
    if asked.probe:
        batches = [batches[0], longest]
    for number, lines in enumerate(batches):
        if asked.order.endswith("warm-up") and number == (asked.order == "late warm-up"):
            synchronize()
            started = time.perf_counter()
            forward_backward(model, *pad_lines(longest, device=device))
            optimizer.zero_grad()
            synchronize()
            report["warm_up_s"] = time.perf_counter() - started
        length = padded_length(lines)
        if asked.order == "buckets":
            length = -(-length // asked.bucket) * asked.bucket
        tokens, targets = pad_lines(lines, length, device=device)
        synchronize()
        started = time.perf_counter()
        forward_backward(model, tokens, targets)
        optimizer.step()
        optimizer.zero_grad()
        synchronize()
        report["step_s"].append(time.perf_counter() - started)
        if device.type == "cuda":
            report["reserved_bytes"].append(torch.cuda.memory_reserved())


def main() -> None:
    """Set the cap, train, and report."""
    asked = parser.parse_args()
    if asked.wait:
        print("waiting", flush=True)
        line = sys.stdin.readline()
        if not line:  # nobody wants it any more
            return
        asked.cap_bytes = int(line)
    report = {"order": asked.order, "warm_up_s": 0.0, "step_s": [], "reserved_bytes": [], "out_of_memory": False}
    on_gpu = asked.device == "cuda"
    if on_gpu and asked.cap_bytes:
        total = torch.cuda.get_device_properties(0).total_memory
        share = asked.cap_bytes / total
        torch.cuda.set_per_process_memory_fraction(share)
        report["cap_bytes"] = int(share * total)  # as the allocator rounds it
    if on_gpu and asked.snapshot:
        torch.cuda.memory._record_memory_history(context=None, max_entries=500_000)
    try:
        train(asked, report)
    except torch.OutOfMemoryError:
        report["out_of_memory"] = True
    if on_gpu:
        statistics = torch.cuda.memory_stats()
        if asked.snapshot:
            torch.cuda.memory._dump_snapshot(asked.snapshot)
        allocated, reserved = (statistics[f"{kind}_bytes.all.peak"] for kind in ("allocated", "reserved"))
        report["summary"] = {
            "peak allocated": allocated,
            "peak reserved": reserved,
            "unused": None if report["out_of_memory"] else 1 - allocated / reserved,
            "taken": statistics["num_device_alloc"],
            "given back": statistics["num_device_free"],
            "retries": statistics["num_alloc_retries"],
            "steps done": len(report["step_s"]),
        }
        # Which of two cached blocks of one size is used first has changed; a replay has to know.
        report["ties"] = "oldest" if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13) else "lowest"
    print(json.dumps(report))


if __name__ == "__main__":
    main()
