"""Lesson: mixed precision."""
