"""The learner's own copy of the lessons: refreshed while it is untouched, kept once it is not."""

import functools
import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from course_utils.files import write_whole

MANIFEST = ".course.json"
_LINK = re.compile(r"\[([^\[\]]*)\]\((?!https?:|#)([^()#\s]+)(?:#[^()\s]*)?\)")


def refresh(originals: Path, workspace: Path) -> list[str]:
    """Bring the workspace up to date with the course, without losing a learner's work.

    A notebook counts as touched when the source of a cell changed, or when a cell was added, removed or moved.
    Outputs and empty cells do not count, because JupyterLab adds both when a lesson is merely run. A touched file
    stays as it is; if its original changed too, the new version is put beside it once, for instance as
    ``NN_slug.new.ipynb``. A deleted file comes back, which is how to start a lesson over.

    Returns:
        What a learner wants to know, one sentence each; nothing where nothing happened.
    """
    workspace.mkdir(parents=True, exist_ok=True)
    handed_out = _read_manifest(workspace)
    manifest, fresh, refreshed, sentences = {}, [], [], []

    for original in _files(originals):
        name = original.relative_to(originals).as_posix()
        copy, entry = workspace / name, handed_out.get(name, {})
        version, content = _version(original), _content(original)
        if not copy.exists():
            write_whole(copy, original.read_bytes())
            fresh.append(name)
        elif _content(copy) == content:
            # Nothing of the learner's is lost either way; take new outputs and metadata, keep the learner's otherwise.
            if entry.get("version", version) != version:
                write_whole(copy, original.read_bytes())
        elif _content(copy) == entry.get("content"):
            write_whole(copy, original.read_bytes())
            refreshed.append(name)
        else:
            # Remembers what the learner was offered, so that it is put beside the touched file only once.
            if content not in (entry.get("content"), entry.get("offered")):
                beside = _free_name(copy)
                write_whole(beside, original.read_bytes())
                sentences.append(
                    f"You changed {name}, so it stays. The course's new version is beside it: {beside.name}"
                )
            manifest[name] = {**entry, "offered": content}
            continue
        manifest[name] = {"version": version, "content": content}

    write_whole(workspace / MANIFEST, json.dumps({"files": manifest}, indent=1))
    if refreshed:
        sentences.insert(0, f"Brought up to date what you had not changed: {', '.join(refreshed)}")
    if fresh:
        sentences.insert(0, f"Copied to {workspace.name}/, your own copy of the course: {', '.join(fresh)}")
    return sentences


def copy_pages(book: Path, workspace: Path) -> None:
    """Put the book's pages where the lessons' links find them in JupyterLab.

    A lesson links to ``../book/glossary.md``. Nothing lies above JupyterLab's root, which is the workspace, so it opens
    ``book/glossary.md`` there. A changed copy is replaced. Links to lessons lead to the learner's copies, those to what
    the workspace lacks become plain text. The landing page is left out: its parts are in a built book alone.
    """
    (workspace / "book").mkdir(parents=True, exist_ok=True)
    copied = (path for each in ("*.md", "reference/*.md", "evidence/*.md") for path in book.glob(each))
    files = {path.relative_to(book).as_posix(): path for path in copied if path.name != "intro.md"}

    for name, path in sorted(files.items()):
        target = workspace / "book" / name
        text = re.sub(r"\]\(((?:\.\./)+)notebooks/", r"](\1", path.read_text(encoding="utf-8"))
        content = _LINK.sub(functools.partial(_kept, name, files, workspace), text).encode("utf-8")
        if not target.exists() or target.read_bytes() != content:
            write_whole(target, content)


def _kept(name: str, files: Iterable[str], workspace: Path, link: re.Match[str]) -> str:
    """A link on a page, or its text where it leads to nothing in the workspace."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link[2]))
    return link[0] if target in files or (workspace / "book" / target).exists() else link[1]


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in parts):
            yield path


def _version(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _content(path: Path) -> str:
    """A hash of what a person writes: a notebook's cell types and sources, or any other file's bytes."""
    if path.suffix != ".ipynb":
        return _version(path)
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError):
        return _version(path)  # not a notebook (cut off, or emptied): any difference counts
    written = [cell for cell in sources if cell[1].strip()]
    return hashlib.sha256(json.dumps(written).encode()).hexdigest()


def _free_name(path: Path) -> Path:
    candidate, number = path.with_suffix(f".new{path.suffix}"), 2
    while candidate.exists():
        candidate = path.with_suffix(f".new{number}{path.suffix}")
        number += 1
    return candidate


def _read_manifest(workspace: Path) -> dict[str, dict]:
    try:
        files = json.loads((workspace / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {name: entry for name, entry in files.items() if isinstance(entry, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # without it every file that differs counts as touched, so nothing is lost
