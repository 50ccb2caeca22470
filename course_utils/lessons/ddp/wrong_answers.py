"""Wrong answers to the exercises of the lesson: one for each hint."""

import torch


def _order(size, seed):
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()


def reads_everything(size, ranks, rank, epoch):
    return _order(size, epoch)


def own_order(size, ranks, rank, epoch):
    order = _order(size, 100 * epoch + rank)
    length = -(-size // ranks)
    return (order + order)[rank * length : (rank + 1) * length]


def uneven(size, ranks, rank, epoch):
    return _order(size, epoch)[rank::ranks]


def dropped(size, ranks, rank, epoch):
    return _order(size, epoch)[: size // ranks * ranks][rank::ranks]


def same_order(size, ranks, rank, epoch):
    order = list(range(size))
    return (order + order[: -size % ranks])[rank::ranks]


def same_samples(size, ranks, rank, epoch):
    order = list(range(size))
    own = (order + order[: -size % ranks])[rank::ranks]
    return [own[index] for index in _order(len(own), epoch)]


WRONG = {
    "check_share": {
        "everything": reads_everything,
        "own_order": own_order,
        "uneven": uneven,
        "dropped": dropped,
        "same_order": same_order,
        "same_samples": same_samples,
    },
    "check_local_loss": {
        "mean_of_means": lambda loss_sum, own, total, ranks: loss_sum / own,
        "forgets_average": lambda loss_sum, own, total, ranks: loss_sum / total,
        "sum": lambda loss_sum, own, total, ranks: loss_sum,
        "local_count": lambda loss_sum, own, total, ranks: loss_sum * ranks / own,
    },
}
