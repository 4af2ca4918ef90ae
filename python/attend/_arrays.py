"""Arrays of any library as views of their memory, and new arrays of the same kind. In C++: python/src/arrays.cpp."""

from ._core import describe, empty, finish, numpy_dtype

__all__ = ["describe", "empty", "finish", "numpy_dtype"]
