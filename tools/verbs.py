"""The verbs of make.py."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from course_utils.lesson_order import file_name, slugs
from course_utils.show.page import custom_css
from tools.jupyter_settings import KERNEL_START, open_jupyterlab, trust, write_settings
from tools.virtual_environment import SetupError, prepare, variables
from tools.wheel import build
from tools.workspace import copy_pages, refresh

ROOT = Path(__file__).resolve().parents[1]
FIRST_LESSON = f"{file_name(slugs()[0])}.ipynb"


def main(arguments: list[str]) -> int:
    # A kill ends this program as Ctrl-C does: through the clean-up of whatever is under way.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if verb in ("help", "-h", "--help"):
        print(HELP, end="")
        return 0
    if verb not in VERBS:
        print(f"There is no verb {verb!r}. The verbs are {', '.join(VERBS)}.", file=sys.stderr)
        return 2
    if verb != "test":  # a test expects the words of the package
        python = "py" if os.name == "nt" else "python3"
        os.environ["COURSE_TYPED"] = "make" if "MAKELEVEL" in os.environ else f"{python} make.py"
    try:
        run, _ = VERBS[verb]
        return run(rest)
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Nothing is broken: run the same command again to go on.", file=sys.stderr)
        return 130


def setup(_arguments: list[str]) -> int:
    """Make or update the environment, and nothing else."""
    prepare(ROOT)
    return 0


def workspace(_arguments: list[str]) -> int:
    """Bring the learner's copy up to date."""
    for line in refresh(ROOT / "notebooks", ROOT / "workspace"):
        print(line)
    copy_pages(ROOT / "book", ROOT / "workspace")
    return 0


def lab(arguments: list[str]) -> int:
    python = prepare(ROOT)
    workspace([])
    # Stored cards have no style of their own.
    write_settings(ROOT / ".jupyter", custom_css(), [KERNEL_START.read_text(encoding="utf-8")])
    trust(python, ROOT / "notebooks", variables(ROOT))
    options = [f"--ServerApp.root_dir={ROOT / 'workspace'}", f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}"]
    return open_jupyterlab(python, ["--LabApp.custom_css=True", *options, *arguments], variables(ROOT))


def test(arguments: list[str]) -> int:
    """Run the stages of the test suite, all of them even if one fails, and say how each went."""
    options = [argument for argument in arguments if argument.startswith("--")]
    asked = [argument for argument in arguments if argument not in options]
    if unknown := sorted(set(asked) - set(STAGES)):
        print(f"There is no stage {', '.join(unknown)}. The stages are {', '.join(STAGES)}.", file=sys.stderr)
        return 2
    python = prepare(ROOT)
    # The tests start hundreds of processes. Without bytecode each of them would compile the course anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    stages = [stage for stage in STAGES if not asked or stage in asked]
    if "tests" in stages:
        _run([python, "-m", "tests.browser"])
    outcomes = {}
    for name, command in _commands(stages):
        print(f"\n=== {name} ===", flush=True)
        started = time.monotonic()
        code = lint([]) if command is None else _run([python, *command, *options])
        passed = code == 0 or (name == "serial" and code == NOTHING_COLLECTED)
        outcomes[name] = (passed, time.monotonic() - started)
    print()
    for name, (passed, seconds) in outcomes.items():
        print(f"{name:<{max(map(len, outcomes))}} {'passed' if passed else 'FAILED'} {seconds:7.1f} s")
    failed = [name for name, (passed, _) in outcomes.items() if not passed]
    total = sum(seconds for _, seconds in outcomes.values())
    print(f"{'all passed' if not failed else 'failed: ' + ', '.join(failed)} in {total:.0f} s")
    return 1 if failed else 0


def record(arguments: list[str]) -> int:
    """Record lessons; after a reference record, bring everything up to date that follows from the records."""
    code = _course("record")(arguments)
    asks_for_help = {"-h", "--help"} & set(arguments)
    if "--reference" not in arguments or asks_for_help or code not in (0, 1):
        return code  # 2 is wrong use, and 130 is Ctrl-C
    return max(code, _module("authoring.pages.refresh")([]))


def renumber(arguments: list[str]) -> int:
    """Give the lessons their numbers; then make what is generated from the lessons."""
    return _module("authoring.renumber")(arguments) or _module("authoring.pages.refresh")([])


def wheel(_arguments: list[str]) -> int:
    """Build the package with the lessons inside, for a machine where there is no clone."""
    try:
        built = build(prepare(ROOT), ROOT / "dist")
    except subprocess.CalledProcessError as error:
        return error.returncode
    print(f"{built.relative_to(ROOT)} holds the course, {built.stat().st_size / 2**20:.1f} MiB.")
    print("To run it on a hosted GPU, go on with the second line of book/hosted.md.")
    return 0


def _module(*words: str) -> Callable[[list[str]], int]:
    """A verb that is a program of the environment, with what follows the verb as its arguments."""
    return lambda arguments: _run([prepare(ROOT), "-m", *words, *arguments])


