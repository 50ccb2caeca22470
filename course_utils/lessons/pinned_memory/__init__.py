"""Lesson: pinned memory."""
