"""Lesson: measuring."""
