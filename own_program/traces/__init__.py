"""Traces of torch.profiler: read, counted step by step, compared, and turned into a plan."""
