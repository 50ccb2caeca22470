"""Wrong answers to the exercise of the lesson: one for each hint."""

import torch


def attend(start=-1e30, running=True, with_sum=True, with_result=True):
    """The right answer, or one with a part missing."""

    def answer(tiles):
        largest, total, result = torch.tensor(start), 0, 0
        for scores, values in tiles:
            larger = scores.amax(-1, keepdim=True)
            if running:
                larger = larger.maximum(largest)
            fade, weights = (largest - larger).exp(), (scores - larger).exp()
            total = total * (fade if with_sum else 1) + weights.sum(-1, keepdim=True)
            result = result * (fade if with_result else 1) + weights @ values
            largest = larger
        return result / total

    return answer


def keeps_all(tiles):
    scores, values = zip(*tiles, strict=True)
    return torch.cat(scores, dim=-1).softmax(-1) @ torch.cat(values)


WRONG = {
    "not_rescaled": attend(with_sum=False),
    "tile_maximum": attend(running=False, with_sum=False, with_result=False),
    "masked_tile": attend(start=float("-inf")),
    "all_at_once": keeps_all,
}
