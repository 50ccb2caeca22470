"""Measuring: comparisons, sweeps, ceilings, the clocks they use and the machine they run on."""
