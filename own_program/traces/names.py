"""Names of what a trace has of Python: where a DataLoader loads, and which functions are the program's own."""

from __future__ import annotations

import functools
import re
import sys

LOADS = re.compile(r"enumerate\(DataLoader")
# The profiler leaves out what stands in sys.path: a library's file begins with the library's name.
_LIBRARIES = re.compile(
    r"(^|[\\/])(torch|site-packages|dist-packages|lib[\\/]python[\d.]+)[\\/]"
    r"|^(torch(vision|audio|text|data|metrics|ao|tune)|triton|numpy|pandas|scipy|sklearn|PIL|cv2|h5py|pyarrow|fsspec"
    r"|matplotlib|tqdm|wandb|tensorboard"
    r"|transformers|accelerate|timm|(pytorch_)?lightning|IPython|ipykernel|tornado|traitlets)[\\/]"
)
_STANDARD = sys.stdlib_module_names - {"code", "profile", "trace"}  # as people call their own scripts, too


@functools.lru_cache(4096)
def is_own_code(frame: str) -> bool:
    """Whether a function of Python's is of the program, not of a library, nor built in.

    Example:
        >>> [is_own_code(each) for each in ("train.py(42): step", "random.py(7): choice", "<built-in function sleep>")]
        [True, False, False]
    """
    if frame.startswith("<ipython-input"):  # a notebook's cell
        return True
    file = frame.partition(".py(")[0]
    return file != frame and not _LIBRARIES.search(file) and re.split(r"[\\/]", file)[0] not in _STANDARD
