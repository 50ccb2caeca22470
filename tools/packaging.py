"""How pip builds the package: with the lessons inside, so that they run where there is no clone."""

from pathlib import Path

from setuptools.command.build_py import build_py

# What running a lesson leaves behind is no part of it.
_LEFT_OUT = {"__pycache__", ".ipynb_checkpoints"}


class BuildWithLessons(build_py):
    """Puts ``notebooks/`` into the package. A package that is only linked to the clone finds them in the clone."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for path in sorted(Path("notebooks").rglob("*")):
            if path.is_file() and not _LEFT_OUT & set(path.parts):
                target = Path(self.build_lib, "course_utils", path)
                self.mkpath(str(target.parent))
                self.copy_file(str(path), str(target))
