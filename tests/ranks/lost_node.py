"""A node is lost and comes back: what `book/reference/several_machines.md` shows, and how it is recorded.

Both nodes are torchruns on this machine. ``python -m tests.ranks.lost_node`` runs it and puts the table into this
machine's record of `planning_a_cluster`, from which ``course record`` drops what no cell of the lesson makes.
"""

from __future__ import annotations

import dataclasses
import os
import re
import runpy
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import torch

from course_utils import environment, tabulate
from course_utils.materials.text import library_text, text_batches
from course_utils.ranks.agent import RUN_VARIABLE, end_run
from course_utils.results import store
from tests.launches import NOTEBOOKS, ROOT

NAME = "planning_a_cluster/nodes"
_LIMIT_S = 120


def unbroken(steps: int) -> list[float]:
    """The loss of each step that ``elastic_train.py`` takes, in this process alone, without FSDP."""
    program = runpy.run_path("scripts/fsdp_checkpoint.py")
    training = program["Training"](torch.device("cpu"), seed=0)
    batches = text_batches(library_text(2**16), program["BATCH"], program["LENGTH"], steps)
    return [training.step(*batch) for batch in batches]


def lost_node(steps: int = 6, killed_after: int = 2) -> tuple[list[dict[str, Any]], str]:
    """Train on two nodes, kill the second one, start it again: the loss of each step, and what the first node said."""
    mark = uuid.uuid4().hex  # of the processes; each node has its own
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"node-{number}.log") for number in (0, 1)]

        def start(number: int) -> subprocess.Popen[bytes]:
            # Nodes of this machine answer each other at once: a dead one need not be waited for as long as by default.
            settings = f"is_host={1 - number},join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=2"
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
            command += ["--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
            command += ["--rdzv-id=course", f"--rdzv-conf={settings}", "--local-addr=127.0.0.1"]
            command += ["--monitor-interval=0.1", "scripts/elastic_train.py", "--folder", folder]
            own = {RUN_VARIABLE: f"{mark}-{number}", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
            environ = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **own}
            with logs[number].open("ab") as log:
                words = [*command, "--steps", str(steps), "--pause", "0.1"]
                return subprocess.Popen(words, cwd=NOTEBOOKS, env=environ, stdout=log, stderr=log)

        try:
            nodes, deadline = [start(0), start(1)], time.monotonic() + _LIMIT_S
            while f"step {killed_after}:" not in logs[0].read_text(encoding="utf-8") and time.monotonic() < deadline:
                time.sleep(0.05)
            end_run(f"{mark}-1")
            nodes[1].wait()
            nodes[1] = start(1)
            for node in nodes:
                node.wait(timeout=_LIMIT_S)
        finally:
            for number in (0, 1):
                end_run(f"{mark}-{number}")
        log = logs[0].read_text(encoding="utf-8", errors="replace")
    said = "\n".join(line for line in log.splitlines() if re.match(r"\d+ ranks|step \d", line))
    restarted = said.find("restart 1")
    rows, expected_of = [], unbroken(steps)
    for match in re.finditer(r"step (\d+): loss ([\d.]+)", said):
        where = "before" if match.start() < restarted else "after the restart"
        loss, expected = float(match[2]), expected_of[int(match[1])]
        rows.append(
            {"step": f"{match[1]}, {where}", "loss": loss, "unbroken": expected, "off by": abs(loss / expected - 1)}
        )
    return rows, said


def main() -> None:
    os.chdir(NOTEBOOKS)
    lesson, _ = NAME.split("/")
    record = store.load_lesson(store.record_path(store.reference_root(), environment().machine, lesson))
    table = tabulate(lost_node()[0], units={"off by": "percent"}, name=NAME)
    made = store.Experiment(NAME, table.kind, "", dict(table.to_record()))
    record = dataclasses.replace(record, experiments={**record.experiments, NAME: made})
    store.save_lesson(record, store.reference_root())


if __name__ == "__main__":
    main()
