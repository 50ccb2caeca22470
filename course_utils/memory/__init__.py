"""Memory: levels of a training step, snapshots of the caching allocator, and a simulator that replays them."""
