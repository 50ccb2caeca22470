"""Lesson: flash attention."""
