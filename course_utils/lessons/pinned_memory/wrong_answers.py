"""Wrong answers to the exercises of the lesson: one for each hint."""


def collects(*, waits_before=False, waits_for_each=False):
    def collect(outputs, gpu):
        if waits_before:
            gpu.synchronize()
        arrived = []
        for output in outputs:
            arrived.append(output.to("cpu", non_blocking=True))
            if waits_for_each:
                gpu.synchronize()
        return [tensor.tolist() for tensor in arrived]

    return collect


WRONG = {
    "check_step_times": {
        "overlaps_while_waiting": lambda c, s, t: (max(c, s, t), max(c + t, s), max(c, s, t)),
        "pieces_in_turn": lambda c, s, t: (c + s + t, max(c + t, s), max(c, s, t)),
        "thread_forgotten": lambda c, s, t: (c + max(s, t), c + t, max(c, t)),
        "staging_stays": lambda c, s, t: (c + max(s, t), c + s + t, max(c, s, t)),
        "transfer_goes": lambda c, s, t: (c + s, max(c, s), max(c, s)),
        "still_in_turn": lambda c, s, t: (c + max(s, t), max(c + t, s), max(c + t, s)),
    },
    "check_collect": {
        "reads_early": collects(),
        "waits_first": collects(waits_before=True),
        "waits_each_time": collects(waits_for_each=True),
    },
}
