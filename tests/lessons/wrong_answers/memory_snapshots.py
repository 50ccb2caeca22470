"""Wrong answers to the exercise of the lesson: one for each hint."""

from collections import Counter


def largest_left(first, second):
    live = {}
    for entry in second:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry
        elif entry["action"] == "free_completed":
            live.pop(entry["addr"])
    sizes = Counter()
    for entry in live.values():
        sizes[entry["line"]] += entry["size"]
    return sizes.most_common(1)[0][0]


WRONG = {
    "spike": lambda first, second: max(second, key=lambda entry: entry["size"])["line"],
    "largest_left": largest_left,
    "asked_most": lambda first, second: Counter(
        entry["line"] for entry in second if entry["action"] == "alloc"
    ).most_common(1)[0][0],
}
