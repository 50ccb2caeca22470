"""Lesson: torch compile."""
