"""Running a notebook from its first cell to its last, in a kernel of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from course_utils.lesson_notebooks import LessonError

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def executed(notebook: dict[str, Any], folder: Path, timeout_s: float = 300, size: str | None = None) -> dict[str, Any]:
    """A notebook with new outputs in all of its code cells, which find their files in ``folder``.

    It measures at a ``size``, ``smoke`` or ``full``; by default at that of this machine. An error names the cell.
    """
    running = nbformat.from_dict(notebook)
    client = NotebookClient(
        running,
        timeout=timeout_s,
        kernel_name=KERNELSPEC["name"],
        # Else each kernel that is started warns in the terminal that it talks over TCP without encryption.
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        store_widget_state=False,
        coalesce_streams=True,  # how a text arrives in pieces is a matter of timing
    )
    ran = []
    client.on_cell_execute = lambda cell, cell_index: ran.append(f"Cell {cell_index + 1} ({cell.id})")
    try:
        client.execute(env=os.environ | ({"COURSE_SIZE": size} if size else {}))
    except CellTimeoutError as error:
        raise LessonError(f"{ran[-1]} took more than {timeout_s:g} s.") from error
    except (CellExecutionError, DeadKernelError) as error:
        raise LessonError(f"{ran[-1]} raised:\n{error}") from error
    return running
