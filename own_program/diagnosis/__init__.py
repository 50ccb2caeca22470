"""Measure a training step, try what is safe, rank what to change."""
