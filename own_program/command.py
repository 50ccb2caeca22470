"""The whole command line: the course's verbs, and ``course trace`` and ``course snapshot`` for a reader's own files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from course_utils.commands import cli


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, as :func:`course_utils.commands.cli.main` does."""
    return cli.main(argv, _add_verbs)


def _add_verbs(verb: cli.Verb) -> None:
    add = verb(
        _trace,
        "where a step's time goes in a trace of torch.profiler, and what to change first",
        "It may come from any GPU, or from none. With a second file: what differs between the two, step by step.",
    )
    add("file", type=Path, metavar="FILE", help="a trace in Chrome's format: .json or .json.gz")
    add("other", type=Path, nargs="?", metavar="OTHER", help="a second trace, to compare with the first")

    add = verb(
        _snapshot,
        "what holds a GPU's memory in a snapshot of PyTorch, and what would need less",
        "It is replayed under other settings of the allocator. With a later file: what grew, by line. Nothing is run.",
    )
    add("file", type=Path, metavar="FILE", help="what torch.cuda.memory._dump_snapshot wrote")
    add("later", type=Path, nargs="?", metavar="LATER", help="a later snapshot of the same program")
    add("--device", type=int, metavar="N", help="of several GPUs the one to read; default: each")


def _trace(options: argparse.Namespace) -> int:
    from own_program.traces.trace_report import TraceFileError, read_trace

    try:
        print(read_trace(options.file, options.other))
    except TraceFileError as error:
        return cli.complain(str(error), cli.FAILED)
    return 0


def _snapshot(options: argparse.Namespace) -> int:
    from own_program.snapshots.snapshot_report import SnapshotError, read_snapshot

    try:
        print(read_snapshot(options.file, options.later, device=options.device))
    except SnapshotError as error:
        return cli.complain(str(error), cli.FAILED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
