"""Whole numbers as arguments: what would be cut off is refused."""

from __future__ import annotations

import operator
from typing import Any


def whole(value: Any, name: str) -> int:
    """The number itself: an int, or what stands for one (NumPy's, a tensor's); a fraction is refused by name."""
    if isinstance(value, int):
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected a whole number") from None


def wholes(**values: Any) -> tuple:
    """Several at once, in the order given."""
    return tuple(whole(value, name) for name, value in values.items())
