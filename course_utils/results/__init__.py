"""Results, and the records that keep them: one JSON file for each machine and lesson."""
