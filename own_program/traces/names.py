"""Names of kernels and of Python's functions: what they tell."""

from __future__ import annotations

import functools
import re
import sys

from own_program.traces.events import KERNEL, Event

LOADS = re.compile(r"enumerate\(DataLoader")
_SENDS = re.compile(
    r"nccl|rccl|oneccl|hcom_|nvshmem|cross_device_reduce|(one|two)_shot_|multimem_"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)

# The profiler leaves out what stands in sys.path: a library's file begins with the library's name.
_LIBRARIES = re.compile(
    r"(^|[\\/])(torch|site-packages|dist-packages|lib[\\/]python[\d.]+)[\\/]"
    r"|^(torch(vision|audio|text|data|metrics|ao|tune)|triton|numpy|pandas|scipy|sklearn|PIL|cv2|h5py|pyarrow|fsspec"
    r"|matplotlib|tqdm|wandb|tensorboard"
    r"|transformers|accelerate|timm|(pytorch_)?lightning|IPython|ipykernel|tornado|traitlets)[\\/]"
)
_STANDARD = sys.stdlib_module_names - {"code", "profile", "trace"}  # as people call their own scripts, too


def is_communication(event: Event) -> bool:
    """Whether a kernel sends or receives."""
    return event.kind == KERNEL and _sends(event.name)


@functools.lru_cache(4096)
def _sends(name: str) -> bool:
    return bool(_SENDS.search(name)) and "triton_" not in name


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
