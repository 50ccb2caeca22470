"""Wrong answers to the exercises of the lesson: one for each hint."""

from collections import Counter


def line_of(entry):
    return next(
        f"my_project/planted.py:{f['line']} {f['name']}" for f in entry["frames"] if "planted.py" in f["filename"]
    )


def in_use(trace):
    live = {}
    for entry in trace:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry
        elif entry["action"] == "free_completed":
            live.pop(entry["addr"])
    return live.values()


def largest_left(first, second):
    sizes = Counter()
    for entry in in_use(second):
        sizes[line_of(entry)] += entry["size"]
    return sizes.most_common(1)[0][0]


def trained(model):
    return [weight for weight in model.parameters() if weight.requires_grad]


WRONG = {
    "check_leak": {
        "spike": lambda first, second: line_of(max(second, key=lambda entry: entry["size"])),
        "largest_left": largest_left,
        "most_blocks": lambda first, second: Counter(map(line_of, in_use(second))).most_common(1)[0][0],
        "asked_most": lambda first, second: Counter(
            line_of(entry) for entry in second if entry["action"] == "alloc"
        ).most_common(1)[0][0],
    },
    "check_state_bytes": {
        "one_copy": lambda model: sum(weight.nbytes + 4 for weight in trained(model)),
        "frozen": lambda model: sum(2 * weight.nbytes + 4 for weight in model.parameters()),
        "four_bytes": lambda model: sum(8 * weight.numel() + 4 for weight in trained(model)),
        "shared": lambda model: sum(
            2 * weight.nbytes + 4
            for layer in model.modules()
            for weight in layer.parameters(recurse=False)
            if weight.requires_grad
        ),
        "no_counters": lambda model: sum(2 * weight.nbytes for weight in trained(model)),
    },
}
