"""Lesson: fsdp."""
