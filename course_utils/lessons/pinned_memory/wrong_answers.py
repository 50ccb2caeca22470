"""Wrong answers to the exercises of lesson 04: one for each hint."""


def pins_each_batch(data, batch_size, device):
    for batch in data.split(batch_size):
        yield batch.pin_memory().to(device, non_blocking=True)


def forgets_non_blocking(data, batch_size, device):
    for batch in data.pin_memory().split(batch_size):
        yield batch.to(device)


def throws_the_copy_away(data, batch_size, device):
    pinned = data.pin_memory()
    for start in range(0, len(pinned), batch_size):
        batch = pinned[start : start + batch_size]
        batch.to(device, non_blocking=True)
        yield batch


def pins_nothing(data, batch_size, device):
    return [batch.to(device, non_blocking=True) for batch in data.split(batch_size)]


def collects(*, waits_before=False, waits_for_each=False):
    def collect(outputs, gpu):
        if waits_before:
            gpu.synchronize()
        arrived = []
        for output in outputs:
            arrived.append(output.to("cpu", non_blocking=True))
            if waits_for_each:
                gpu.synchronize()
        return [tensor.sum().item() for tensor in arrived]

    return collect


WRONG = {
    "check_step_speedup": {
        "whole_copy": lambda compute_s, staging_s, transfer_s: (compute_s + staging_s + transfer_s) / compute_s,
        "copy_only": lambda compute_s, staging_s, transfer_s: (staging_s + transfer_s) / transfer_s,
        "seconds_saved": lambda compute_s, staging_s, transfer_s: staging_s / (compute_s + staging_s + transfer_s),
        "inverted": lambda compute_s, staging_s, transfer_s: (
            (compute_s + transfer_s) / (compute_s + staging_s + transfer_s)
        ),
    },
    "check_upload": {
        "pins_each_batch": pins_each_batch,
        "blocking": forgets_non_blocking,
        "not_moved": throws_the_copy_away,
        "pageable": pins_nothing,
    },
    "check_collect": {
        "reads_early": collects(),
        "waits_first": collects(waits_before=True),
        "waits_each_time": collects(waits_for_each=True),
    },
}
