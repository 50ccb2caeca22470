"""Wrong answers to the exercise of `gradient_accumulation`: one for each hint."""

import torch
from torch import nn
from torch.nn.functional import mse_loss


def by_samples(targets, group, parts):
    return len(targets) / sum(len(each) for _, each in group)


def loop(share=by_samples, last=True, clip="once", zero="step"):
    """A training loop that weighs each batch of a group by `share`, with mistakes as wanted."""

    def train(model, batches, optimizer, parts, max_norm):
        for start in range(0, len(batches), parts):
            group = batches[start : start + parts]
            if len(group) < parts and not last:
                continue
            for inputs, targets in group:
                if zero == "each":
                    optimizer.zero_grad()
                (mse_loss(model(inputs), targets) * share(targets, group, parts)).backward()
                if clip == "each":
                    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if clip == "once":
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            if zero == "step":
                optimizer.zero_grad()

    return train


def whole_group(loss_of):
    """The right gradient, in one backward pass over a group's loss: all its activations are held."""

    def train(model, batches, optimizer, parts, max_norm):
        for start in range(0, len(batches), parts):
            loss_of(model, batches[start : start + parts], parts).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()

    return train


def joined(model, group, parts):
    inputs, targets = (torch.cat(tensors) for tensors in zip(*group, strict=True))
    return mse_loss(model(inputs), targets)


def added(model, group, parts):
    return sum(mse_loss(model(inputs), targets) * by_samples(targets, group, parts) for inputs, targets in group)


WRONG = {
    "drops_last": loop(last=False),
    "divides_by_parts": loop(lambda targets, group, parts: 1 / parts),
    "mean_of_means": loop(lambda targets, group, parts: 1 / len(group)),
    "divides_twice": loop(lambda targets, group, parts: by_samples(targets, group, parts) / len(targets)),
    "not_divided": loop(lambda targets, group, parts: 1.0),
    "clips_each_part": loop(clip="each"),
    "no_clip": loop(clip="never"),
    "keeps_gradients": loop(zero="never"),
    "zeroes_each_part": loop(zero="each"),
    "joins_batches": whole_group(joined),
    "one_backward": whole_group(added),
}
