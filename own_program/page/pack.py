"""What the page "Your own program" needs beside its text: Python for the browser, with the course's own readers.

Pages that are opened from the disk may fetch nothing. So Pyodide and the course's Python are put into one script, in
base64, which ``own_program.js`` loads when a reader brings a file. Pyodide is fetched through npm when the
book is built, is checked against its hash, and is kept in ``.cache``. Python files are compiled there as well.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path

import jinja2

from course_utils.files import write_whole
from course_utils.lesson_order import ORDER

VERSION = "314.0.7"
SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"  # of npm's package
NAMES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json")
LIBRARY, COURSE = "python_stdlib.zip", "course.zip"
SCRIPT = Path("_static/own_program/python.js")
ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "pyodide"
_COMPILER = Path(__file__).with_name("compile_python.mjs")
_LIMIT_S = 300
_PARTS = ("course_utils/show", "course_utils/memory", "own_program/traces", "own_program/snapshots")
_SUFFIXES = (".py", ".css", ".j2")
_LIBRARIES = ("jinja2", "markupsafe")
_A_DATE = (2020, 1, 1, 0, 0, 0)  # of the files in the archive: the same files give the same bytes


class PageError(Exception):
    """What the page needs is not what it should be. The message says what to do."""


class NoPyodideError(PageError):
    """Pyodide cannot be had here. The message says why."""


def python(cache: Path = CACHE) -> dict[str, bytes]:
    """All files that the page needs to run the course's readers: Pyodide's, and ``course.zip``.

    Raises:
        NoPyodideError: Pyodide is not in the cache, and npm is not there or does not get it.
        PageError: what npm brought, or what is in the cache, is not what was checked when the version was chosen.
    """
    package = cache / f"pyodide-{VERSION}.tgz"
    if not package.is_file():
        write_whole(package, _fetched(package.name))
    if hashlib.sha256(package.read_bytes()).hexdigest() != SHA256:
        package.unlink()
        raise PageError(f"{package.name} is not the file whose hash own_program/page/pack.py has; it is deleted")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(package) as archive:
            archive.extractall(folder, filter="data")
        pyodide = Path(folder, "package")
        files = {name: (pyodide / name).read_bytes() for name in NAMES}
        for name, archive in ((LIBRARY, (pyodide / LIBRARY).read_bytes()), (COURSE, course_zip())):
            files[name] = _compiled(pyodide, archive, cache / name)
    return files


def _fetched(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"pyodide@{VERSION}", "--ignore-scripts", "--fetch-retries=1", "--loglevel=error"]
        _run(command, folder)
        package = Path(folder, name)
        if not package.is_file():
            raise NoPyodideError(f"npm brought no {name}")
        return package.read_bytes()


def _compiled(pyodide: Path, archive: bytes, kept: Path) -> bytes:
    """An archive with its Python compiled; from the cache, if it was made of these bytes."""
    mark = kept.with_suffix(".sha256")
    made_of = hashlib.sha256(archive + _COMPILER.read_bytes() + SHA256.encode()).hexdigest()
    if not (kept.is_file() and mark.is_file() and mark.read_text() == made_of):
        given, new = pyodide / "given.zip", pyodide / "new.zip"
        given.write_bytes(archive)
        _run(["node", _COMPILER, pyodide, given, new], pyodide)
        write_whole(kept, new.read_bytes())
        write_whole(mark, made_of.encode())
    return kept.read_bytes()


def _run(command: Sequence[str | Path], folder: str | Path) -> None:
    program = shutil.which(str(command[0]))  # on Windows npm is a script, which is found by its ending
    if program is None:
        raise NoPyodideError(f"There is no {command[0]}")
    try:
        done = subprocess.run(
            [program, *command[1:]], cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoPyodideError(f"{command[0]} did not end well: {error}") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NoPyodideError(f"{command[0]} failed: {said[:300]}")


def course_zip() -> bytes:
    """The course's readers with what they import, as an archive to be unpacked in the browser."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, path in sorted(_python()):
            entry = zipfile.ZipInfo(name, _A_DATE)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, path.read_bytes())
    return archive.getvalue()


def _python() -> Iterator[tuple[str, Path]]:
    """Names in the archive, and the files."""
    course, own = ROOT / "course_utils", ROOT / "own_program"
    found = [
        course / "__init__.py",
        course / "lesson_order.py",
        ORDER,
        own / "__init__.py",
        own / "file_reader.py",
        own / "waiting.py",
    ]
    found += [path for part in _PARTS for path in (ROOT / part).rglob("*") if path.suffix in _SUFFIXES]
    for path in found:
        yield path.relative_to(ROOT).as_posix(), path
    for library in _LIBRARIES:
        folder = Path(importlib.util.find_spec(library).origin).parent
        for path in folder.rglob("*.py"):
            yield path.relative_to(folder.parent).as_posix(), path
        for path in distribution(library).files or ():
            if "licen" in path.name.lower():  # their licence asks for it
                yield f"{library}/{path.name}", Path(path.locate())


def script(packed: Mapping[str, bytes]) -> str:
    """The script that hands files to the page: each with gzip, in base64."""
    texts = {name: base64.b64encode(gzip.compress(data, mtime=0)).decode() for name, data in packed.items()}
    template = jinja2.Template(Path(__file__).with_name("pack.js.j2").read_text(encoding="utf-8"))
    return template.render(version=VERSION, files=json.dumps(texts, indent=0)) + "\n"


def add_to(html: Path, packed: Mapping[str, bytes] | None) -> None:
    """Write what the page loads into a built book; take an earlier Python away where there is none to write."""
    for name in ("own_program.js", "own_program.css"):
        write_whole(html / "_static" / name, Path(__file__).with_name(name).read_bytes())
    if packed is None:
        (html / SCRIPT).unlink(missing_ok=True)
    else:
        write_whole(html / SCRIPT, script(packed).encode())
