"""Wrong answers to the exercise of `launch_bound`: one for each hint."""


def by_shape(*, once=False, copies_in=True, own=True, replays=True, clones=True, keeps=True):
    """An answer that leaves out one thing."""

    def answer(step, record):
        graphs = {}

        def run(batch):
            key = None if once else batch.shape
            if key not in graphs or not keeps:
                held = batch.clone() if own else batch
                graphs[key] = held, *record(step, held)
            held, replay, out = graphs[key]
            if copies_in:
                held.copy_(batch)
            if replays:
                replay()
            return out.clone() if clones else out

        return run

    return answer


WRONG = {
    "one_graph": by_shape(once=True),
    "not_computed": by_shape(replays=False),
    "stale": by_shape(copies_in=False),
    "their_batch": by_shape(own=False),
    "overwritten": by_shape(clones=False),
    "every_call": by_shape(keeps=False),
    "no_graph": lambda step, record: step,
}
