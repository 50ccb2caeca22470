"""Results, and the records that keep them: one JSON file for each machine and lesson.

To read in this order: the statistics (``paired``), raw times (``measurement``) and how they become files
(``serialization``), the machine (``environment``), what all results share (``result``), how verdicts read
(``verdicts``), a comparison (``comparison``), the other kinds, and the records (``store``).
"""
