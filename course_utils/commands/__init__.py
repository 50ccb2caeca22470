"""The commands: ``course check``, ``copy``, ``record``, ``report`` and ``compare``."""


class CommandError(RuntimeError):
    """A command cannot do what it was asked to do. The message is one line, and says what to do instead."""
