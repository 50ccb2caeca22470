"""Run the lesson's `accumulate_ddp` on two ranks whose parts differ in number and in tokens, and compare gradients.

torchrun --standalone --nproc-per-node=2 tests/rank_programs/accumulate.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils.lesson_notebooks import find_lesson, read_notebook
from course_utils.lessons.gradient_accumulation.cases import parts_of_text, small_gpt
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import report

pasted = {"torch": torch, "F": F, "dist": dist, "nn": nn}
for cell in read_notebook(find_lesson("gradient_accumulation").path)["cells"]:
    if "def loss_sum(" in cell["source"] or "def accumulate_ddp(" in cell["source"]:
        exec(cell["source"], pasted)

dist.init_process_group("gloo")
groups = [parts_of_text(0), parts_of_text(1)[1:]]
model, alone = DistributedDataParallel(small_gpt()), small_gpt()
with Collectives() as sent:
    norm = pasted["accumulate_ddp"](model, groups[dist.get_rank()], max_norm=1e9)
pasted["accumulate"](alone, groups[0] + groups[1])
found, wanted = ([weight.grad for weight in each.parameters()] for each in (model, alone))
off = [(a - b).norm() / b.norm() for a, b in zip(found, wanted, strict=True)]
report(off=max(off).item(), norm=norm.item(), sent=sent.traffic["allreduce"]["bytes"])
report(bytes=sum(gradient.nbytes for gradient in wanted))
dist.destroy_process_group()
