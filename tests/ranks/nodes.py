"""Nodes of a cluster on this machine: each one a torchrun, in a network of its own where that is allowed.

A node is what torchrun calls one: an agent with its ranks. On Linux, root may give each a network namespace, with an
address, an interface and ports of its own; they reach each other through a bridge, and only so. Elsewhere all share
the loopback address. The commands are those of a cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

from course_utils.files import variables_for_children
from course_utils.ranks.agent import RUN_VARIABLE, end_run
from course_utils.ranks.entry import FOLDER_VARIABLE

PORT = 29400
# Nodes of this machine answer each other at once, so a dead one need not be waited for as long as by default.
_SETTINGS = "keep_alive_interval=1,keep_alive_max_attempt=2"


class NodeError(RuntimeError):
    """A node did not do what was waited for. The message has its last words."""


def networks_allowed() -> bool:
    """Whether this process may give nodes networks of their own: Linux, root, and the program ``ip``."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"course-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made


class Nodes:
    """So many nodes, from the first command until nothing is left of them.

    Args:
        count: how many nodes.
        networks: whether each has a network of its own; by default, if it is allowed.
        port: of the meeting point, on the first node.
    """

    def __init__(self, count: int, *, networks: bool | None = None, port: int = PORT) -> None:
        self.count, self.port = count, port
        self.networks = networks_allowed() if networks is None else networks
        self._mark = f"{os.getpid():x}-{uuid.uuid4().hex[:3]}"  # short: an interface has at most 15 characters
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def address(self, number: int) -> str:
        """Where a node is reached by the others."""
        return f"10.77.0.{number + 1}" if self.networks else "127.0.0.1"

    def command(self, number: int, *program: str, ranks: int = 1, restarts: int = 3, join_s: int = 60) -> list[str]:
        """What is run on a node: torchrun, as on a cluster."""
        # An address is no host name: torchrun cannot tell whose it is. On a cluster give a name, and no is_host.
        settings = f"is_host={int(number == 0)},join_timeout={join_s},{_SETTINGS}"
        return [
            *("torchrun", f"--nnodes={self.count}", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint={self.address(0)}:{self.port}", "--rdzv-id=course"),
            *(f"--rdzv-conf={settings}", f"--local-addr={self.address(number)}", "--monitor-interval=0.1", *program),
        ]

    def start(self, number: int, *program: str, **options: int) -> None:
        """Start a node with a torchrun program and options of :meth:`command`, or start it again; its log goes on."""
        inside = ["ip", "netns", "exec", self._name(number)] if self.networks else []
        torchrun = self.command(number, *program, **options)[1:]
        with self._log_file(number).open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [*inside, sys.executable, "-m", "course_utils.ranks.agent", *torchrun],
                stdin=subprocess.PIPE,  # closes when this process ends, and then the agent ends the node
                stdout=log,
                stderr=log,
                env=self._variables(number),
                start_new_session=True,
            )

    def kill(self, number: int) -> None:
        """A node is lost: its agent and ranks are killed. Unlike a power cut, that closes their connections."""
        end_run(self._run(number))
        if process := self._processes.pop(number, None):
            process.kill()
            process.communicate()

    def log(self, number: int) -> str:
        """All that a node has printed."""
        return self._log_file(number).read_text(encoding="utf-8", errors="replace")

    def until(self, reached: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until something is so; :class:`NodeError`, with what each node said last, if it takes too long."""
        deadline = time.monotonic() + timeout_s
        while not reached():
            if time.monotonic() > deadline:
                last = "\n".join(
                    f"node {number} said last:\n{self.log(number)[-1500:]}" for number in range(self.count)
                )
                raise NodeError(f"after {timeout_s:.0f} s it is still not so: {what}\n{last}")
            time.sleep(0.05)

    def wait(self, timeout_s: float) -> None:
        """Wait until all nodes that were started have ended."""
        processes = list(self._processes.values())
        self.until(lambda: all(process.poll() is not None for process in processes), timeout_s, "all nodes have ended")

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="course-nodes-"))
        for number in range(self.count):
            self._log_file(number).touch()
        try:
            if self.networks:
                self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(self.count):
            self.kill(number)
        if self.networks:
            for number in range(self.count):
                subprocess.run(["ip", "netns", "delete", self._name(number)], capture_output=True, check=False)
            subprocess.run(["ip", "link", "delete", self._bridge], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    # One network for each node, and a bridge between them

    @property
    def _bridge(self) -> str:
        return f"cb{self._mark}"

    def _connect(self) -> None:
        self._ip("link", "add", self._bridge, "type", "bridge")
        self._ip("link", "set", self._bridge, "up")
        for number in range(self.count):
            name, outside = self._name(number), f"cn{self._mark}{number}"
            self._ip("netns", "add", name)
            self._ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            self._ip("link", "set", outside, "master", self._bridge, "up")
            self._ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                self._ip("-n", name, "link", "set", interface, "up")

    def _ip(self, *words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NodeError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}. Use Nodes(..., networks=False).")

    def _name(self, number: int) -> str:
        return f"course-{self._mark}-{number}"

    def _run(self, number: int) -> str:
        return f"{self._mark}-node-{number}"

    def _log_file(self, number: int) -> Path:
        return self.folder / f"node-{number}.log"

    def _variables(self, number: int) -> dict[str, str]:
        folder = self.folder / f"node-{number}"
        folder.mkdir(exist_ok=True)
        # Which interface the ranks talk through. For NCCL it is NCCL_SOCKET_IFNAME.
        interface = {"GLOO_SOCKET_IFNAME": "eth0"} if self.networks else {}
        own = {
            RUN_VARIABLE: self._run(number),
            FOLDER_VARIABLE: str(folder),
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        return variables_for_children({**os.environ, "CUDA_VISIBLE_DEVICES": "", **own, **interface})
