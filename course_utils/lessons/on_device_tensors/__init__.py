"""Lesson: on device tensors."""
