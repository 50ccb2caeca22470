"""DDP by hand and by Lightning's Trainer: the same weights, and what the Trainer does besides, unasked.

torchrun --standalone --nproc-per-node=2 scripts/lightning_ddp.py
"""

import logging
import warnings
from collections import Counter
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_utils.lessons.lightning.cases import LEAN
from course_utils.ranks.collectives import Collectives
from course_utils.ranks.programs import join_ranks, report

STEPS, BATCH = 8, 4
VALIDATION = TensorDataset(torch.arange(5.0)[:, None] ** 2)  # five rows: no two ranks can share them evenly


class Module(L.LightningModule):
    """A linear model that notes the rows it sees, and logs the mean of the validation rows, with and without sync."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.trained: list[float] = []
        self.validated: list[float] = []

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        inputs, targets = batch
        self.trained += targets.flatten().tolist() if len(self.trained) < BATCH else []
        return nn.functional.mse_loss(self.net(inputs), targets)

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.validated += batch[0].flatten().tolist()
        self.log("sync_dist=False", batch[0].mean(), on_epoch=True)
        self.log("sync_dist=True", batch[0].mean(), on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Counted(Collectives):
    """Counts reads of a tensor's value besides: where the tensor is on a GPU, each waits for it."""

    reads = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads += operation.name() == "aten::_local_scalar_dense"
        return super().__torch_dispatch__(operation, types, args, kwargs)

    def counts(self) -> dict[str, int]:
        names = Counter(name for name, *_ in self.calls)
        return {"all-reduces": names["allreduce"], "broadcasts": names["broadcast"], "waits": self.reads}


def loader(ranks: int, steps: int, shuffled: bool | None = None) -> DataLoader:
    """Rows in their order; with a DistributedSampler, shuffled or not, unless the Trainer is to choose one."""
    inputs = torch.randn(BATCH * ranks * steps, 4, generator=torch.Generator().manual_seed(0))
    rows = TensorDataset(inputs, torch.arange(float(len(inputs)))[:, None])
    sampler = None if shuffled is None else DistributedSampler(rows, shuffle=shuffled)
    return DataLoader(rows, batch_size=BATCH, sampler=sampler)


def by_hand(ranks: int, device: torch.device, steps: int, shuffled: bool) -> tuple[Module, dict[str, int]]:
    module = Module().to(device)
    model, optimizer = DistributedDataParallel(module.net), module.configure_optimizers()
    with Counted() as counted:
        for inputs, targets in loader(ranks, steps, shuffled):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()
    return module, counted.counts()


def by_trainer(ranks: int, device: torch.device, steps: int) -> tuple[Module, dict[str, int], L.Trainer]:
    module = Module()
    trainer = L.Trainer(accelerator=device.type, devices=ranks, strategy="ddp", max_epochs=1, **LEAN)
    with Counted() as counted:
        trainer.fit(module, loader(ranks, steps), DataLoader(VALIDATION, batch_size=1))
    return module, counted.counts(), trainer


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    _, ranks, device = join_ranks()
    in_order, short = by_hand(ranks, device, STEPS, shuffled=False)
    shuffled, _ = by_hand(ranks, device, STEPS, shuffled=True)
    _, long = by_hand(ranks, device, 2 * STEPS, shuffled=False)
    module, fewer, trainer = by_trainer(ranks, device, STEPS)
    _, more, _ = by_trainer(ranks, device, 2 * STEPS)

    def equals(plain: Module) -> bool:
        pairs = zip(plain.parameters(), module.parameters(), strict=True)
        return all(torch.equal(mine.detach().cpu(), its.detach().cpu()) for mine, its in pairs)

    report(
        same_as_in_order=equals(in_order),
        same_as_shuffled=equals(shuffled),
        a_step={
            "DDP by hand": {name: (long[name] - short[name]) / STEPS for name in long},
            "Trainer": {name: (more[name] - fewer[name]) / STEPS for name in more},
        },
        sampler=type(trainer.train_dataloader.sampler).__name__,
        first_batch=module.trained,
        validated=module.validated,
        logged={name: trainer.callback_metrics[name].item() for name in ("sync_dist=False", "sync_dist=True")},
        mean=VALIDATION.tensors[0].mean().item(),
    )


if __name__ == "__main__":
    main()
