"""Set up and use the course: python3 make.py VERB. Needs Python alone, on any platform.

This file parses on every Python, so that a wrong one gets a sentence instead of a SyntaxError. The verbs are in tools/.
"""

import os
import subprocess
import sys

from tools.supported_python import NEWEST, OLDEST

ROOT = os.path.dirname(os.path.abspath(__file__))


def is_supported(command):
    """Say whether the Python that this command starts is there and can run the course."""
    test = "import sys; sys.exit(not %r <= sys.version_info[:2] <= %r)" % (OLDEST, NEWEST)
    try:
        with open(os.devnull, "w") as nowhere:
            return subprocess.call(command + ["-c", test], stdout=nowhere, stderr=nowhere) == 0
    except OSError:
        return False


def suitable_pythons():
    """Return the commands that would start a supported Python here, the preferred one first."""
    minors = range(NEWEST[1], OLDEST[1] - 1, -1)
    if os.name == "nt":
        return [["py", "-3.%d" % minor] for minor in minors]
    return [["python3.%d" % minor] for minor in minors]


def use_another_python(arguments):
    """Go on with the Python that .venv was made with, or say in one line which Python to use."""
    own = os.path.join(ROOT, ".venv", "Scripts" if os.name == "nt" else "bin", "python")
    if is_supported([own]):
        command = [own, os.path.join(ROOT, "make.py")] + arguments
        if os.name == "nt":
            return subprocess.call(command)
        os.execv(own, command)
    have = "%d.%d" % sys.version_info[:2]
    line = "This is Python %s; the course needs Python 3.%d to 3.%d. " % (have, OLDEST[1], NEWEST[1])
    for command in suitable_pythons():
        if is_supported(command):
            words = " ".join(command + ["make.py"] + (arguments or ["lab"]))
            sys.stderr.write(line + "You have a suitable one, so run: %s\n" % words)
            return 1
    sys.stderr.write(line + "Install Python 3.%d, then run: python3.%d make.py lab\n" % (NEWEST[1], NEWEST[1]))
    return 1


if __name__ == "__main__":
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        sys.exit(use_another_python(sys.argv[1:]))
    from tools.verbs import main

    sys.exit(main(sys.argv[1:]))
