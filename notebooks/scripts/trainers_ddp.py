"""DDP by hand, by Lightning, by Hugging Face: what each rank sends, copies, reads a step, and the mean that it logs.

torchrun --standalone --nproc-per-node=2 scripts/trainers_ddp.py
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from course_utils.lessons.lightning.cases import LEAN, Copies, Reads, quiet
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import join_ranks, report

STEPS = 8
VALIDATION = torch.arange(5.0)[:, None] ** 2  # five rows: no two ranks can share them evenly
HUGGING_FACE = {"report_to": "none", "disable_tqdm": True, "logging_nan_inf_filter": False, "save_strategy": "no"}
HUGGING_FACE["accelerator_config"] = {"non_blocking": True}


class Net(nn.Module):
    """Its loss is the mean of the rows that it is given, whatever it learns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"loss": (x + 0 * self.weight).mean()}


class Module(L.LightningModule):
    """Logs the mean of the validation rows, with and without sync."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        return self.net(batch)["loss"]

    def validation_step(self, batch: Tensor, _: int) -> None:
        for is_synced in (False, True):
            self.log(f"sync_dist={is_synced}", self.net(batch)["loss"], on_epoch=True, sync_dist=is_synced)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def by_hand(net: Net, ranks: int, device: torch.device, steps: int) -> None:
    model = DistributedDataParallel(net.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in torch.ones(steps, 4, 1):
        optimizer.zero_grad()
        model(batch.to(device, non_blocking=True))["loss"].backward()
        optimizer.step()


def lightning(net: Net, ranks: int, device: torch.device, steps: int) -> L.Trainer:
    where = {"accelerator": device.type, "devices": ranks, "strategy": "ddp"}
    trainer = L.Trainer(max_epochs=1, **LEAN | where)
    train = DataLoader(torch.ones(4 * ranks * steps, 1), batch_size=4)
    trainer.fit(Module(net), train, DataLoader(VALIDATION, batch_size=1))
    return trainer


def hugging_face(net: Net, ranks: int, device: torch.device, steps: int, at_once: int = 1) -> Trainer:
    own = {"use_cpu": device.type == "cpu", "max_steps": steps, "per_device_eval_batch_size": at_once}
    rows = [[{"x": row, "labels": row} for row in its] for its in (torch.ones(512, 1), VALIDATION)]
    trainer = Trainer(net, TrainingArguments(**own, **HUGGING_FACE), None, *rows)
    trainer.train()
    return trainer


def accelerate(device: torch.device) -> float:
    tools = Accelerator(cpu=device.type == "cpu")
    loader = tools.prepare(DataLoader(VALIDATION, batch_size=2))
    return torch.cat([tools.gather_for_metrics(batch) for batch in loader]).mean().item()


def a_step(loop: Callable[..., Any], *where: Any) -> dict[str, float]:
    """What a step asks for: the difference between two fits."""
    found = []
    for steps in (STEPS, 2 * STEPS):
        with Collectives() as sent, Copies() as copied, Reads(net := Net()) as read:
            loop(net, *where, steps)
        calls = Counter({kind: of_kind["calls"] for kind, of_kind in sent.traffic.items()})
        found.append((calls["allreduce"], calls["broadcast"], copied.count, read.count))
    rates = [(more - fewer) / STEPS for fewer, more in zip(*found, strict=True)]
    return dict(zip(("all-reduces", "broadcasts", "blocking copies", "reads"), rates, strict=True))


def main() -> None:
    _, ranks, device = join_ranks()
    with quiet():
        loops = {"DDP by hand": by_hand, "Lightning": lightning, "Hugging Face": hugging_face}
        counts = {name: a_step(loop, ranks, device) for name, loop in loops.items()}
        logged = lightning(Net(), ranks, device, 1).callback_metrics
        means = {"Accelerate, gather_for_metrics": accelerate(device)}
        for batch in (1, 2):
            trainer = hugging_face(Net(), ranks, device, 1, batch)
            means[f"Hugging Face, batches of {batch}"] = trainer.evaluate()["eval_loss"]
        for name in ("sync_dist=False", "sync_dist=True"):
            means[f"Lightning, {name}"] = logged[name].item()
    report(a_step=counts, means=means, mean=VALIDATION.mean().item())


if __name__ == "__main__":
    main()
