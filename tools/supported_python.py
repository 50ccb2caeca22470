"""The Pythons that can run the course. Any Python can read this."""

OLDEST, NEWEST = (3, 11), (3, 13)
