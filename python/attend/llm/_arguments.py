"""Texts, tokens and numbers as arguments: what cannot be used is refused by name."""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any, List

import numpy as np

from .._errors import InvalidArgument
from .._whole import whole


def text(value: Any, name: str) -> str:
    """The text itself. Python's str may hold halves of characters, which no file and no tokenizer can."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is of type {type(value).__name__}, expected a str")
    try:
        value.isascii() or value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} holds the lone surrogate U+{ord(value[error.start]):04X} at place {error.start}, "
                              "expected characters that UTF-8 has") from None
    return value


def texts(value: Any, name: str) -> List[str]:
    """A list of texts."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is of type {type(value).__name__}, expected a list of str")
    return [text(one, f"{name}[{n}]") for n, one in enumerate(value)]


def token_ids(value: Any, name: str) -> List[int]:
    """Ids from a list or an array of whole numbers."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise TypeError(f"{name} has rows of different lengths, expected token ids in one row") from None
    if array.ndim != 1:
        raise InvalidArgument(f"{name} has {array.ndim} dimensions, expected 1: token ids in one row")
    if not array.size:
        return []
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype} values, expected whole numbers: token ids")
    for token in (int(array.min()), int(array.max())):
        if not 0 <= token < 2**31:
            raise InvalidArgument(f"{name} holds token {token}, expected 0 or more, and less than 2^31")
    return array.tolist()


def is_many(prompt: Any, name: str) -> bool:
    """Whether it is a list of prompts; otherwise it is one, a text or token ids."""
    if isinstance(prompt, str):
        return False
    if hasattr(prompt, "ndim"):
        return prompt.ndim > 1
    if not isinstance(prompt, (list, tuple)):
        raise TypeError(f"{name} is of type {type(prompt).__name__}, expected a str, token ids, or a list of such")
    return len(prompt) > 0 and not isinstance(prompt[0], (Integral, float))


def path_bytes(value: Any, name: str) -> bytes:
    """A name or a path as the system has it."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} is of type {type(value).__name__}, expected a str or a path")
    path = os.fspath(value)
    if not path:
        raise InvalidArgument(f"{name} is empty, expected a model's name or a path")
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} is {path!r}, which is no path on this system") from None


def number(value: Any, name: str, least: int = -(2**63), most: int = 2**63 - 1) -> int:
    """A whole number within what the engine can hold."""
    n = whole(value, name)
    if not least <= n <= most:
        raise InvalidArgument(f"{name} is {n}, expected {least} to {most}")
    return n


def real(value: Any, name: str) -> float:
    """A number with a fraction."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} is {value!r}, expected a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}, expected a number") from None
