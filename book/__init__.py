"""The book and what else is made from records: run ``make book`` and ``make refresh``, or ``python -m book.build``."""
