"""A node is lost and comes back: what `book/reference/several_machines.md` shows, and how it is recorded.

``python -m tests.ranks.lost_node`` runs it and puts the table into this machine's record of `planning_a_cluster`, from
which ``course record`` drops what no cell of the lesson makes.
"""

from __future__ import annotations

import dataclasses
import os
import re
import runpy
import tempfile
from typing import Any

import torch

from course_utils import environment, tabulate
from course_utils.materials.text import library_text, text_batches
from course_utils.results import store
from tests.launches import NOTEBOOKS
from tests.ranks.nodes import Nodes

NAME = "planning_a_cluster/nodes"


def unbroken(steps: int) -> list[float]:
    """The loss of each step that ``elastic_train.py`` takes, in this process alone, without FSDP."""
    program = runpy.run_path("scripts/fsdp_checkpoint.py")
    training = program["Training"](torch.device("cpu"), seed=0)
    batches = text_batches(library_text(2**16), program["BATCH"], program["LENGTH"], steps)
    return [training.step(*batch) for batch in batches]


def lost_node(steps: int = 6, killed_after: int = 2) -> tuple[list[dict[str, Any]], str]:
    """Train on two nodes, kill the second one, start it again: the loss of each step, and what the first node said."""
    with tempfile.TemporaryDirectory() as folder, Nodes(2) as nodes:
        program = ("scripts/elastic_train.py", "--folder", folder, "--steps", str(steps), "--pause", "0.1")
        for number in range(nodes.count):
            nodes.start(number, *program)
        nodes.until(lambda: f"step {killed_after}:" in nodes.log(0), 120, f"node 0 has done step {killed_after}")
        nodes.kill(1)
        nodes.start(1, *program)
        nodes.wait(120)
        log = nodes.log(0)
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
