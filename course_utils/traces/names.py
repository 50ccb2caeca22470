"""Names of kernels, for people."""

from __future__ import annotations


def short(name: str) -> str:
    """A kernel's name without what a template was given.

    Example:
        >>> short("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)")
        'at::native::vectorized_elementwise_kernel'
    """
    if ".py(" in name:  # a function of Python's, with its line
        return name if len(name) <= 70 else "…" + name[-69:]
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    plain = plain.partition("<")[0].partition("(")[0] or name
    return plain if len(plain) <= 70 else plain[:69] + "…"