def _course(verb: str) -> Callable[[list[str]], int]:
    return _module("own_program.command", verb)


def lint(arguments: list[str]) -> int:
    """Check the style of code and notebooks; ``--fix`` mends it."""
    fix = "--fix" in arguments
    python = prepare(ROOT)
    commands = (
        ["-m", "ruff", "check", *(["--fix"] if fix else []), "."],
        ["-m", "ruff", "format", *([] if fix else ["--check"]), "."],
        ["-m", "authoring.renumber", *([] if fix else ["--check"])],
        ["-m", "authoring.notebook_form", *(["--write"] if fix else [])],
        ["-m", "authoring.typed_numbers"],  # warns only
    )
    return max([_run([python, *command]) for command in commands])


def _commands(stages: list[str]) -> Iterator[tuple[str, list[str] | None]]:
    """What to run under which name; None is the lint.

    Tests and notebooks are one run of pytest: its workers take from both until nothing is left, and each has imported
    torch and the tests only once. What measures time runs alone, at the end.
    """
    if "lint" in stages:
        yield "lint", None
    together = {stage: places for stage, places in PLACES.items() if stage in stages}
    if together:
        places = [place for each in together.values() for place in each]
        yield ", ".join(together), ["-m", "pytest", "-q", *PARALLEL, "-m", "not serial", *places]
    if "serial" in stages:
        yield "serial", ["-m", "pytest", "-q", "-m", "serial", "tests"]


NOTHING_COLLECTED = 5
# Many tests wait for another process, so that two workers more than there are cores keep the cores busy. Not many: each
# holds torch, and so do the processes that it starts. What takes longest starts first: tests/start_order.py.
WORKERS = min((os.cpu_count() or 1) + 2, 6)
PARALLEL = ("-n", str(WORKERS), "--dist", "loadscope", "--no-loadscope-reorder")
# What pytest is told of a stage; docstrings have examples, too.
PLACES = {
    "tests": ("tests", "--doctest-modules", "course_utils", "own_program", "authoring", "benchmarks"),
    "notebooks": (
        "notebooks",
        "--ignore=notebooks/scripts",
        "--nbval",
        "--nbval-cell-timeout=240",
        "--nbval-kernel-name=python3",
    ),
}
STAGES = ("lint", *PLACES, "serial")
VERBS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "lab": (lab, "open the course in JupyterLab, in workspace/, your own copy"),
    "test": (
        test,
        'lint, tests, notebooks, and what measures time; ARGS="lint notebooks" runs these stages alone, and what\n'
        "              begins with -- goes to pytest",
    ),
    "book": (_module("authoring.pages.build"), "build the book: book/_build/html/index.html"),
    "record": (record, 'run lessons and keep what they measured here; ARGS="pinned_memory" for one of them'),
    "refresh": (_module("authoring.pages.refresh"), "bring pages and stored outputs up to date with the records"),
    "check": (_course("check"), "what this machine can measure live, and how to get what is missing"),
    "report": (_course("report"), "one page: your results beside the recorded machines"),
    "demo": (_module("authoring", "demo"), "open a lesson's five-minute path in large type: make demo ARGS=04"),
    "slides": (_module("authoring", "slides"), 'the slides of all lessons, in slides/; ARGS="04 09" for some of them'),
    "compare": (_course("compare"), 'which verdicts changed; ARGS="A B": machines, or folders of records'),
    "trace": (_course("trace"), 'where a step\'s time goes; ARGS=FILE of torch.profiler, or ARGS="BEFORE AFTER"'),
    "snapshot": (_course("snapshot"), "what holds a GPU's memory; ARGS=FILE of torch.cuda.memory._dump_snapshot"),
    "wheel": (wheel, "the whole course in one file, dist/*.whl, for a hosted GPU: book/hosted.md says how"),
    "lint": (lint, "style of code and notebooks; ARGS=--fix mends what can be mended"),
    "workspace": (workspace, "bring workspace/ up to date without opening JupyterLab"),
    "setup": (setup, "only make or update the environment in .venv"),
    "counts": (_module("tools.counts"), "the lines of each room of the course, beside what it may have"),
    "renumber": (renumber, "give the lessons the numbers that lessons/order.yml says, and mend what mentions them"),
}
_VERBS_WITH_WORDS = "\n".join(f"  {verb:<12}{words}" for verb, (_, words) in VERBS.items())
HELP = f"""\
The PyTorch performance course.  make VERB  (on Windows: py make.py VERB)

{_VERBS_WITH_WORDS}

What follows in ARGS="..." goes to the program behind the verb: make lab ARGS="--no-browser --port 9999"
Without make:  python3 make.py lab -- --no-browser --port 9999
TORCH_INDEX_URL=... make lab  takes torch from another index. Delete .venv to choose anew.
"""


def _run(command: list) -> int:
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT, env=variables(ROOT))
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()  # it got the same Ctrl-C and tidies up
        raise
    except BaseException:
        process.terminate()
        process.wait()
        raise
