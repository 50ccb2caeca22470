"""Read memory snapshots of PyTorch."""
