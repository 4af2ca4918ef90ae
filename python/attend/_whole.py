"""Whole numbers and flags as arguments: what would be cut off, or taken for true, is refused."""

from __future__ import annotations

import operator
from typing import Any

from ._errors import WrongType


def whole(value: Any, name: str) -> int:
    """The number itself: an int, or what stands for one (NumPy's, a tensor's); a fraction is refused by name."""
    if isinstance(value, int):
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected a whole number") from None


def flag(value: Any, name: str) -> bool:
    """True or False; of anything else only the numbers 0 and 1, of Python, NumPy or PyTorch: "no" would be true."""
    if value is True or value is False:
        return value
    if isinstance(value, (str, bytes)) or value is None or getattr(value, "shape", ()) != ():
        raise WrongType(f"{name} is {value!r}, expected True or False")
    try:
        if value == 0 or value == 1:
            return bool(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise WrongType(f"{name} is {value!r}, expected True or False")


def wholes(**values: Any) -> tuple:
    """Several at once, in the order given."""
    return tuple(whole(value, name) for name, value in values.items())
