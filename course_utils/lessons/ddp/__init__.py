"""Lesson: ddp."""
