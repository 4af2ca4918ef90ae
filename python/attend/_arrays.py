"""Arrays of any library as views of their memory, and new arrays of the same kind."""

from __future__ import annotations

import sys

import numpy as np

from . import _core

_NUMPY_NAMES = {"float32": "f32", "float16": "f16", "float64": "f64", "bfloat16": "bf16"}
_numpy_dtypes = {np.dtype(name): short for name, short in _NUMPY_NAMES.items() if name != "bfloat16"}
_IN_ORDER = (0, 1, 2, 3)
_torch_dtypes = {}  # both ways round; filled when the first tensor comes


class Array:
    """One argument: its library, its memory, and what has to stay alive while the engine reads it."""

    __slots__ = ("kind", "keep", "address", "dtype", "shape", "strides", "writable")

    def __init__(self, kind, keep, address, dtype, shape, strides, writable):
        self.kind, self.keep, self.address, self.dtype = kind, keep, address, dtype
        self.shape, self.strides, self.writable = tuple(shape), tuple(strides), writable

    def view(self, order=_IN_ORDER):
        """The engine's [batch, heads, length, dim] view; `order` says where those four stand in the array."""
        shape, strides = self.shape, self.strides
        if order != _IN_ORDER:
            shape, strides = tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order)
        return _core.View(self.address, self.dtype, shape, strides, self.writable)


def _is_torch(x):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _is_jax(x):
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, jax.Array)


def _dtypes_of_torch():
    if not _torch_dtypes:
        torch = sys.modules["torch"]
        names = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}
        _torch_dtypes.update(names)
        _torch_dtypes.update({name: dtype for dtype, name in names.items()})
    return _torch_dtypes


def _from_torch(x, name, kind):
    torch = sys.modules["torch"]
    if x.device.type != "cpu":
        raise ValueError(f"{name} is on {x.device}, expected a CPU tensor: move it with .cpu()")
    if x.layout is not torch.strided:
        raise TypeError(f"{name} is a {x.layout} tensor, expected a dense one: .to_dense()")
    if type(x) is not torch.Tensor and x.numel() and not x.untyped_storage().data_ptr():
        raise ValueError(f"{name} has no memory (a fake or meta tensor), expected a CPU tensor with values")
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} needs a gradient, which this function does not record: use attend.torch, or call it under "
            "torch.no_grad() or on .detach()"
        )
    dtype = _dtypes_of_torch().get(x.dtype)
    if dtype is None:
        raise TypeError(f"{name} dtype is {x.dtype}, expected float32, float16, bfloat16 or float64")
    if x.is_neg():
        x = x.resolve_neg()
    return Array(kind, x, x.data_ptr(), dtype, x.shape, x.stride(), True)


def _from_numpy(x, name, kind):
    dtype = _numpy_dtypes.get(x.dtype) or _NUMPY_NAMES.get(x.dtype.name)  # the name takes a microsecond
    if dtype is None or not x.dtype.isnative:
        raise TypeError(f"{name} dtype is {x.dtype}, expected float32, float16, float64 or ml_dtypes' bfloat16")
    size = x.dtype.itemsize
    if any(stride % size for stride in x.strides):
        x = np.ascontiguousarray(x)  # a field of a record: no whole number of elements apart
    return Array(kind, x, x.__array_interface__["data"][0], dtype, x.shape, [s // size for s in x.strides],
                 x.flags.writeable)


def describe(x, name):
    """The memory of `x`, without a copy wherever its library allows."""
    if _is_torch(x):
        return _from_torch(x, name, "torch")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost: give x.data and a mask of attend's")
    if isinstance(x, np.ndarray):
        return _from_numpy(x, name, "numpy")
    if _is_jax(x):
        return _from_numpy(np.asarray(x), name, "jax")
    if hasattr(x, "__dlpack__"):
        return _from_numpy(np.from_dlpack(x), name, "numpy")
    if hasattr(x, "__array__") or isinstance(x, memoryview):
        return _from_numpy(np.asarray(x), name, "numpy")
    raise TypeError(f"{name} is a {type(x).__name__}, expected an array: NumPy, PyTorch (CPU), JAX (CPU) or DLPack")


def _numpy_dtype(dtype):
    if dtype == "bf16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError("bfloat16 in NumPy needs the package ml_dtypes: pip install ml_dtypes") from error
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype({"f32": np.float32, "f16": np.float16, "f64": np.float64}[dtype])


def empty(kind, dtype, shape):
    """A new array of the library `kind`, and its description. JAX arrays are made from NumPy memory at the end."""
    if kind == "torch":
        x = sys.modules["torch"].empty(tuple(shape), dtype=_dtypes_of_torch()[dtype])
        return x, Array(kind, x, x.data_ptr(), dtype, x.shape, x.stride(), True)
    x = np.empty(tuple(shape), dtype=_numpy_dtype(dtype))
    return x, _from_numpy(x, "result", kind)


def finish(kind, x):
    """What the caller gets: the library's own array."""
    if kind == "jax" and x is not None:
        import jax.numpy

        return jax.numpy.asarray(x)
    return x
