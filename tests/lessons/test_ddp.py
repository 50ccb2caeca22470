"""What `ddp` says of DDP's messages, of its debug levels and of checkpoints, in a group of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

LINEAR = "import torch.distributed as dist; from torch import nn; from torch.nn.parallel import *\n"
LINEAR += "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
LINEAR += "model = DistributedDataParallel(nn.Linear(2, 2))\n"


def test_detail_ends_the_constructor_of_ddp_on_a_cpu() -> None:
    """If this fails, torch has mended it: take the row out of the lesson's table."""
    env = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    assert subprocess.run([sys.executable, "-c", LINEAR], env=env, capture_output=True).returncode


def test_info_names_the_parameter_that_took_no_part() -> None:
    lines = LINEAR + "import torch\nm = nn.Module(); m.used, m.idle = nn.Linear(2, 2), nn.Linear(2, 2)\n"
    lines += "m.forward = lambda x: m.used(x)\nd = DistributedDataParallel(m)\n"
    lines += "d(torch.ones(1, 2)).sum().backward(); d(torch.ones(1, 2)).sum().backward()"
    env = {**os.environ, "TORCH_DISTRIBUTED_DEBUG": "INFO"}
    ran = subprocess.run([sys.executable, "-c", lines], env=env, capture_output=True, text=True)
    assert "idle.weight" in ran.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="faulthandler.register is not there")
def test_a_signal_shows_where_a_rank_waits_within_a_call_of_c10d() -> None:
    lines = "import faulthandler, signal, torch.distributed as dist; faulthandler.register(signal.SIGUSR1)\n"
    lines += "print('here', flush=True); dist.HashStore().wait(['what nobody sets'])"
    waiting = subprocess.Popen([sys.executable, "-c", lines], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert waiting.stdout.readline() == "here\n"
    time.sleep(0.5)
    waiting.send_signal(signal.SIGUSR1)
    said = [waiting.stderr.readline() for _ in range(2)]
    waiting.kill()
    waiting.communicate()
    assert "most recent call first" in said[0]
    assert 'File "<string>", line 2 in <module>' in said[1]
