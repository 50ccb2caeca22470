"""What authors and instructors run: the ledger, figures in texts, slides, demos, and the pages of the book."""
