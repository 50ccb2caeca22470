"""Wrong answers to the exercises of the lesson: one for each hint."""

from math import ceil


def gpus(kept=16, shared=False, ignored=False, round_=ceil, whole=True):
    def answer(parameters, activations, memory):
        if activations >= memory and not ignored:
            return None
        if shared:
            needed = round_((kept * parameters + activations) / memory)
        else:
            needed = round_(kept * parameters / (memory - (0 if ignored else activations)))
        return 8 * round_(needed / 8) if whole else needed

    return answer


def never_none(parameters, activations, memory):
    return 8 * ceil(16 * parameters / (memory - activations) / 8)


def commands(
    extra="", endpoint=lambda hosts, host: hosts[0], nodes=len, ranks=1, meet="--rdzv-id=1 --rdzv-backend=c10d"
):
    def answer(hosts, gpus):
        return [
            f"torchrun --nnodes={nodes(hosts)} --nproc-per-node={gpus * ranks} {meet.replace('HOST', host)}"
            f" --rdzv-endpoint={endpoint(hosts, host)}:29400 {extra} train.py"
            for host in hosts
        ]

    return answer


WRONG = {
    "check_least_gpus": {
        "no_optimizer": gpus(kept=8),
        "no_gradients": gpus(kept=12),
        "shares_activations": gpus(shared=True),
        "no_activations": gpus(ignored=True),
        "rounds_down": gpus(round_=int),
        "part_of_a_machine": gpus(whole=False),
        "never_none": never_none,
    },
    "check_commands": {
        "standalone": commands("--standalone"),
        "nodes": commands(nodes=lambda hosts: 1),
        "ranks_of_all": commands(ranks=3),
        "no_backend": commands(meet="--rdzv-id=1"),
        "own_endpoint": commands(endpoint=lambda hosts, host: host),
        "do_not_meet": commands(meet="--rdzv-id=HOST --rdzv-backend=c10d"),
    },
}
