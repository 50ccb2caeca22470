"""Wrong answers to the exercises of the lesson: one for each hint."""

import math
import random


def keeping_up(load, step, cores):
    return min(math.ceil(load / step), cores)


def step_ms(load, step, cores):
    return max(step, load / keeping_up(load, step, cores))


def workers(count):
    return lambda *case: (count(*case), step_ms(*case))


def steps(length):
    return lambda *case: (keeping_up(*case), length(*case))


def in_blocks(shards, worker):
    if worker is None:
        return shards
    size = len(shards) // worker.num_workers
    return shards[worker.id * size : (worker.id + 1) * size]


def shuffled(shards):
    return random.sample(shards, len(shards))


def overlapping(shards, worker):
    if worker is None:
        return shards
    size = math.ceil(len(shards) / worker.num_workers)
    return shards[worker.id * size : (worker.id + 1) * size + 1]


def rest_to_the_last(shards, worker):
    if worker is None:
        return shards
    size = len(shards) // worker.num_workers
    last = worker.id == worker.num_workers - 1
    return shards[worker.id * size : None if last else (worker.id + 1) * size]


WRONG = {
    "check_workers": {
        "rounds_down": workers(lambda load, step, cores: min(max(1, load // step), cores)),
        "rounds_to_nearest": workers(lambda load, step, cores: min(max(1, round(load / step)), cores)),
        "no_rounding": workers(lambda load, step, cores: min(load / step, cores)),
        "cores_forgotten": workers(lambda load, step, cores: math.ceil(load / step)),
        "all_cores": workers(lambda load, step, cores: cores),
        "upside_down": workers(lambda load, step, cores: min(math.ceil(step / load), cores)),
        "none_for_short_loading": workers(lambda *case: keeping_up(*case) if case[0] > case[1] else 0),
        "core_left_free": workers(lambda load, step, cores: min(math.ceil(load / step), cores - 1)),
        "one_too_many": workers(lambda load, step, cores: min(math.ceil((load + step) / step), cores)),
        "always_keeps_up": steps(lambda load, step, cores: step),
        "step_is_added": steps(lambda *case: case[1] + case[0] / keeping_up(*case)),
        "forgets_the_step": steps(lambda *case: case[0] / keeping_up(*case)),
    },
    "check_share": {
        "everyone_reads_all": lambda shards, worker: shards,
        "unseeded": lambda shards, worker: shuffled(shards)[worker.id :: worker.num_workers] if worker else shards,
        "counts_from_one": lambda shards, worker: shards[worker.id - 1 :: worker.num_workers] if worker else shards,
        "one_each": lambda shards, worker: [shards[worker.id]] if worker else shards,
        "loses_the_rest": in_blocks,
        "nothing_without_workers": lambda shards, worker: shards[worker.id :: worker.num_workers] if worker else [],
        "some_twice": overlapping,
        "uneven": rest_to_the_last,
    },
}
