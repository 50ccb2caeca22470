"""Wrong answers to the exercise of `planning_a_cluster`: one for each hint."""

from math import ceil


def gpus(kept=16, temporary=4, at_once=False, shared=False, ignored=False, round_=ceil, whole=True):
    def answer(parameters, own, memory, foreach):
        if own >= memory:
            return None
        in_step = kept + (temporary if foreach else 0)
        step = in_step * parameters / (memory - own if at_once else memory)
        backward = (kept * parameters + own) / memory if shared else kept * parameters / (memory - own)
        needed = round_(step if ignored else max(step, backward))
        return 8 * round_(needed / 8) if whole else needed

    return answer


def always(parameters, own, memory, foreach):
    return gpus()(parameters, own, memory, True)


def never_none(parameters, own, memory, foreach):
    if own == memory:
        return 0
    return gpus()(parameters, own, memory, foreach) or 8 * ceil(16 * parameters / (memory - own) / 8)


WRONG = {
    "check_least_gpus": {
        "no_optimizer": gpus(kept=8),
        "no_gradients": gpus(kept=12),
        "no_temporary": gpus(temporary=0),
        "always_temporary": always,
        "at_once": gpus(at_once=True),
        "shares_activations": gpus(shared=True),
        "no_activations": gpus(ignored=True),
        "rounds_down": gpus(round_=int),
        "part_of_a_machine": gpus(whole=False),
        "one_card": lambda parameters, own, memory, foreach: gpus()(parameters, own, 80 * 2**30, foreach),
        "never_none": never_none,
    },
}
