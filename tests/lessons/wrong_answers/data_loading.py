"""Wrong answers to the exercise of `data_loading`: one for each hint."""

import math


def enough(load, step, cores):
    return min(math.ceil(load / step), cores)


def if_it_pays(workers, load, step, price):
    return workers if max(step + price, load / workers) < load + step else 0


WRONG = {
    "check_workers": {
        "always_workers": lambda load, step, price, cores: enough(load, step, cores),
        "rounds_down": lambda load, step, price, cores: if_it_pays(min(max(1, load // step), cores), load, step, price),
        "cores_forgotten": lambda load, step, price, cores: if_it_pays(math.ceil(load / step), load, step, price),
        "none_for_short_loading": lambda load, step, price, cores: (
            if_it_pays(enough(load, step, cores), load, step, price) if load > step else 0
        ),
    },
}
