"""Wrong answers to the exercises of the lesson: one for each hint."""

import math

import torch
from torch import nn


def loop(share, last=True, clip="once", zero=True, schedule="step"):
    """A training loop that weighs each batch of a group by `share`, with mistakes as wanted."""

    def train(model, batches, optimizer, scheduler, parts, max_norm):
        for start in range(0, len(batches), parts):
            group = batches[start : start + parts]
            if len(group) < parts and not last:
                continue
            for inputs, targets in group:
                if zero == "each":
                    optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                (loss * share(targets, group, parts)).backward()
                if clip == "each":
                    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                if schedule == "part":
                    scheduler.step()
            if clip == "once":
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            if schedule == "step":
                scheduler.step()
            if zero:
                optimizer.zero_grad()

    return train


def joined(model, batches, optimizer, scheduler, parts, max_norm):
    """The right gradient of batches that are joined, which holds all activations."""
    for start in range(0, len(batches), parts):
        inputs, targets = (torch.cat(tensors) for tensors in zip(*batches[start : start + parts], strict=True))
        nn.functional.mse_loss(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def one_backward(model, batches, optimizer, scheduler, parts, max_norm):
    """The right gradient of losses that are added up first, which holds all graphs."""
    for start in range(0, len(batches), parts):
        group = batches[start : start + parts]
        losses = [
            nn.functional.mse_loss(model(inputs), targets) * by_samples(targets, group, parts)
            for inputs, targets in group
        ]
        sum(losses).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def by_samples(targets, group, parts):
    return len(targets) / sum(len(each) for _, each in group)


def tried(part):
    def fewest_parts(batch, sample_bytes, weight_bytes, limit_bytes):
        if 3 * weight_bytes + batch * sample_bytes <= limit_bytes:
            return 1
        for parts in range(2, batch + 1):
            if 4 * weight_bytes + part(batch, parts) * sample_bytes <= limit_bytes:
                return parts
        return 0

    return fewest_parts


def fewest(at_once, in_parts, whole=math.ceil):
    def fewest_parts(batch, sample_bytes, weight_bytes, limit_bytes):
        if at_once * weight_bytes + batch * sample_bytes <= limit_bytes:
            return 1
        room = (limit_bytes - in_parts * weight_bytes) // sample_bytes
        return 0 if room < 1 else whole(batch / min(room, batch))

    return fewest_parts


WRONG = {
    "check_train": {
        "drops_last": loop(by_samples, last=False),
        "divides_by_parts": loop(lambda targets, group, parts: 1 / parts),
        "mean_of_means": loop(lambda targets, group, parts: 1 / len(group)),
        "assumes_full_groups": loop(
            lambda targets, group, parts: len(targets) / (4 * parts if parts == 3 else 3 * parts)
        ),
        "divides_twice": loop(lambda targets, group, parts: by_samples(targets, group, parts) / len(targets)),
        "not_divided": loop(lambda targets, group, parts: 1.0),
        "clips_each_part": loop(by_samples, clip="each"),
        "no_clip": loop(by_samples, clip="never"),
        "keeps_gradients": loop(by_samples, zero=False),
        "zeroes_each_part": loop(by_samples, zero="each"),
        "joins_batches": joined,
        "one_backward": one_backward,
        "schedules_each_part": loop(by_samples, schedule="part"),
    },
    "check_fewest_parts": {
        "no_gradients": fewest(3, 3),
        "gradients_at_once": fewest(4, 4),
        "no_weights": fewest(2, 3),
        "below_the_limit": lambda batch, sample_bytes, weight_bytes, limit_bytes: fewest(3, 4)(
            batch, sample_bytes, weight_bytes, limit_bytes - 1
        ),
        "smallest_part": tried(lambda batch, parts: batch // parts),
        "mean_part": tried(lambda batch, parts: batch / parts),
        "no_state": fewest(1, 2),
        "only_activations": fewest(0, 0),
        "rounds_down": fewest(3, 4, math.floor),
        "in_proportion": lambda batch, sample_bytes, weight_bytes, limit_bytes: math.ceil(
            (4 * weight_bytes + batch * sample_bytes) / limit_bytes
        ),
    },
}
