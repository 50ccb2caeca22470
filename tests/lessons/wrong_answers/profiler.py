"""Wrong answers to the exercise of `profiler`: one for each hint."""

WRONG = {
    "loader": ["Python", "a sync", "another stream", "Python"],
    "backward": ["data", "Python", "another stream", "Python"],
    "straight_up": ["data", "a sync", "Python", "Python"],
    "nccl_is_done": ["data", "a sync", "another stream", "another stream"],
}
