"""Several processes: launching them, what they report, and the simulated cluster."""
