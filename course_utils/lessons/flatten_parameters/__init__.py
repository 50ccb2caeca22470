"""Lesson: flatten parameters."""
