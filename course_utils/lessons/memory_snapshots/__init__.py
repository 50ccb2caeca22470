"""Lesson: memory snapshots."""
