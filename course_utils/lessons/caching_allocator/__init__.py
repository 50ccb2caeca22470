"""Lesson: caching allocator."""
