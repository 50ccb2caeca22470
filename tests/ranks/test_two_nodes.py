"""Nodes on this machine: one is lost and comes back, one never comes, a port is taken. Nothing is left of them."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from course_utils import recorded
from course_utils.ranks.agent import RUN_VARIABLE
from tests.launches import NOTEBOOKS
from tests.ranks.lost_node import NAME, lost_node
from tests.ranks.nodes import NodeError, Nodes, networks_allowed

PROGRAM = "scripts/elastic_train.py"


@pytest.fixture(autouse=True)
def _in_the_notebooks_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(NOTEBOOKS)


def left_of(nodes: Nodes) -> list[str]:
    """Processes, networks and links of these nodes that are still there."""
    left = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and nodes._mark in process.environ().get(RUN_VARIABLE, ""):
                left.append(str(process))
        except psutil.Error:
            continue
    if nodes.networks:
        for what in (["netns", "list"], ["link"]):
            said = subprocess.run(["ip", *what], capture_output=True, text=True, check=True).stdout
            left += [line for line in said.splitlines() if nodes._mark in line]
    return left + [str(path) for path in [nodes.folder] if path.exists()]


@pytest.mark.slow
@pytest.mark.skipif(not networks_allowed(), reason="networks of their own need Linux, root and the program ip")
def test_a_lost_node_comes_back_and_the_losses_are_those_of_an_unbroken_run() -> None:
    rows, said = lost_node()
    assert "restart 1: from step" in said
    assert said.count("step ") >= 6
    assert rows[-1]["step"] == "5, after the restart"
    assert max(row["off by"] for row in rows) < 1e-5
    table = recorded(NAME, machine="intel-xeon")  # it is on a page: python -m tests.ranks.lost_node makes it anew
    assert [row["step"] for row in rows] == list(table.labels)
    for row in rows:
        assert row["loss"] == pytest.approx(table[row["step"]]["loss"], rel=1e-3)


@pytest.mark.slow
def test_a_node_that_never_comes_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Nodes(2, networks=False, port=port) as nodes:
        nodes.start(0, PROGRAM, "--folder", str(tmp_path), join_s=2)
        nodes.wait(100)
        assert "RendezvousTimeoutError" in nodes.log(0)
    assert left_of(nodes) == []


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with Nodes(1, networks=False, port=taken.getsockname()[1]) as nodes:
            nodes.start(0, PROGRAM, "--folder", str(tmp_path))
            nodes.wait(100)
            assert "EADDRINUSE" in nodes.log(0) or "address already in use" in nodes.log(0)


def test_what_is_waited_for_in_vain_is_said_and_nothing_is_left() -> None:
    in_vain = pytest.raises(NodeError, match=r"still not so: it has begun\nnode 0 said last")
    with Nodes(1, networks=False) as nodes, in_vain:
        nodes.until(lambda: False, 0.1, "it has begun")
    assert left_of(nodes) == []
