"""What lessons share besides measuring: models, real data, and plumbing that would hide the technique in a notebook."""
