"""The book and what else is made from records: ``make book`` and ``make refresh``."""
